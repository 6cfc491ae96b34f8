"""Settings of the optimizers and their schedules, where reading them does not import JAX."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pydantic

from bert_jax.section import Section


class Stretch(NamedTuple):
    """A stretch of steps under one warm-up and decay."""

    steps: int
    peak: float
    warmup_steps: int


class OptimizerSection(Section):
    """The optimizer and its constants. The defaults are the release's."""

    name: Literal["adamw", "lamb"] = "adamw"
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    warmup_steps: int = pydantic.Field(default=0, ge=0)
    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    beta2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    eps: float = pydantic.Field(default=1e-6, gt=0)
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    bias_correction: bool = False
    clip_norm: float | None = pydantic.Field(default=1.0, gt=0)


class FinetuneOptimizerSection(Section):
    """How a pretrained model is changed. The constants are BERT's but for bias correction.

    The release fine-tunes without bias correction, which makes some seeds fail on small data
    (arXiv 2006.05987); `bias_correction=False` is its way.
    """

    learning_rate: float = pydantic.Field(default=5e-5, gt=0)  # the peak, of the heads
    schedule: Literal["linear", "slanted_triangular", "constant"] = "linear"
    # Of all steps, with "linear" and "constant"; rounded up to whole steps.
    warmup_fraction: float = pydantic.Field(default=0.1, ge=0, le=1)
    # With "slanted_triangular": the rise's part of all steps, and peak over lowest rate.
    cut_fraction: float = pydantic.Field(default=0.1, ge=0, lt=1)
    ratio: float = pydantic.Field(default=32.0, ge=1)
    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    beta2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    eps: float = pydantic.Field(default=1e-6, gt=0)
    weight_decay: float = pydantic.Field(default=0.01, ge=0)
    bias_correction: bool = True
    clip_norm: float | None = pydantic.Field(default=1.0, gt=0)
    # The rate of a layer over that of the layer above; the heads and the pooler have the full
    # rate, the topmost layer the first factor (after arXiv 1905.05583).
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)
    # "embeddings", "encoder", "pooler", "layers.N", "layers.N-M" (from 0, both included).
    freeze: tuple[str, ...] = ()
    # Epochs from one thawed unit to the next, from the top (arXiv 1801.06146, section 3.3).
    unfreeze_every: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _something_to_thaw(self) -> FinetuneOptimizerSection:
        if self.unfreeze_every is not None and "encoder" in self.freeze:
            raise ValueError(
                f"unfreeze_every: found {self.unfreeze_every}, allowed: null, since freeze has "
                '"encoder" and nothing is left to thaw'
            )
        return self
