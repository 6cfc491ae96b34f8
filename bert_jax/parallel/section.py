"""Settings of the mesh, where reading them does not import JAX."""

from __future__ import annotations

from typing import Literal

import pydantic

from bert_jax.section import Section

Platform = Literal["auto", "cpu", "gpu", "tpu"]


class DistributedSection(Section):
    """How several processes find each other. On a Cloud TPU everything is found by itself.

    `timeout_seconds` is for all to come; one that is silent for `silence_seconds` is gone.
    """

    enabled: bool = False
    coordinator_address: str | None = None
    coordinator_port: int = pydantic.Field(default=8482, ge=1, le=65535)
    process_count: int | None = pydantic.Field(default=None, ge=1)
    process_index: int | None = pydantic.Field(default=None, ge=0)
    timeout_seconds: int = pydantic.Field(default=300, ge=1)
    silence_seconds: float = pydantic.Field(default=15.0, ge=3.0)


class MeshSection(Section):
    """Devices and how a run is split over them. One axis may be -1: all devices left over."""

    platform: Platform = "auto"
    data: int = pydantic.Field(default=-1, ge=-1)
    fsdp: int = pydantic.Field(default=1, ge=-1)
    tensor: int = pydantic.Field(default=1, ge=-1)
    slices: int = pydantic.Field(default=1, ge=1)
    simulated_devices: int | None = pydantic.Field(default=None, ge=1, le=512)
    distributed: DistributedSection = DistributedSection()
