"""Training with sentence-transformers, the peer of `benchmarks.sentence_embeddings`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.sentence_pairs import Pair

# Settings of both sides.
SCALE: Final = 20.0  # 1/temperature, the default of both sides
MAX_LENGTH: Final = 128
RATE: Final = 2e-5
WARMUP: Final = 0.1


class Peer:
    """sentence-transformers' model, tokenizer and loss."""

    def __init__(
        self, checkpoint: Path, pairs: Sequence[Pair], *, batch_size: int, seed: int
    ) -> None:
        import sentence_transformers
        import torch
        from sentence_transformers.sentence_transformer import losses

        torch.manual_seed(seed)
        self.model = sentence_transformers.SentenceTransformer(str(checkpoint), device="cpu")
        self.model.max_seq_length = MAX_LENGTH
        scored = pairs[0].score is not None
        kind: Any = losses.CoSENTLoss if scored else losses.MultipleNegativesRankingLoss
        self.loss = kind(self.model, scale=SCALE)
        self.pairs, self.batch_size, self.seed = pairs, batch_size, seed
        self.pieces = self.positions = 0

    @property
    def padding(self) -> float:
        """Share of positions that are padding."""
        return 1 - self.pieces / self.positions

    def steps(self, *, epochs: int) -> Iterator[int]:
        """Runs the training steps and yields each step's number of pairs."""
        import torch

        total = epochs * -(-len(self.pairs) // self.batch_size)
        warmup = max(1, round(WARMUP * total))
        optimizer = torch.optim.AdamW(self._groups(), lr=RATE, eps=1e-6)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min(step / warmup, (total - step) / max(1, total - warmup)),
        )
        rng = np.random.default_rng(self.seed)
        self.model.train()
        for _ in range(epochs):
            order = rng.permutation(len(self.pairs))
            for start in range(0, len(order), self.batch_size):
                chosen = [self.pairs[at] for at in order[start : start + self.batch_size]]
                features, labels = self._collate(chosen)
                self.loss(features, labels).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                yield len(chosen)

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

    def _collate(self, chosen: Sequence[Pair]) -> tuple[list[Any], Any]:
        import torch

        features = [self.model.preprocess([pair[at] for pair in chosen]) for at in (0, 1)]
        for each in features:
            self.positions += each["attention_mask"].numel()
            self.pieces += int(each["attention_mask"].sum())
        if chosen[0].score is None:
            return features, None
        return features, torch.tensor([pair.score for pair in chosen])

    def _groups(self) -> list[dict[str, Any]]:
        named = list(self.model.named_parameters())
        plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
        decayed = [p for name, p in named if not name.endswith("bias") and "LayerNorm" not in name]
        return [
            {"params": decayed, "weight_decay": 0.01},
            {"params": plain, "weight_decay": 0.0},
        ]
