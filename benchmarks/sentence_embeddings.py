"""Trains and encodes sentence embeddings, beside sentence-transformers on the same model and data.

    python -m benchmarks.sentence_embeddings CHECKPOINT --stsb DIR [--text FILE] [--part PART …]

The checkpoint is a directory of sentence-transformers, such as MiniLM. The parts are

- ``scored``: training on STS-B's scored pairs with CoSENT,
- ``pairs``: training on ``--pairs`` pairs of neighbouring sentences with InfoNCE,
- ``encode``: vectors of texts of mixed length: sentences of STS-B, sentences and paragraphs,
- ``quality``: Spearman's correlation on STS-B dev after training, for every seed and both sides.

Both sides use float32, the same batch size, AdamW, warm-up, decay and clipping, and alternate. Ours
runs `bert-jax finetune`'s step and `LoadedModel.encode`. Theirs pads each column of a random batch
to its longest text, as its trainer does, and encodes with `SentenceTransformer.encode`. Its
trainer's own work and compile time are left out. The machine must be idle: PyTorch's threads wait
for each other in every operation, so other programs slow down its side most, also in CPU seconds.
``--threads 1`` compares single cores and avoids that.

``--text`` is plain text with a paragraph per line; lines that begin with ``<`` are skipped. By
default it is this Python's documentation.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import glibc
from benchmarks.report import interleaved, report
from benchmarks.sentence_pairs import (
    Pair,
    mixed_texts,
    neighbours,
    read_paragraphs,
    read_stsb,
    write_table,
)
from benchmarks.sentence_transformers_peer import (
    MAX_LENGTH,
    PACKAGES,
    PEER,
    RATE,
    SCALE,
    WARMUP,
    Peer,
    Timed,
    compare_training,
    limit_threads,
    per_item,
    report_rates,
)

PARTS: Final = ("scored", "pairs", "encode", "quality")


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "--stsb", type=Path, required=True, help="directory with train.tsv, dev.tsv"
    )
    parser.add_argument("--text", type=Path, help="plain text, a paragraph per line")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--texts", type=int, default=2000, help="texts to encode")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=1, help="epochs of quality")
    parser.add_argument("--limit", type=int, help="pairs of STS-B to train on")
    parser.add_argument("--threads", type=int, help="cores of both sides. Default: all")
    asked = parser.parse_args()
    limit_threads(asked.threads)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        scored = read_stsb(asked.stsb / "train.tsv")[: asked.limit]
        paragraphs = read_paragraphs(asked.text)
        if "scored" in asked.part:
            train_rates("scored", scored, asked, root / "scored")
        if "pairs" in asked.part:
            train_rates("pairs", neighbours(paragraphs, asked.pairs), asked, root / "pairs")
        if "encode" in asked.part:
            encode_rates(mixed_texts(scored, paragraphs, asked.texts), asked)
        if "quality" in asked.part:
            quality(scored, read_stsb(asked.stsb / "dev.tsv"), asked, root / "quality")


def train_rates(part: str, pairs: Sequence[Pair], asked: argparse.Namespace, root: Path) -> None:
    """Times training steps of both sides alternately."""
    values = configuration(pairs, asked, root, seed=1, epochs=1000)
    peer = Peer(asked.checkpoint, pairs, batch_size=asked.batch, seed=1)
    facts = {"part": part, "rows": len(pairs), "batch_size": asked.batch, "threads": asked.threads}
    figure = "sentence_embeddings.train"
    compare_training(figure, values, peer, facts, steps=asked.steps, rounds=asked.rounds)


def encode_rates(texts: Sequence[str], asked: argparse.Namespace) -> None:
    """Times encoding of both sides alternately, and compares the vectors."""
    import sentence_transformers

    import bert_jax

    model = bert_jax.load(asked.checkpoint)
    theirs = sentence_transformers.SentenceTransformer(str(asked.checkpoint), device="cpu")
    runs: dict[str, Callable[[], np.ndarray]] = {
        "bert_jax": lambda: model.encode(list(texts), batch_size=asked.batch),
        PEER: lambda: theirs.encode(list(texts), batch_size=asked.batch, show_progress_bar=False),
    }
    runs["bert_jax"]()
    runs["bert_jax"]()  # later calls compile more lengths
    difference = float(np.abs(runs["bert_jax"]() - runs[PEER]()).max())
    timed = {name: Timed(run) for name, run in runs.items()}
    seconds = interleaved(timed, rounds=asked.rounds)
    tokens = [len(ids) for ids in theirs.tokenizer(list(texts))["input_ids"]]
    facts = {
        "part": "encode",
        "rows": len(texts),
        "batch_size": asked.batch,
        "rounds": asked.rounds,
        "threads": asked.threads,
        "tokens_quartiles": np.percentile(tokens, (25, 50, 75)).round().tolist(),
        "largest_difference": float(f"{difference:.2g}"),
    }
    counts = [len(texts)] * asked.rounds
    report_rates(
        "sentence_embeddings.encode",
        "texts/s",
        {name: per_item(taken, counts) for name, taken in seconds.items()},
        {name: per_item(one.cpu[1:], counts) for name, one in timed.items()},
        {},
        facts,
    )


def quality(
    train: Sequence[Pair], dev: Sequence[Pair], asked: argparse.Namespace, root: Path
) -> None:
    """Trains both sides with every seed and reports Spearman's correlation on dev."""
    import bert_jax
    from bert_jax.config import parse_config

    found: dict[str, list[float]] = {"bert_jax": [], PEER: []}
    for seed in asked.seeds:
        values = configuration(train, asked, root / str(seed), seed=seed, epochs=asked.epochs)
        values["finetune"]["task"]["dev"] = write_table(root / str(seed) / "dev.tsv", dev)
        outcome = bert_jax.finetune(parse_config(values, source="benchmark"))
        assert outcome.scores is not None
        found["bert_jax"].append(outcome.scores["spearman"])
        peer = Peer(asked.checkpoint, train, batch_size=asked.batch, seed=seed)
        for _ in peer.steps(epochs=asked.epochs):
            pass
        found[PEER].append(peer.spearman(dev))
    for name, scores in found.items():
        report(
            *("sentence_embeddings.spearman", statistics.fmean(scores), "correlation"),
            peer=None if name == "bert_jax" else name,
            packages=PACKAGES,
            by_seed=[round(score, 4) for score in scores],
            deviation=round(statistics.stdev(scores), 4) if len(scores) > 1 else None,
            rows=len(train),
            batch_size=asked.batch,
            epochs=asked.epochs,
        )


def configuration(
    pairs: Sequence[Pair], asked: argparse.Namespace, root: Path, *, seed: int, epochs: int
) -> dict[str, Any]:
    """Returns a configuration of `bert-jax finetune`, whose tables it writes below `root`."""
    table = write_table(root / "train.tsv", pairs)
    task: dict[str, Any] = {
        "kind": "embedding",
        "train": table,
        "dev": write_table(root / "few.tsv", pairs[:64]),
        "anchor": "first",
        "positive": "second",
        "loss": {"kind": "info_nce", "temperature": 1 / SCALE},
    }
    if pairs[0].score is not None:
        task |= {"score": "score", "loss": {"kind": "cosent", "temperature": 1 / SCALE}}
    finetune = {
        "init_from": str(asked.checkpoint),
        "task": task,
        "epochs": epochs,
        "batch_size": asked.batch,
        "max_length": MAX_LENGTH,
        "optimizer": {"learning_rate": RATE, "warmup_fraction": WARMUP},
    }
    return {"seed": seed, "run_dir": str(root / "tuned"), "finetune": finetune}


if __name__ == "__main__":
    glibc.with_large_pages("benchmarks.sentence_embeddings")
    main()
