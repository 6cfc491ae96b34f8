"""Settings of the optimizers and their schedules. Needs no JAX."""

from typing import Literal, NamedTuple

import pydantic

from bert_jax.section import Section


class ScheduleSegment(NamedTuple):
    """Consecutive steps under one warm-up and decay."""

    steps: int
    peak: float  # learning rate
    warmup_steps: int


class AdamSection(Section):
    """Adam's constants, with the defaults of google-research/bert."""

    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of squared gradients."""
    eps: float = pydantic.Field(default=1e-6, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled; biases and LayerNorm have none."""
    bias_correction: bool = False
    """Whether moments are corrected for their start at zero. google-research/bert does not."""
    clip_norm: float | None = pydantic.Field(default=1.0, gt=0)
    """The largest global norm of gradients; longer ones are scaled down. None: no limit."""


class OptimizerSection(AdamSection):
    """The optimizer of pretraining."""

    name: Literal["adamw", "lamb"] = "adamw"
    """LAMB is for batches of thousands of rows (arXiv 1904.00962)."""
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    """The peak, after warm-up; it falls linearly to 0."""
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    """Steps in which the rate rises linearly from 0."""


class FinetuneOptimizerSection(AdamSection):
    """The optimizer of fine-tuning: Adam with bias correction, rates by layer, freezing.

    google-research/bert fine-tunes without bias correction, which makes some seeds fail on small
    data (arXiv 2006.05987); `bias_correction: false` reproduces it.
    """

    learning_rate: float = pydantic.Field(default=5e-5, gt=0)
    """The peak, of the heads."""
    schedule: Literal["linear", "constant"] = "linear"
    """After warm-up the rate falls linearly to 0, or stays at the peak."""
    warmup_fraction: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Share of the steps in which the rate rises, rounded up."""
    bias_correction: bool = True
    """False is google-research/bert's Adam."""
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Ratio of a layer's rate to the rate of the layer above. Heads and pooler have the full rate,
    the top layer the first factor (after arXiv 1905.05583)."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: `embeddings`, `encoder`, `pooler`, `layers.N`, `layers.N-M` (from
    0, both included)."""
