"""What is known of a generation of TPU; `bert_jax.parallel.accelerators` has the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Quota:
    """What a project may have of one generation in a zone, as the Cloud Quotas API calls it.

    Attributes:
        on_demand: the quota's id.
        spot: likewise.
        per_chip: how much of it a chip takes: 2 where it counts TensorCores.
        smallest: chips of the smallest slice that counts towards it.
    """

    on_demand: str
    spot: str
    per_chip: int
    smallest: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One generation of TPU, per chip.

    Attributes:
        name: ours and the users': ``v5e``.
        aliases: other spellings of it, lower case.
        device_kinds: what JAX calls its devices.
        devices_per_chip: JAX devices that a chip shows as; their figures are the chip's, divided.
        chips_per_host: of a slice with more than one host. A machine with 8 v5e or v6e chips is
            then two hosts with half its network cards each.
        count_unit: chips that one count of an accelerator type such as ``v4-32`` stands for: 0.5
            where it counts TensorCores.
        accelerator_type: how Cloud spells the type before the count.
        runtime_version: of the Cloud TPU API; None where only GKE and Compute Engine have it.
        libtpu_name: how libtpu spells the generation in a topology.
        megacore: whether libtpu must be told that a chip is one device.
        kernels: whether its matrix units take bfloat16 from Pallas kernels too, and ours have been
            compiled for it.
        composes_int32: whether its vector unit makes a product of two int32 out of twenty other
            operations.
        hbm_bytes: of memory.
        hbm_bandwidth: bytes per second.
        peak_flops: dense products per second by dtype, a product and a sum being two.
        clock_hz: that `estimated_cycles` of the compiler run at.
        ici_links: to neighbours, two per dimension of the torus.
        ici_bandwidth: bytes per second of one link, one direction.
        wraps: axis length from which a slice's ends are joined (of a multiple of it, in 3D).
        dcn_bandwidth: bytes per second of a host's network cards, one direction.
        shapes: slices that can be had, in chips, smallest first.
        zones: where Cloud offers it, its own list; `bert-jax submit` asks the API as well.
        gke_slice: GKE's selector of slices with several hosts; None: not on GKE.
        gke_device: the same of one host, where it is another.
        quotas: by the smallest slice that counts towards each, ascending. Of a slice that is below
            all of them no name is published: then only a request tells.
        sources: keys of `SOURCES` of the table.
    """

    name: str
    aliases: tuple[str, ...] = ()
    device_kinds: tuple[str, ...]
    devices_per_chip: int = 1
    chips_per_host: int = 4
    count_unit: float = 1.0
    accelerator_type: str
    runtime_version: str | None
    libtpu_name: str
    megacore: bool = False
    kernels: bool = False
    composes_int32: bool = False
    hbm_bytes: int
    hbm_bandwidth: float
    peak_flops: Mapping[str, float]
    clock_hz: float
    ici_links: int
    ici_bandwidth: float
    wraps: int
    dcn_bandwidth: float
    shapes: tuple[tuple[int, ...], ...]
    zones: tuple[str, ...]
    gke_slice: str | None
    gke_device: str | None = None
    quotas: tuple[Quota, ...] = ()
    sources: tuple[str, ...]

    @property
    def dimensions(self) -> int:
        """Of the torus that joins the chips."""
        return self.ici_links // 2

    @property
    def bytes_per_cycle(self) -> float:
        """Through the HBM, of one JAX device."""
        return self.hbm_bandwidth / self.devices_per_chip / self.clock_hz

    def quota(self, chips: int) -> Quota | None:
        """Returns what a slice of so many chips counts towards; None: its name is not known."""
        return next((q for q in reversed(self.quotas) if q.smallest <= chips), None)
