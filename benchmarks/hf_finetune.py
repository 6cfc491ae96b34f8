"""Fine-tunes a sequence classifier with Hugging Face's PyTorch model, for comparison with ours.

    python -m benchmarks.hf_finetune CHECKPOINT mrpc shared/glue/MRPC --seed 1

Data, batch size, learning rate, epochs, length, warm-up, decay and clipping are those of
`configs/finetune`. Examples are padded to the longest of their batch, as in transformers' own
example. Prints a line of JSON: the dev metrics and the training examples per second.
"""

import argparse
import csv
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np


class Table(NamedTuple):
    """Columns of a task's texts and labels."""

    first: int
    second: int | None
    label: int
    header: bool


TABLES: Final = {
    "cola": Table(3, None, 1, False),
    "mrpc": Table(3, 4, 0, True),
    "rte": Table(1, 2, -1, True),
    "sst2": Table(0, None, 1, True),
    "stsb": Table(-3, -2, -1, True),
}


class Settings(NamedTuple):
    """Training settings of both sides."""

    batch_size: int = 32
    learning_rate: float = 5e-5
    epochs: int = 3
    max_length: int = 128
    warmup: float = 0.1
    weight_decay: float = 0.01


def main() -> None:
    """Fine-tunes and prints the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("task", choices=TABLES)
    parser.add_argument("data", type=Path, help="directory with train.tsv and dev.tsv")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on the first LIMIT examples")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    train = read(arguments.data / "train.tsv", arguments.task)[: arguments.limit]
    dev = read(arguments.data / "dev.tsv", arguments.task)
    peer = Peer(arguments.checkpoint, arguments.task, train, dev, seed=arguments.seed)
    settings = Settings(epochs=arguments.epochs)
    rate = peer.train(settings)
    scores = peer.evaluate(settings)
    facts = {"peer": "hf_torch", "task": arguments.task, "seed": arguments.seed, **scores}
    print(json.dumps({**facts, "examples_per_second": round(rate, 2)}), flush=True)


def read(path: Path, task: str) -> list[tuple[str, str | None, str]]:
    """Returns a file's texts and labels."""
    at = TABLES[task]
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        (row[at.first], None if at.second is None else row[at.second], row[at.label])
        for row in rows[at.header :]
    ]


class Peer:
    """Hugging Face's model, tokenizer and collator for one task's examples."""

    def __init__(
        self,
        checkpoint: Path,
        task: str,
        train: list[tuple[str, str | None, str]],
        dev: list[tuple[str, str | None, str]],
        *,
        seed: int,
    ) -> None:
        import torch
        import transformers

        torch.manual_seed(seed)
        self.seed, self.task = seed, task
        self.pieces = self.positions = 0
        self.regression = task == "stsb"
        self.names = [] if self.regression else sorted({label for _, _, label in train})
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(checkpoint)
        self.model = transformers.BertForSequenceClassification.from_pretrained(
            checkpoint, num_labels=max(1, len(self.names)), dtype=torch.float32
        )
        self.train_set, self.dev_set = train, dev

    def train(self, settings: Settings) -> float:
        """Trains and returns the examples per second of training, without the first batch."""
        steps = self.steps(settings)
        next(steps)
        started = time.perf_counter()
        counted = sum(steps)
        return counted / (time.perf_counter() - started)

    def steps(self, settings: Settings) -> Iterator[int]:
        """Runs the training steps and yields each step's number of examples."""
        import torch

        model = self.model.train()
        batches = -(-len(self.train_set) // settings.batch_size)
        total = batches * settings.epochs
        optimizer = self._optimizer(settings)
        warmup = max(1, math.ceil(settings.warmup * total))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min(step / warmup, (total - step) / max(1, total - warmup)),
        )
        encoded = self._encode(self.train_set, settings.max_length)
        rng = np.random.default_rng(self.seed)
        for _ in range(settings.epochs):
            order = rng.permutation(len(encoded))
            for start in range(0, len(order), settings.batch_size):
                members = order[start : start + settings.batch_size]
                batch = self._collate([encoded[at] for at in members])
                self.positions += batch["attention_mask"].numel()
                self.pieces += int(batch["attention_mask"].sum())
                batch["labels"] = self._labels([self.train_set[at][2] for at in members])
                model(**batch).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                yield len(members)

    def evaluate(self, settings: Settings) -> dict[str, float]:
        """Returns the dev metrics."""
        import torch
        from scipy import stats
        from sklearn import metrics

        self.model.eval()
        encoded = self._encode(self.dev_set, settings.max_length)
        logits = []
        with torch.inference_mode():
            for start in range(0, len(encoded), settings.batch_size):
                batch = self._collate(encoded[start : start + settings.batch_size])
                logits.append(self.model(**batch).logits.numpy())
        found = np.concatenate(logits)
        labels = self._labels([label for _, _, label in self.dev_set]).numpy()
        if self.regression:
            ranks = [stats.rankdata(values) for values in (found[:, 0], labels)]
            return {
                "pearson": float(np.corrcoef(found[:, 0], labels)[0, 1]),
                "spearman": float(np.corrcoef(*ranks)[0, 1]),
            }
        predicted = found.argmax(axis=-1)
        if self.task == "cola":
            return {"matthews": float(metrics.matthews_corrcoef(labels, predicted))}
        scores = {"accuracy": float((predicted == labels).mean())}
        if self.task == "mrpc":
            scores["f1"] = float(metrics.f1_score(labels, predicted))
        return scores

    def _optimizer(self, settings: Settings) -> Any:
        import torch

        named = list(self.model.named_parameters())
        plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
        decayed = [p for name, p in named if not name.endswith("bias") and "LayerNorm" not in name]
        return torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            eps=1e-6,
        )

    def _encode(self, examples: list[tuple[str, str | None, str]], longest: int) -> list[Any]:
        firsts = [first for first, _, _ in examples]
        seconds = [second for _, second, _ in examples]
        texts = (firsts,) if seconds[0] is None else (firsts, seconds)
        found = self.tokenizer(*texts, truncation=True, max_length=longest)
        return [{name: found[name][at] for name in found} for at in range(len(examples))]

    def _collate(self, members: list[Any]) -> dict[str, Any]:
        return dict(self.tokenizer.pad(members, return_tensors="pt"))

    def _labels(self, labels: list[str]) -> Any:
        import torch

        if self.regression:
            return torch.tensor([float(label) for label in labels])
        return torch.tensor([self.names.index(label) for label in labels])


if __name__ == "__main__":
    main()
