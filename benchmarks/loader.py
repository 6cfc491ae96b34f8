"""Measures the loader: masked rows per second, and memory over an epoch.

    python -m benchmarks.loader [--packing]

Makes a dataset of random words in a temporary directory with the real pipeline. Reads an epoch
through the loader, first in a thread of this process, then in worker processes. With ``--packing``
half of the examples are short, and each epoch is read twice: with one example per row, and packed.
"""

import argparse
import dataclasses
import itertools
import pathlib
import string
import tempfile
import time

import numpy as np
import psutil

from benchmarks.report import report
from bert_jax.data.dataset.reader import Dataset, open_dataset
from bert_jax.data.loader.loader import Loader
from bert_jax.data.loader.packing import PackingSection
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.collate import count_tokens
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from bert_jax.text import load_tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

SEQ_LENGTH = 512
BATCH_SIZE = 256
EXAMPLES = 20_000
TOKENS_PER_EXAMPLE = 480
DUPE_FACTOR = 10
SHORT_SEQ_PROB = 0.5  # with --packing, so that examples can share rows
UNITS = ("token", "whole_word", "ngram", "span")
MIB = 2**20
PACKAGES = ("array_record", "grain", "numpy")


def main() -> None:
    """Reports every metric as a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--dataset", help="train split to read; default: a dataset of random words")
    parser.add_argument("--tokenizer", help="tokenizer directory of --dataset")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--units", nargs="+", choices=UNITS, default=UNITS)
    parser.add_argument(
        "--packing", action="store_true", help="also read packed rows, with short examples"
    )
    arguments = parser.parse_args()
    if (arguments.dataset is None) != (arguments.tokenizer is None):
        parser.error("--dataset and --tokenizer go together")
    with tempfile.TemporaryDirectory(prefix="bert_jax_loader_") as made:
        if arguments.dataset is None:
            make_dataset(
                pathlib.Path(made), short_seq_prob=SHORT_SEQ_PROB if arguments.packing else 0.0
            )
        tokenizer = load_tokenizer(arguments.tokenizer or f"{made}/tokenizer")
        dataset = open_dataset(arguments.dataset or f"{made}/dataset", "train")
        for unit, workers in itertools.product(arguments.units, arguments.workers):
            features = MaskingTransform.from_tokenizer(
                tokenizer, seq_length=SEQ_LENGTH, masking=MaskingSection(unit=unit)
            )
            measure_epoch(dataset, features, workers=workers)
            if arguments.packing:
                packed = dataclasses.replace(features, max_examples=PackingSection().max_examples)
                measure_epoch(dataset, packed, workers=workers)


def make_dataset(directory: pathlib.Path, *, short_seq_prob: float) -> None:
    """Writes a vocabulary of 30,522 pieces, a text of random words, and their dataset.

    A word has three letters. For whole-word masking a third of the words have a second piece of
    three letters. Sentences have 5 to 40 words, documents 100 to 200 sentences. The share
    ``short_seq_prob`` of the examples is short; all others are full.
    """
    triples = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3)]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    continuations = [f"##{triple}" for triple in triples[: 30_522 - len(specials) - len(triples)]]
    vocabulary = [*specials, *triples, *continuations]
    WordPieceTokenizer(vocabulary, lower_case=True).save(directory / "tokenizer")
    rng = np.random.default_rng(0)
    tokens = 0
    with (directory / "text.txt").open("w") as text:
        while tokens < EXAMPLES * TOKENS_PER_EXAMPLE / DUPE_FACTOR:
            for _ in range(rng.integers(100, 201)):
                firsts = rng.integers(len(triples), size=rng.integers(5, 41))
                longer = rng.random(len(firsts)) < 1 / 3
                seconds = rng.integers(len(continuations), size=len(firsts))
                words = [
                    triples[first] + (triples[second] if more else "")
                    for first, second, more in zip(firsts, seconds, longer, strict=True)
                ]
                text.write(" ".join(words) + "\n")
                tokens += len(firsts) + int(longer.sum())
            text.write("\n")
    make_examples(
        ExamplesSection(
            input=(str(directory / "text.txt"),),
            tokenizer=str(directory / "tokenizer"),
            output=str(directory / "dataset"),
            max_seq_length=SEQ_LENGTH,
            short_seq_prob=short_seq_prob,
            dupe_factor=DUPE_FACTOR,
            validation_fraction=0.0,
        )
    )


def measure_epoch(dataset: Dataset, features: MaskingTransform, *, workers: int) -> None:
    """Reads one epoch and reports its speed and the growth of memory.

    The clock starts at the first batch, so the start of worker processes is excluded. On a busy
    machine, use rows per second of CPU time of this process and its workers.
    """
    section = LoaderSection(workers=workers)
    loader = Loader(dataset, features, batch_size=BATCH_SIZE, seed=0, section=section)
    steps = loader.rows_per_epoch // BATCH_SIZE
    with loader.batches(first_step=0) as batches:
        next(batches)
        processes = [psutil.Process(), *psutil.Process().children()]
        cpu, wall = _cpu_seconds(processes), time.perf_counter()
        memory, tokens, examples = [_resident(processes)], 0, 0
        for batch in itertools.islice(batches, steps - 1):
            tokens += count_tokens(batch)
            examples += int(batch["segment_ids"].max(axis=1).sum())
            memory.append(_resident(processes))
        wall = time.perf_counter() - wall
        cpu = _cpu_seconds(processes) - cpu
    rows = (steps - 1) * BATCH_SIZE
    facts = {
        "workers": workers,
        "masking_unit": features.masker.masking.unit,
        "packing": features.max_examples > 1,
        "seq_length": features.seq_length,
        "tokens_per_row": round(tokens / rows, 1),
        "examples_per_row": round(examples / rows, 3),
        "padding_share": round(1 - tokens / (rows * SEQ_LENGTH), 4),
        "epoch_rows": rows,
        "packages": PACKAGES,
    }
    report("loader.rows_per_core_second", rows / cpu, "rows/s", **facts)
    report("loader.rows_per_second", rows / wall, "rows/s", **facts)
    report("loader.tokens_per_core_second", tokens / cpu, "tokens/s", **facts)
    # Ignore the first tenth, in which buffers fill. After that, memory should be constant.
    settled = memory[len(memory) // 10 :]
    report(
        "loader.memory_growth",
        (settled[-1] - settled[0]) / MIB,
        "MiB",
        **facts,
        first_batch_mib=round(memory[0] / MIB),
        start_mib=round(settled[0] / MIB),
        end_mib=round(settled[-1] / MIB),
        peak_mib=round(max(memory) / MIB),
    )


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(spent.user + spent.system for spent in times)


def _resident(processes: list[psutil.Process]) -> int:
    return sum(process.memory_info().rss for process in processes)


if __name__ == "__main__":
    main()
