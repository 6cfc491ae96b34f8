"""What is known of a generation of TPU; `bert_jax.parallel.accelerators` has the table."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Quota:
    """What a project may have of one generation in a zone, as the Cloud Quotas API calls it."""

    on_demand: str  # the quota's id
    spot: str  # likewise
    per_chip: int  # how much of it a chip takes: 2 where it counts TensorCores
    smallest: int = 1  # chips of the smallest slice that counts towards it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One generation of TPU, per chip."""

    name: str  # ours and the users': ``v5e``
    aliases: tuple[str, ...] = ()  # other spellings of it, lower case
    device_kinds: tuple[str, ...]  # what JAX calls its devices
    # JAX devices that a chip shows as; their figures are the chip's, divided
    devices_per_chip: int = 1
    # Of a slice with more than one host. A machine with 8 v5e or v6e chips is then two hosts with
    # half its network cards each.
    chips_per_host: int = 4
    # Of the largest slice that the Cloud TPU API gives as one host
    chips_of_one_host: int = 4
    # Chips that one count of an accelerator type such as ``v4-32`` stands for: 0.5 where it counts
    # TensorCores
    count_unit: float = 1.0
    accelerator_type: str | None = None  # how Cloud spells it before a count; None: as its name
    # Of the Cloud TPU API; None where only GKE and Compute Engine have it
    runtime_version: str | None
    libtpu_name: str | None = None  # how libtpu spells it in a topology; None: as its name
    megacore: bool = False  # whether libtpu must be told that a chip is one device
    # Whether its matrix units take bfloat16 from Pallas kernels too, and ours have been compiled
    # for it
    kernels: bool = False
    # Whether its vector unit makes a product of two int32 out of twenty other operations
    composes_int32: bool = False
    hbm_bytes: int  # of memory
    hbm_bandwidth: float  # bytes per second
    # Dense products per second by dtype, a product and a sum being two
    peak_flops: Mapping[str, float]
    clock_hz: float  # that `estimated_cycles` of the compiler run at
    ici_links: int  # to neighbours, two per dimension of the torus
    ici_bandwidth: float  # bytes per second of one link, one direction
    wraps: int  # axis length from which a slice's ends are joined (of a multiple of it, in 3D)
    dcn_bandwidth: float  # bytes per second of a host's network cards, one direction
    shapes: tuple[tuple[int, ...], ...]  # slices that can be had, in chips, smallest first
    # Where Cloud offers it, its own list; `bert-jax submit` asks the API as well
    zones: tuple[str, ...]
    gke_slice: str | None  # GKE's selector of slices with several hosts; None: not on GKE
    gke_device: str | None = None  # the same of one host, where it is another
    # By the smallest slice that counts towards each, ascending. Of a slice that is below all of
    # them no name is published: then only a request tells.
    quotas: tuple[Quota, ...] = ()
    sources: tuple[str, ...]  # keys of `SOURCES` of the table

    @property
    def device_hbm_bytes(self) -> int:
        """Bytes of memory of one JAX device."""
        return self.hbm_bytes // self.devices_per_chip

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
