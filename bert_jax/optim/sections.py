"""Settings of the optimizers and their schedules, where reading them does not import JAX."""

from __future__ import annotations

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
    beta2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    eps: float = pydantic.Field(default=1e-6, gt=0)
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    bias_correction: bool = False
    clip_norm: float | None = pydantic.Field(default=1.0, gt=0)


class OptimizerSection(AdamSection):
    """The optimizer of pretraining."""

    name: Literal["adamw", "lamb"] = "adamw"
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    warmup_steps: int = pydantic.Field(default=0, ge=0)


class FinetuneOptimizerSection(AdamSection):
    """The optimizer of fine-tuning: Adam with bias correction, rates by layer, freezing.

    google-research/bert fine-tunes without bias correction, which makes some seeds fail on small
    data (arXiv 2006.05987); `bias_correction: false` reproduces it.
    """

    learning_rate: float = pydantic.Field(default=5e-5, gt=0)  # peak, of the heads
    schedule: Literal["linear", "slanted_triangular", "constant"] = "linear"
    # With "linear" and "constant": of all steps, rounded up to whole steps.
    warmup_fraction: float = pydantic.Field(default=0.1, ge=0, le=1)
    # With "slanted_triangular": the share of steps that rise, and peak over lowest rate.
    cut_fraction: float = pydantic.Field(default=0.1, ge=0, lt=1)
    ratio: float = pydantic.Field(default=32.0, ge=1)
    bias_correction: bool = True
    # The rate of a layer over that of the layer above; heads and pooler have the full rate, the
    # top layer the first factor (after arXiv 1905.05583).
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    # "embeddings", "encoder", "pooler", "layers.N", "layers.N-M" (from 0, both included).
    freeze: tuple[str, ...] = ()
    # Epochs between unfreezing one unit and the next, from the top (arXiv 1801.06146, section 3.3).
    unfreeze_every: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _something_to_unfreeze(self) -> FinetuneOptimizerSection:
        if self.unfreeze_every is not None and "encoder" in self.freeze:
            raise ValueError(
                f"unfreeze_every: found {self.unfreeze_every}, allowed: null, since freeze has "
                '"encoder" and nothing is left to unfreeze'
            )
        return self
