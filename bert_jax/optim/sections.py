"""Settings of the optimizers and their schedules. Needs no JAX."""

from typing import Literal, NamedTuple

import pydantic

from bert_jax.section import Section


class ScheduleSegment(NamedTuple):
    """Consecutive steps under one warm-up and decay."""

    steps: int
    peak: float  # highest learning rate
    warmup_steps: int


class AdamSection(Section):
    """Adam's constants, with the defaults of google-research/bert."""

    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Decay rate of the first moment, the mean of gradients."""
    beta2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    """Decay rate of the second moment, the mean of squared gradients."""
    eps: float = pydantic.Field(default=1e-6, gt=0)
    """Number added to the square root of the second moment."""
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled weight decay. Biases and LayerNorm do not decay."""
    bias_correction: bool = False
    """Whether to correct moments for their start at zero. google-research/bert does not."""
    clip_norm: float | None = pydantic.Field(default=1.0, gt=0)
    """Largest global norm of gradients. Larger gradients are scaled down. If null, no limit."""


class OptimizerSection(AdamSection):
    """The optimizer of pretraining."""

    name: Literal["adamw", "lamb"] = "adamw"
    """Name of the optimizer. LAMB is for batches of thousands of rows (arXiv 1904.00962)."""
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    """Peak of the learning rate. After warm-up the rate falls linearly to 0."""
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    """Number of steps in which the rate rises linearly from 0."""


class FinetuneOptimizerSection(AdamSection):
    """The optimizer of fine-tuning: Adam with bias correction, rates by layer, freezing.

    google-research/bert fine-tunes without bias correction, and then some seeds fail on small data
    (arXiv 2006.05987). Use `bias_correction: false` to reproduce its results.
    """

    learning_rate: float = pydantic.Field(default=5e-5, gt=0)
    """Peak of the heads' learning rate."""
    schedule: Literal["linear", "constant"] = "linear"
    """Learning rate after warm-up: linear decay to 0, or constant at the peak."""
    warmup_fraction: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Fraction of the steps in which the rate rises. The number of steps is rounded up."""
    bias_correction: bool = True
    """Whether to correct moments for their start at zero. google-research/bert does not."""
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Ratio of a layer's learning rate to the rate of the layer above. Heads and pooler have the
    full rate, and the top layer has the full rate times this ratio (after arXiv 1905.05583)."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: `embeddings`, `encoder`, `pooler`, `layers.N`, `layers.N-M`. N
    counts from 0, and a range includes both ends."""
