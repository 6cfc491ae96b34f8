"""Tests whether our examples and google-research/bert's have the same distribution.

    python -m benchmarks.release_parity create_pretraining_data.py TEXT VOCAB [--runs 8]

Both sides make examples of one text (a sentence per line, blank lines between documents) with one
uncased vocabulary and several seeds. Our examples are written as TFRecords, so one reader reads
both.

Prints a JSON line per metric, with the p-value of the chi-square statistic under permutation.
Whole runs are permuted, because examples of one run are dependent. If the distributions are equal,
one p-value in twenty is below 0.05.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from etils import epath

from benchmarks.release_script import DUPE_FACTOR, PEER, SEQ_LENGTH, release_command
from benchmarks.report import report
from benchmarks.watched import watch
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.schema import decode_rows
from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform, StaticExample
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from bert_jax.pipelines.shards.google_bert_tfrecords import write_tfrecords
from bert_jax.text import load_wordpiece

PERMUTATIONS: Final = 5000
_BINS: Final = 30  # bins per metric, with equal numbers of examples if possible
_MASK: Final = 103  # id of [MASK] in the release's vocabularies

FIGURES: Final[dict[str, Callable[[StaticExample], int]]] = {
    "length": lambda e: len(e.input_ids),
    "length_of_a": lambda e: len(e.input_ids) - _second(e),
    "length_of_b": lambda e: _second(e),
    "label": lambda e: e.next_sentence_label,
    "length_of_a_at_label_0": lambda e: e.next_sentence_label or len(e.input_ids) - _second(e),
    "length_of_b_at_label_1": lambda e: e.next_sentence_label and _second(e),
    "predictions": lambda e: len(e.ids),
    "predictions_that_show_mask": lambda e: int((_shown(e) == _MASK).sum()),
    "predictions_that_show_the_token": lambda e: int((_shown(e) == e.ids).sum()),
    "first_prediction": lambda e: int(e.positions[0]),
    "middle_prediction": lambda e: int(e.positions[len(e.positions) // 2]),
}


def main() -> None:
    """Makes the examples and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("--runs", type=int, default=8, help="of each")
    arguments = parser.parse_args()
    # [run, example] by metric; our runs come first
    found: dict[str, list[list[int]]] = {name: [] for name in FIGURES}
    with tempfile.TemporaryDirectory(prefix="bert_jax_parity_") as scratch:
        root = Path(scratch)
        load_wordpiece(arguments.vocab, lower_case=True).save(root / "tokenizer")
        for run in range(2 * arguments.runs):
            if run < arguments.runs:
                examples = run_ours(arguments.text, root, seed=run)
            else:
                examples = run_release(arguments.script, arguments.text, root, seed=run)
            for name, figure in FIGURES.items():
                found[name].append([figure(example) for example in examples])
    facts = {"runs": arguments.runs, "peer": PEER, "packages": ("numpy",)}
    counts = [len(run) for run in found["label"]]
    facts["examples"] = [sum(counts[: arguments.runs]), sum(counts[arguments.runs :])]
    p = permute(np.array(counts, float)[:, None], difference)
    report("release_parity.examples_per_run", p, "p-value", **facts)
    for name, runs in found.items():
        report(f"release_parity.{name}", permute(tabulate(runs), chi_square), "p-value", **facts)


def run_ours(text: Path, root: Path, *, seed: int) -> list[StaticExample]:
    """Returns the examples of one of our runs."""
    output = root / f"ours-{seed}"
    section = ExamplesSection(
        input=(str(text),),
        tokenizer=str(root / "tokenizer"),
        output=str(output),
        max_seq_length=SEQ_LENGTH,
        dupe_factor=DUPE_FACTOR,
        validation_fraction=0.0,
        workers=1,
        seed=seed,
    )
    make_examples(section)
    tokenizer = load_wordpiece(root / "tokenizer" / "vocab.txt", lower_case=True)
    rows = MaskingTransform.from_tokenizer(
        tokenizer, seq_length=SEQ_LENGTH, masking=MaskingSection()
    )
    written = root / f"written-{seed}"
    write_tfrecords([open_dataset(output, "train")], written, rows=rows, seed=seed)
    return read(sorted(written.iterdir()))


def run_release(script: Path, text: Path, root: Path, *, seed: int) -> list[StaticExample]:
    """Returns the examples of one run of the script."""
    output, vocabulary = root / f"theirs-{seed}", root / "tokenizer" / "vocab.txt"
    watch(release_command(script, text=text, vocabulary=vocabulary, output=output, seed=seed))
    return read([output])


def read(paths: Sequence[Path]) -> list[StaticExample]:
    """Returns the examples of TFRecords."""
    return [
        example
        for path in paths
        for record in scan_records(epath.Path(path))
        for rows in decode_rows([record.payload], [str(path)])
        for example in rows.examples()
    ]


def tabulate(runs: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns ``[run, bin]``: how many examples of each run have a value in each bin."""
    pooled = Counter(value for run in runs for value in run)
    least = pooled.total() / _BINS
    bins: dict[int, int] = {}
    number, filled = 0, 0
    for value in sorted(pooled):
        bins[value] = number
        filled += pooled[value]
        if filled >= least:
            number, filled = number + 1, 0
    table = np.zeros((len(runs), number + 1))
    for row, run in zip(table, runs, strict=True):
        for value in run:
            row[bins[value]] += 1
    return table[:, table.any(axis=0)]


def chi_square(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the chi-square statistic of both sides' counts, ``[bin]`` each."""
    table = np.stack([ours, theirs])
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the absolute difference of the sums of two arrays."""
    return float(abs(ours - theirs).sum())


def permute(table: np.ndarray, statistic: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """Returns the p-value: the share of random divisions of the runs that differ at least as much.

    Args:
        table: counts ``[run, bin]``; the first half of the runs are ours.
        statistic: statistic of the two sides' sums over runs.
    """
    rng = np.random.default_rng(0)
    half = len(table) // 2
    true = statistic(table[:half].sum(0), table[half:].sum(0))
    orders = (rng.permutation(len(table)) for _ in range(PERMUTATIONS))
    drawn = [statistic(table[order[:half]].sum(0), table[order[half:]].sum(0)) for order in orders]
    return (1 + sum(value >= true * (1 - 1e-9) for value in drawn)) / (1 + PERMUTATIONS)


def _second(example: StaticExample) -> int:
    return int(example.token_type_ids.sum())


def _shown(example: StaticExample) -> np.ndarray:
    return example.input_ids[example.positions]


if __name__ == "__main__":
    main()
