"""The settings of a fine-tuning run."""

from __future__ import annotations

import pydantic

from bert_jax.model.config import Dtype
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.section import PathText, Section
from bert_jax.tasks.registry import TaskSection
from bert_jax.tasks.sweep.grid import SweepSection
from bert_jax.train.sections import BadStepsSection


class FinetuneSection(Section):
    """What to fine-tune, on what, and how long. The defaults are the paper's middle values."""

    init_from: PathText  # a run directory of `pretrain`, `import` or `finetune`
    task: TaskSection = pydantic.Field(discriminator="kind")
    split_seed: int = pydantic.Field(default=0, ge=0)  # of a dev set that has to be split off
    max_length: int = pydantic.Field(default=128, ge=8)
    batch_size: int = pydantic.Field(default=32, ge=1)
    accumulation: int = pydantic.Field(default=1, ge=1)
    epochs: int = pydantic.Field(default=3, ge=1)
    optimizer: FinetuneOptimizerSection = FinetuneOptimizerSection()
    dtype: Dtype | None = None  # None: the checkpoint's
    dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)  # None: the checkpoint's
    evaluations_per_epoch: int = pydantic.Field(default=1, ge=1)
    patience: int | None = pydantic.Field(default=None, ge=1)  # evaluations without a better one
    # Whose attention heads the report shows; None: of the first dev row that fits a page.
    report_sentence: str | None = pydantic.Field(default=None, min_length=1)
    sweep: SweepSection | None = None
    bad_steps: BadStepsSection = BadStepsSection()
    checksum_every: int | None = pydantic.Field(default=1000, ge=1)  # steps; None: never
    log_every: int = pydantic.Field(default=20, ge=1)
    # Which training rows each step consumes, in <run>/examples/: about 7 bytes a row.
    example_log: bool = False

    def evaluate_every(self, steps_per_epoch: int) -> int:
        """Returns the steps from one evaluation to the next."""
        return max(1, steps_per_epoch // self.evaluations_per_epoch)
