"""Settings of the optimizers and their schedules. Needs no JAX."""

from typing import Literal, NamedTuple

import pydantic

from bert_jax.section import Section


class ScheduleSegment(NamedTuple):
    """Consecutive steps that share one warm-up and decay."""

    steps: int
    peak: float  # highest learning rate
    warmup_steps: int


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

    name: Literal["adamw", "lamb"] = "adamw"
    """LAMB is for batches of thousands of rows (arXiv 1904.00962)."""
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    """Peak learning rate. After warm-up, the rate decays linearly to 0."""
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    """Number of steps during which the rate rises linearly from 0."""


class FinetuneOptimizerSection(AdamSection):
    """The optimizer of fine-tuning: Adam with bias correction, learning rates by layer, freezing.

    google-research/bert has no bias correction. Without it, some seeds fail on small datasets
    (arXiv 2006.05987). To reproduce google-research/bert, set `bias_correction: false`.
    """

    learning_rate: float = pydantic.Field(default=5e-5, gt=0)
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
