"""Training with sentence-transformers, and comparisons with it."""

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.report import interleaved, median_ratio, report
from benchmarks.sentence_pairs import Pair

PACKAGES: Final = ("jax", "flax", "torch", "transformers", "sentence-transformers")
PEER: Final = "sentence_transformers"

# Settings of both sides.
SCALE: Final = 20.0  # 1/temperature, the default of both sides
MAX_LENGTH: Final = 128
RATE: Final = 2e-5
WARMUP: Final = 0.1


def limit_threads(threads: int | None) -> None:
    """Limits the threads of both sides. Call it before JAX starts its CPU client."""
    if threads is None:
        return
    import torch

    torch.set_num_threads(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def compare_training(
    figure: str,
    values: dict[str, Any],
    peer: "PeerTraining",
    facts: dict[str, Any],
    *,
    unit: str = "pairs/s",
    steps: int,
    rounds: int,
) -> None:
    """Times training steps of `bert-jax finetune` with a configuration and of a peer alternately.

    `figure` is the name of the metric, and `facts` what else affects it.
    """
    from benchmarks.finetune import Ours

    ours = Ours(values)
    sides = {"bert_jax": ours.step, PEER: functools.partial(next, peer.steps(epochs=1000))}
    counts: dict[str, list[int]] = {name: [] for name in sides}

    def stretch(name: str) -> None:
        counts[name].append(sum(sides[name]() for _ in range(steps)))

    timed = {name: Timed(functools.partial(stretch, name)) for name in sides}
    seconds = interleaved(timed, rounds=rounds)
    facts |= {"rounds": rounds, "programs": ours.programs}
    report_rates(
        figure,
        unit,
        {name: per_item(seconds[name], counts[name][1:]) for name in sides},
        {name: per_item(timed[name].cpu[1:], counts[name][1:]) for name in sides},
        {"bert_jax": ours.padding, PEER: peer.padding},
        facts | {"compile_seconds": round(ours.compile_seconds, 1)},
    )


class Timed:
    """A function that records the CPU seconds of each call."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self.cpu: list[float] = []

    def __call__(self) -> None:
        """Runs the function."""
        start = time.process_time()
        self._run()
        self.cpu.append(time.process_time() - start)


def per_item(seconds: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Returns the seconds per item of each round."""
    return [taken / count for taken, count in zip(seconds, counts, strict=True)]


def report_rates(
    figure: str,
    unit: str,
    wall: dict[str, list[float]],
    cpu: dict[str, list[float]],
    padding: dict[str, float],
    facts: dict[str, Any],
) -> None:
    """Reports rates and ratios from the seconds per item of each round."""
    for side, taken in wall.items():
        own = {"padding": round(padding[side], 4)} if side in padding else {}
        report(
            *(figure, 1 / statistics.median(taken), unit),
            peer=None if side == "bert_jax" else side,
            packages=PACKAGES,
            per_cpu_second=float(f"{1 / statistics.median(cpu[side]):.4g}"),
            **own,
            **facts,
        )
    for kind, taken in (("wall", wall), ("cpu", cpu)):
        report(
            *(f"{figure}_ratio", median_ratio(taken[PEER], taken["bert_jax"])),
            *("x",),
            peer=PEER,
            packages=PACKAGES,
            seconds=kind,
            **facts,
        )


class PeerTraining:
    """Training steps of a model of sentence-transformers, without its trainer's own work."""

    def __init__(
        self, model: Any, loss: Any, examples: Sequence[Any], *, batch_size: int, seed: int
    ) -> None:
        self.model, self.loss, self.examples = model, loss, examples
        self.batch_size, self.seed = batch_size, seed
        self.pieces = self.positions = 0
        self._preprocess = model.preprocess
        model.preprocess = self._counted  # losses of lists and pairs call it themselves

    def _counted(self, *texts: Any, **options: Any) -> Any:
        found = self._preprocess(*texts, **options)
        self.positions += found["attention_mask"].numel()
        self.pieces += int(found["attention_mask"].sum())
        return found

    def collate(self, chosen: Sequence[Any]) -> tuple[Any, Any]:
        """Returns the arguments of the loss."""
        raise NotImplementedError

    @property
    def padding(self) -> float:
        """Share of positions that are padding."""
        return 1 - self.pieces / self.positions

    def steps(self, *, epochs: int) -> Iterator[int]:
        """Runs the training steps and yields each step's number of examples."""
        import torch

        total = epochs * -(-len(self.examples) // self.batch_size)
        warmup = max(1, round(WARMUP * total))
        optimizer = torch.optim.AdamW(self._groups(), lr=RATE, eps=1e-6)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min(step / warmup, (total - step) / max(1, total - warmup)),
        )
        rng = np.random.default_rng(self.seed)
        self.model.train()
        for _ in range(epochs):
            order = rng.permutation(len(self.examples))
            for start in range(0, len(order), self.batch_size):
                chosen = [self.examples[at] for at in order[start : start + self.batch_size]]
                features, labels = self.collate(chosen)
                self.loss(features, labels).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                yield len(chosen)

    def _groups(self) -> list[dict[str, Any]]:
        named = list(self.model.named_parameters())
        plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
        decayed = [p for name, p in named if not name.endswith("bias") and "LayerNorm" not in name]
        return [
            {"params": decayed, "weight_decay": 0.01},
            {"params": plain, "weight_decay": 0.0},
        ]


class Peer(PeerTraining):
    """sentence-transformers' model, tokenizer and loss of sentence embeddings."""

    def __init__(
        self, checkpoint: Path, pairs: Sequence[Pair], *, batch_size: int, seed: int
    ) -> None:
        import sentence_transformers
        import torch
        from sentence_transformers.sentence_transformer import losses

        torch.manual_seed(seed)
        model = sentence_transformers.SentenceTransformer(str(checkpoint), device="cpu")
        model.max_seq_length = MAX_LENGTH
        scored = pairs[0].score is not None
        kind: Any = losses.CoSENTLoss if scored else losses.MultipleNegativesRankingLoss
        super().__init__(model, kind(model, scale=SCALE), pairs, batch_size=batch_size, seed=seed)

    def spearman(self, pairs: Sequence[Pair]) -> float:
        """Returns the rank correlation of cosines and scores."""
        from scipy import stats

        self.model.eval()
        first, second = (
            self.model.encode([pair[at] for pair in pairs], show_progress_bar=False)
            for at in (0, 1)
        )
        found: Any = stats.spearmanr((first * second).sum(1), [pair.score for pair in pairs])
        return float(found.statistic)

    def collate(self, chosen: Sequence[Pair]) -> tuple[list[Any], Any]:
        """Returns the inputs of both columns, and the scores."""
        import torch

        features = [self.model.preprocess([pair[at] for pair in chosen]) for at in (0, 1)]
        if chosen[0].score is None:
            return features, None
        return features, torch.tensor([pair.score for pair in chosen])
