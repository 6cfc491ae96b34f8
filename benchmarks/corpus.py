"""Times `bert-jax score` beside the usual scripts: documents in Parquet → results in Parquet.

    python -m benchmarks.corpus [--text FILE] [--documents N] [--only encode]

Three comparisons, each with alternating runs of new processes on all cores, from start to end:

- classify: `datasets.map`, `tokenizers` and PyTorch, batches of 32 sorted by length.
- encode: sentence-transformers' multi-process `encode`, a process per core.
- host: reading, encoding, batching and writing on one core, without a model, and without the start
  of the processes.

The documents have 50 to 2,000 words. Without checkpoints, the models have 6 layers of width 384
with random weights. Results must agree to 1e-4.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpus_peers import (
    host,
    random_classifier,
    random_encoder,
)
from benchmarks.features import python_docs
from benchmarks.report import interleaved, median_ratio, report

PACKAGES: Final = (
    "jax",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "sentence-transformers",
)
_WORDS: Final = (50, 2000)


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--text", type=Path, help="text file to cut into documents")
    parser.add_argument("--classifier", type=Path, help="Hugging Face sequence classifier")
    parser.add_argument("--encoder", type=Path, help="sentence-transformers model")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["classify", "encode", "host"], action="append")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        text = arguments.text and arguments.text.read_text(encoding="utf-8")
        words = (text or " ".join(python_docs(20_000))).split(" ")
        corpus = write_documents(root / "corpus", words, arguments.documents, arguments.parts)
        classifier = arguments.classifier or random_classifier(root / "classifier", words)
        encoder = arguments.encoder or random_encoder(root / "encoder", words)
        facts = {"documents": arguments.documents, "rounds": arguments.rounds}
        if wanted(arguments.only, "classify"):
            ours = score(root, corpus, classifier, result="head")
            theirs = peer(root, "classify", corpus, classifier)
            agree(root / "head", root / "classify.parquet", "label")
            compare("classify", ours, theirs, facts, peer_name="datasets + torch")
        if wanted(arguments.only, "encode"):
            ours = score(root, corpus, encoder, result="vector")
            theirs = peer(root, "encode", corpus, encoder)
            agree(root / "vector", root / "encode.parquet", "vector")
            compare("encode", ours, theirs, facts, peer_name="sentence-transformers")
        if wanted(arguments.only, "host"):
            os.sched_setaffinity(0, {0})
            for length in (256, 512):
                ours = host_part(root, corpus, classifier, length=length)
                theirs = host(root, corpus, classifier, length=length)
                compare("host", ours, theirs, {**facts, "max_length": length}, peer_name="datasets")


def wanted(only: Sequence[str] | None, name: str) -> bool:
    """Returns whether `only` includes a comparison."""
    return not only or name in only


def write_documents(directory: Path, words: Sequence[str], count: int, parts: int) -> Path:
    """Writes documents of 50 to 2,000 words, most of them short, to Parquet files."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    least, most = np.log(_WORDS[0]), np.log(_WORDS[1])
    for part in range(parts):
        ids, texts = [], []
        for at in range(part, count, parts):
            size = int(np.exp(rng.uniform(least, most)))
            start = int(rng.integers(0, len(words) - size))
            ids.append(f"d{at}")
            texts.append(" ".join(words[start : start + size]))
        pq.write_table(pa.table({"id": ids, "text": texts}), directory / f"part{part}.parquet")
    return directory


def score(root: Path, corpus: Path, model: Path, *, result: str) -> Callable[[], None]:
    """Returns a function that runs our command, into a new directory, and its first run's."""
    config = root / f"{result}.json"
    section = {"model": str(model), "input": [str(corpus)], "result": result}
    config.write_text(json.dumps({"score": section}))
    runs = iter(range(1_000_000))

    def run() -> None:
        output = root / (f"{result}-{number}" if (number := next(runs)) else result)
        command = [sys.executable, "-m", "bert_jax.cli", "score", str(config)]
        subprocess.run([*command, f"score.output={output}"], check=True, capture_output=True)

    run()
    return run


def peer(root: Path, name: str, corpus: Path, model: Path) -> Callable[[], None]:
    """Returns a function that runs a script of `benchmarks.corpus_peers` in a new process."""
    target = root / f"{name}.parquet"

    def run() -> None:
        command = [sys.executable, "-m", "benchmarks.corpus_peers", name, corpus, model, target]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)

    run()
    return run


def agree(ours: Path, theirs: Path, column: str) -> None:
    """Asserts that the results are equal."""
    found = pa.concat_tables([pq.read_table(path) for path in sorted(ours.glob("*.parquet"))])
    rows = dict(zip(found["id"].to_pylist(), found[column].to_pylist(), strict=True))
    expected = pq.read_table(theirs)
    named = dict(zip(expected["id"].to_pylist(), expected[column].to_pylist(), strict=True))
    assert rows.keys() == named.keys()
    if column == "label":
        differ = [name for name, label in named.items() if rows[name] != label]
        assert len(differ) <= len(named) // 200, differ  # ties of random weights
        return
    names = list(named)
    np.testing.assert_allclose(
        np.array([rows[name] for name in names]),
        np.array([named[name] for name in names]),
        atol=1e-4,
    )


def host_part(root: Path, corpus: Path, model: Path, *, length: int) -> Callable[[], Any]:
    """Returns a function that scores all parts with a model that returns zeros."""
    from bert_jax.corpus.parts import find_parts
    from bert_jax.corpus.results import Labels, PartSettings, WindowLimits
    from bert_jax.corpus.score_part import score_part
    from bert_jax.corpus.section import ScoreSection
    from bert_jax.inference.batches import BatchShape
    from bert_jax.text import load_tokenizer

    section = ScoreSection(model="none", input=(str(corpus),), output=str(root / "host"))
    shapes = [BatchShape(2048 // size, size) for size in range(64, length + 1, 64)]
    settings = PartSettings(
        section=section,
        tokenizer=load_tokenizer(model),
        results=Labels(["a", "b", "c"], integers=False),
        task=None,
        prefix="",
        max_length=length,
        shapes=tuple(shapes),
        limits=WindowLimits(rows=4096, characters=8 << 20),
    )
    parts = find_parts(section.input, part_bytes=section.part_bytes)

    def run() -> None:
        for part in parts:
            score_part(part, settings, Zeros())

    run()
    return run


class Zeros:
    """A model that returns zeros at once."""

    def __init__(self) -> None:
        self._rows: collections.deque[int] = collections.deque()

    def submit(self, batch: Mapping[str, np.ndarray]) -> None:
        """Notes the rows of a batch."""
        self._rows.append(len(batch["input_ids"]))

    def collect(self) -> np.ndarray:
        """Returns zeros."""
        return np.zeros((self._rows.popleft(), 3), np.float32)


def compare(
    name: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    facts: Mapping[str, Any],
    *,
    peer_name: str,
) -> None:
    """Times both alternately, and reports rates and their ratio."""
    seconds = interleaved({"bert_jax": ours, peer_name: theirs}, rounds=facts["rounds"])
    for side, taken in seconds.items():
        rate = facts["documents"] / statistics.median(taken)
        who = None if side == "bert_jax" else side
        report(f"corpus.{name}", rate, "documents/s", peer=who, packages=PACKAGES, **facts)
    ratio = median_ratio(seconds[peer_name], seconds["bert_jax"])
    report(f"corpus.{name}.ratio", ratio, "x", peer=peer_name, packages=PACKAGES, **facts)


if __name__ == "__main__":
    main()
