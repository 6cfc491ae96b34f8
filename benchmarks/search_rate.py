"""Times the training of models of search, beside sentence-transformers on the same data.

    python -m benchmarks.search_rate [--kind rerank|sparse] [--loss bce list_net] [--text FILE]

The first sentence of a paragraph is a query. The rest of the paragraph answers it, and the rests of
other paragraphs do not. The encoder has 6 layers of width 384 with random weights. Both sides use
float32, the same batch size, length, AdamW, warm-up, decay, clipping and dropout, and alternate.
Theirs pads each random batch to its longest text, as its trainer does. Its trainer's own work is
left out, and also compile time of ours. Run it on an idle machine, see
`benchmarks.sentence_embeddings`.

``--text`` is plain text with a paragraph per line; lines that begin with ``<`` are skipped. By
default it is this Python's documentation.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks import glibc
from benchmarks.features import random_checkpoint
from benchmarks.sentence_pairs import read_paragraphs
from benchmarks.sentence_transformers_peer import (
    MAX_LENGTH,
    RATE,
    WARMUP,
    PeerTraining,
    compare_training,
    limit_threads,
)

WIDTHS: Final = (4, 9)  # candidates of a query, from and below


class Candidates(NamedTuple):
    """A query with documents. The first one answers it."""

    query: str
    documents: list[str]
    labels: list[float]


class Answered(NamedTuple):
    """A query with its answer."""

    query: str
    document: str

    @property
    def documents(self) -> list[str]:
        """The documents of the query."""
        return [self.document]


class Kind(NamedTuple):
    """A kind of models."""

    losses: Sequence[str]
    rows: Callable[..., Sequence[Any]]
    task: Callable[[str, Path], dict[str, Any]]  # (loss, directory of the tables) → our settings
    peer: Callable[..., PeerTraining]
    model: Mapping[str, Any] = {}  # arguments of `random_checkpoint`


def main() -> None:
    """Measures and prints one JSON line per metric."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--kind", choices=KINDS, default="rerank")
    parser.add_argument("--loss", nargs="+", help="by default all of the kind")
    parser.add_argument("--text", type=Path, help="plain text, a paragraph per line")
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32, help="pairs per step")
    parser.add_argument("--steps", type=int, default=4, help="steps per round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, help="cores of both sides. Default: all")
    asked = parser.parse_args()
    limit_threads(asked.threads)
    kind = KINDS[asked.kind]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        paragraphs = [each for each in read_paragraphs(asked.text) if len(each) > 1]
        sentences = [text for each in paragraphs for text in each]
        checkpoint = random_checkpoint(root / "hf", sentences, **kind.model)
        for loss in asked.loss or kind.losses:
            measure(kind, loss, paragraphs[: asked.queries], checkpoint, asked, root / loss)


def candidates(paragraphs: Sequence[Sequence[str]], *, single: bool) -> list[Candidates]:
    """Returns queries with candidates, or with a candidate each of which every second fits."""
    rng, made = np.random.default_rng(0), []
    texts = [" ".join(each[1:]) for each in paragraphs]
    for at, paragraph in enumerate(paragraphs):
        others = rng.choice(len(texts) - 1, rng.integers(*WIDTHS) - 1, replace=False)
        documents = [texts[at], *(texts[other + (other >= at)] for other in others)]
        labels = [1.0] + [0.0] * len(others)
        chosen = slice(at % 2, at % 2 + 1) if single else slice(None)
        made.append(Candidates(paragraph[0], documents[chosen], labels[chosen]))
    return made


def answered(paragraphs: Sequence[Sequence[str]], *, single: bool) -> list[Answered]:
    """Returns queries with their answers."""
    del single
    return [Answered(each[0], " ".join(each[1:])) for each in paragraphs]


def measure(
    kind: Kind,
    loss: str,
    paragraphs: Sequence[Sequence[str]],
    checkpoint: Path,
    asked: argparse.Namespace,
    root: Path,
) -> None:
    """Times both sides with a loss."""
    root.mkdir()
    rows = kind.rows(paragraphs, single=loss == "bce")
    tables = {"train": rows, "dev": kind.rows(paragraphs[:16], single=False)}
    for name, table in tables.items():
        lines = (json.dumps(row._asdict()) + "\n" for row in table)
        (root / f"{name}.jsonl").write_text("".join(lines))
    mean = sum(len(row.documents) for row in rows) / len(rows)
    batch = max(1, round(asked.batch / mean))
    values = {
        "seed": 1,
        "run_dir": str(root / "tuned"),
        "finetune": {
            "init_from": str(checkpoint),
            "task": kind.task(loss, root),
            "epochs": 1000,
            "batch_size": batch,
            "max_length": MAX_LENGTH,
            "optimizer": {"learning_rate": RATE, "warmup_fraction": WARMUP},
        },
    }
    facts = {"loss": loss, "rows": len(rows), "batch_size": batch, "candidates": round(mean, 2)}
    compare_training(
        f"search_rate.{asked.kind}",
        values,
        kind.peer(loss, checkpoint, rows, batch_size=batch, seed=1),
        facts | {"threads": asked.threads},
        unit="pairs/s" if loss == "bce" else "queries/s",
        steps=asked.steps,
        rounds=asked.rounds,
    )


def rerank_task(loss: str, directory: Path) -> dict[str, Any]:
    """Returns our settings of a reranker."""
    files = {role: str(directory / f"{role}.jsonl") for role in ("train", "dev")}
    columns = {"query": "query", "document": "documents", "label": "labels"}
    return {"kind": "rerank", **files, **columns, "loss": {"kind": loss}}


class RerankPeer(PeerTraining):
    """sentence-transformers' model and loss of a cross-encoder."""

    def __init__(
        self,
        loss: str,
        checkpoint: Path,
        rows: Sequence[Candidates],
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        import torch
        from sentence_transformers import CrossEncoder
        from sentence_transformers.cross_encoder import losses

        torch.manual_seed(seed)
        model = CrossEncoder(str(checkpoint), num_labels=1, max_length=MAX_LENGTH, device="cpu")
        kinds: Mapping[str, Any] = {
            "bce": losses.BinaryCrossEntropyLoss,
            "list_net": losses.ListNetLoss,
            "lambda": losses.LambdaLoss,
        }
        super().__init__(model, kinds[loss](model), rows, batch_size=batch_size, seed=seed)
        self.single = loss == "bce"

    def collate(self, chosen: Sequence[Candidates]) -> tuple[Any, Any]:
        """Returns the texts, which the loss itself encodes, and the labels."""
        import torch

        queries = [row.query for row in chosen]
        if self.single:
            labels = torch.tensor([row.labels[0] for row in chosen])
            return [queries, [row.documents[0] for row in chosen]], labels
        return (
            [queries, [row.documents for row in chosen]],
            [torch.tensor(row.labels) for row in chosen],
        )


def sparse_task(loss: str, directory: Path) -> dict[str, Any]:
    """Returns our settings of a sparse encoder."""
    files = {role: str(directory / f"{role}.jsonl") for role in ("train", "dev")}
    columns = {"anchor": "query", "positive": "document"}
    return {"kind": "sparse", **files, **columns, "loss": {"kind": loss}}


class SparsePeer(PeerTraining):
    """sentence-transformers' model and loss of a sparse encoder."""

    def __init__(
        self,
        loss: str,
        checkpoint: Path,
        rows: Sequence[Answered],
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        import torch
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder import losses

        assert loss == "info_nce"
        torch.manual_seed(seed)
        model = SparseEncoder(str(checkpoint), device="cpu")
        model.max_seq_length = MAX_LENGTH
        parts = losses.SpladeLoss(
            model,
            losses.SparseMultipleNegativesRankingLoss(model),
            document_regularizer_weight=3e-5,
            query_regularizer_weight=5e-5,
        )

        def total(features: Any, labels: Any) -> Any:
            return sum(parts(features, labels).values())

        super().__init__(model, total, rows, batch_size=batch_size, seed=seed)

    def collate(self, chosen: Sequence[Answered]) -> tuple[Any, Any]:
        """Returns the inputs of both columns."""
        return [self.model.preprocess([row[at] for row in chosen]) for at in (0, 1)], None


KINDS: Final[Mapping[str, Kind]] = {
    "rerank": Kind(("bce", "list_net"), candidates, rerank_task, RerankPeer),
    # The vocabulary is as large as BERT's.
    "sparse": Kind(
        ("info_nce",),
        answered,
        sparse_task,
        SparsePeer,
        {"kind": "BertForMaskedLM", "unused": 22517},
    ),
}


if __name__ == "__main__":
    glibc.with_large_pages("benchmarks.search_rate")
    main()
