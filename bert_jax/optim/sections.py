"""Settings of the optimizers and their schedules. Needs no JAX."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeAlias

import pydantic

from bert_jax.errors import SettingError
from bert_jax.section import Section

LearningRate: TypeAlias = Annotated[float, pydantic.Field(gt=0, le=1)]
"""A peak. The optimizers scale updates to about 1, so that rates are far below 1."""

DecayShape: TypeAlias = Literal["linear", "1-sqrt"]


class ScheduleSegment(NamedTuple):
    """Consecutive steps that share one warm-up and decay."""

    steps: int
    peak: float  # highest learning rate
    warmup_steps: int
    decay_steps: int | None = None  # number of last steps, which decay. Default: all steps
    shape: DecayShape = "linear"  # shape of the decay
    warmup_start: int = 0  # step at which the warm-up starts, at most 0

    @property
    def rising_steps(self) -> int:
        """Number of steps during which the rate rises."""
        return max(self.warmup_steps + self.warmup_start, 0)

    def describe(self) -> str:
        """Returns the segment as text: ``"peak 0.001: warm-up 10, constant 70, linear decay 20"``.

        The numbers are steps.
        """
        rising = self.rising_steps
        parts = {"warm-up": rising}
        if self.warmup_start:
            first = self.peak * -self.warmup_start / max(self.warmup_steps, 1)
            parts = {f"warm-up (from {first:.3g})": rising}
        if self.decay_steps is None:
            parts[f"{self.shape} decay"] = self.steps - rising
        else:
            parts["constant"] = self.steps - rising - self.decay_steps
            parts[f"{self.shape} decay"] = self.decay_steps
        shown = ", ".join(f"{name} {steps:,}" for name, steps in parts.items() if steps)
        return f"peak {self.peak:g}: {shown}"


class AdamSection(Section):
    """Adam's hyperparameters, with the defaults of google-research/bert."""

    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Decay rate of the first moment, the mean of gradients."""
    beta2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    """Decay rate of the second moment, the mean of squared gradients."""
    eps: float = pydantic.Field(default=1e-6, gt=0)
    """Constant added to the square root of the second moment."""
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled weight decay. Biases and LayerNorm scales have none."""
    bias_correction: bool = False
    """Whether to correct moments for their start at zero. google-research/bert does not."""
    clip_norm: float | None = pydantic.Field(default=1.0, gt=0)
    """Maximum global norm of the gradients; larger gradients are scaled down. null: no limit."""


class OptimizerSection(AdamSection):
    """The optimizer of pretraining."""

    name: Literal["adamw", "lamb", "stable_adamw", "muon"] = "adamw"
    """`lamb` is for batches of thousands of rows (arXiv 1904.00962). `stable_adamw` lowers the
    learning rate of a parameter whose gradients are far above their second moment (arXiv
    2304.13013); this replaces `clip_norm`, and needs `bias_correction`. `muon` orthogonalizes the
    momentum of the layers' matrices and scales it to a root mean square of 0.2, so AdamW's learning
    rates and weight decay still fit (arXiv 2502.16982); all other parameters use AdamW."""
    learning_rate: LearningRate = 1e-4
    """Peak learning rate."""
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    """Number of steps during which the rate rises linearly from 0."""
    warmup_start: int = pydantic.Field(default=0, le=0)
    """Step at which the run's first warm-up starts. If it is negative, the run starts inside the
    warm-up, with a rate above 0. MLPerf's reference calls it `start_warmup_step`."""
    decay_fraction: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Share of the steps, at the end of the schedule, during which the rate falls to 0. Between
    warm-up and decay the rate is constant (ModernBERT's trapezoid, arXiv 2412.13663, section 3.2).
    0: no decay. null: google-research/bert's line, which falls from step 0 on."""
    decay: DecayShape = "linear"
    """Shape of the decay to 0. After a share p of the decay, the rate is the peak times 1 - p with
    `linear`, and times 1 - sqrt(p) with `1-sqrt` (arXiv 2405.18392, section 4)."""

    @pydantic.model_validator(mode="after")
    def _is_corrected(self) -> OptimizerSection:
        if self.name == "stable_adamw" and not self.bias_correction:
            raise SettingError(
                "optimizer.bias_correction", f"{self.name} needs true", place="bias_correction"
            )
        return self


class FinetuneOptimizerSection(AdamSection):
    """The optimizer of fine-tuning: Adam with bias correction, learning rates by layer, freezing.

    google-research/bert has no bias correction. Without it, some seeds fail on small datasets
    (arXiv 2006.05987). To reproduce google-research/bert, set `bias_correction: false`.
    """

    learning_rate: LearningRate = 5e-5
    """Peak of the heads' learning rate."""
    schedule: Literal["linear", "constant"] = "linear"
    """Learning rate after warm-up: linear decay to 0, or constant at the peak."""
    warmup_fraction: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Fraction of the steps during which the rate rises, rounded up to whole steps."""
    bias_correction: bool = True
    """Whether to correct moments for their start at zero. google-research/bert does not."""
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Ratio of a layer's learning rate to the rate of the layer above (arXiv 1905.05583). The top
    layer's rate is this ratio times `learning_rate`; heads and pooler have the full rate."""
    freeze: tuple[str, ...] = ()
    """Modules that are not trained: `embeddings`, `encoder`, `pooler`, `layers.N`, `layers.N-M`.
    Layers count from 0. A range includes layer M. `encoder` includes the embeddings."""
