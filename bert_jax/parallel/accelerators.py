"""The only table of accelerators: memory, speed and names of each TPU generation.

All values are published values per chip. Bandwidths are bytes per second in one direction.

Sources, in addition to each generation's page at https://docs.cloud.google.com/tpu/docs:

- clock, memory bandwidth and links of v2 and v3: https://doi.org/10.1145/3360307
- clock, memory bandwidth and links of v4, and links of v3: table 4 of
  https://arxiv.org/abs/2304.01433
- links of v5e to v6e, and the data-centre network: https://jax-ml.github.io/scaling-book/tpus
- runtimes, zones and names of quotas: the pages ``runtimes``, ``regions-zones`` and ``quota`` of
  the TPU documentation, read 2026-11
- GKE's selectors: https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
- types of disks: the page ``attach-durable-block-storage`` of the TPU documentation, read 2026-11
- ids of quotas, from the service's error messages:
  https://github.com/skypilot-org/skypilot/blob/master/sky/backends/cloud_vm_ray_backend.py,
  https://github.com/marin-community/marin/issues/87. The id of v3 follows the pattern of v2 and v4.

If no page states the clock, we compute it: published peak FLOP/s divided by the FLOPs per cycle of
the matrix units. Large matrix products compiled with libtpu 0.0.50.1 reach 70 to 98% of the peak
(docs/results/planning.md).
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Final

MIB: Final = 2**20
GIB: Final = 2**30


@dataclasses.dataclass(frozen=True)
class Quota:
    """A project's quota of one generation in a zone, with ids of the Cloud Quotas API."""

    on_demand: str  # id of the quota of on-demand chips
    spot: str  # id of the quota of spot chips
    per_chip: int  # units per chip: 2 if the quota counts TensorCores
    smallest: int = 1  # smallest slice under this quota, in chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One generation of TPU, per chip."""

    name: str  # name in settings and messages: ``v5e``
    aliases: tuple[str, ...] = ()  # other spellings, lower case
    device_kinds: tuple[str, ...]  # JAX's names of the devices
    devices_per_chip: int = 1  # JAX devices, which share the chip's memory and FLOP/s
    # Chips per host in a slice with several hosts. An 8-chip machine of v5e or v6e counts as two
    # hosts, each with half of the network cards.
    chips_per_host: int = 4
    chips_of_one_host: int = 4  # largest slice with one host in the Cloud TPU API
    # Chips per unit in an accelerator type such as ``v4-32``: 0.5 if the type counts TensorCores
    count_unit: float = 0.5
    accelerator_type: str | None = None  # Cloud's spelling, if it differs from the name
    # Runtime for the Cloud TPU API; None if the API lacks the generation
    runtime_version: str | None = "tpu-ubuntu2204-base"
    libtpu_name: str | None = None  # libtpu's spelling, if it differs from the name
    megacore: bool = False  # whether libtpu needs an option to make a chip one device
    # Whether our Pallas kernels compile for it. They need bfloat16 matrix products.
    kernels: bool = False
    # Whether plans read cycles from schedules, because the compiler's `estimated_cycles` mislead
    judged_by_schedule: bool = False
    # Whether the vector unit lacks int32 multiplication, which then takes twenty operations
    composes_int32: bool = False
    # Whether the vector unit computes in bfloat16, with twice the elements of float32
    computes_bfloat16: bool = False
    vmem_bytes: int | None = None  # bytes of a core's VMEM, where our kernels run
    hbm_bytes: int  # bytes of memory
    hbm_bandwidth: float  # bytes per second
    # Dense FLOP/s by dtype; a product and a sum are two operations
    peak_flops: Mapping[str, float]
    clock_hz: float  # clock of the compiler's `estimated_cycles`
    ici_links: int  # links to neighbours, two per dimension of the torus
    ici_bandwidth: float  # bytes per second of one link, one direction
    # Smallest length of an axis that forms a ring. In 3D, every multiple also forms a ring.
    wraps: int
    dcn_bandwidth: float  # bytes per second of a host's network cards, one direction
    shapes: tuple[tuple[int, ...], ...]  # available slices, in chips, smallest first
    # Zones of Cloud's published list; `bert-jax submit` also queries the API
    zones: tuple[str, ...]
    gke_slice: str | None  # GKE's node selector for slices with several hosts, or None
    gke_device: str | None = None  # GKE's node selector for one host, if it differs
    # Whether machines take only Hyperdisk volumes. If not: only Balanced Persistent Disks
    hyperdisk: bool = False
    # Quotas, ordered by `smallest`. The quota of smaller slices has no published name.
    quotas: tuple[Quota, ...] = ()

    @property
    def device_hbm_bytes(self) -> int:
        """Bytes of memory of one JAX device."""
        return self.hbm_bytes // self.devices_per_chip

    @property
    def dimensions(self) -> int:
        """Dimensions of the torus that joins the chips."""
        return self.ici_links // 2

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes per cycle between one JAX device and its HBM."""
        return self.hbm_bandwidth / self.devices_per_chip / self.clock_hz

    def count(self, shape: tuple[int, ...]) -> int:
        """Returns the number in the accelerator type of a slice, such as 32 in ``v4-32``."""
        return round(math.prod(shape) / self.count_unit)

    def quota(self, chips: int) -> Quota | None:
        """Returns the quota for a slice of `chips` chips, or None if its name is unknown."""
        return next((q for q in reversed(self.quotas) if q.smallest <= chips), None)


def _quota(version: str, kind: str = "", *, per_chip: int, smallest: int = 1) -> Quota:
    """Returns a quota whose ids follow the common pattern."""
    ending = f"{kind}PerProjectPerZoneForTPUAPI"
    ids = (f"TPU{version}{ending}", f"TPU{version}Preemptible{ending}")
    return Quota(*ids, per_chip=per_chip, smallest=smallest)


_SQUARES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL_SQUARES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBES = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)),
    *((8, 8, 12), (8, 8, 16), (8, 16, 16), (16, 16, 16)),
)
ACCELERATORS: Final[dict[str, Accelerator]] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="v2",
            device_kinds=("TPU v2",),
            devices_per_chip=2,
            composes_int32=True,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=700e9,
            peak_flops={"bfloat16": 46e12},
            clock_hz=0.70e9,
            ici_links=4,
            ici_bandwidth=62e9,
            wraps=16,
            dcn_bandwidth=25e9,
            shapes=_SQUARES,
            zones=(
                *("us-central1-a", "us-central1-b", "us-central1-c"),
                *("europe-west4-a", "asia-east1-c"),
            ),
            gke_slice=None,
            quotas=(_quota("V2s", "Pod", per_chip=2, smallest=8),),
        ),
        Accelerator(
            name="v3",
            device_kinds=("TPU v3",),
            devices_per_chip=2,
            composes_int32=True,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=900e9,
            peak_flops={"bfloat16": 123e12},
            clock_hz=0.94e9,
            ici_links=4,
            ici_bandwidth=70e9,
            wraps=32,
            dcn_bandwidth=25e9,
            shapes=(*_SQUARES, (16, 32), (32, 32)),
            zones=("us-central1-a", "us-central1-b", "europe-west4-a"),
            gke_slice="tpu-v3-slice",
            gke_device="tpu-v3-device",
            quotas=(_quota("V3s", "Pod", per_chip=2, smallest=8),),
        ),
        Accelerator(
            name="v4",
            device_kinds=("TPU v4",),
            composes_int32=True,
            kernels=True,
            megacore=True,
            vmem_bytes=16 * MIB,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1200e9,
            peak_flops={"bfloat16": 275e12, "int8": 275e12},
            clock_hz=1.05e9,
            ici_links=6,
            ici_bandwidth=50e9,
            wraps=4,
            dcn_bandwidth=25e9,
            shapes=_CUBES,
            zones=("us-central2-b",),
            gke_slice="tpu-v4-podslice",
            quotas=(_quota("V4s", "Pod", per_chip=2),),
        ),
        Accelerator(
            name="v5e",
            aliases=("v5litepod", "v5lite", "v5-lite"),
            device_kinds=("TPU v5 lite", "TPU v5e"),
            accelerator_type="v5litepod",
            count_unit=1.0,
            chips_of_one_host=8,
            runtime_version="v2-alpha-tpuv5-lite",
            kernels=True,
            vmem_bytes=128 * MIB,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=819e9,
            peak_flops={"bfloat16": 197e12, "int8": 393e12},
            clock_hz=1.50e9,
            ici_links=4,
            ici_bandwidth=50e9,
            wraps=16,
            dcn_bandwidth=12.5e9,
            shapes=_SMALL_SQUARES,
            zones=(
                *("us-central1-a", "us-east1-c", "us-east5-a", "us-east5-b", "us-east5-c"),
                *("us-south1-a", "us-west1-c", "us-west4-a", "us-west4-b"),
                *("europe-west4-a", "europe-west4-b", "asia-southeast1-b"),
            ),
            gke_slice="tpu-v5-lite-podslice",
            quotas=(
                _quota("V5s", "LitepodServing", per_chip=1),
                _quota("V5s", "Litepod", per_chip=1, smallest=16),
            ),
        ),
        Accelerator(
            name="v5p",
            aliases=("v5",),
            device_kinds=("TPU v5", "TPU v5p"),
            runtime_version="v2-alpha-tpuv5",
            kernels=True,
            megacore=True,
            vmem_bytes=64 * MIB,
            hbm_bytes=95 * GIB,
            hbm_bandwidth=2765e9,
            peak_flops={"bfloat16": 459e12, "int8": 918e12},
            clock_hz=1.75e9,
            ici_links=6,
            ici_bandwidth=100e9,
            wraps=4,
            dcn_bandwidth=25e9,
            shapes=(*_CUBES, (16, 16, 24)),
            zones=(
                *("us-central1-a", "us-east5-a", "us-east5-b", "us-east5-c", "us-south1-a"),
                "europe-west4-b",
            ),
            gke_slice="tpu-v5p-slice",
            quotas=(_quota("V5P", per_chip=2),),
        ),
        Accelerator(
            name="v6e",
            aliases=("trillium", "v6lite"),
            device_kinds=("TPU v6 lite", "TPU v6e"),
            count_unit=1.0,
            chips_of_one_host=8,
            runtime_version="v2-alpha-tpuv6e",
            kernels=True,
            judged_by_schedule=True,
            computes_bfloat16=True,
            vmem_bytes=128 * MIB,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1638e9,
            peak_flops={"bfloat16": 918e12, "int8": 1836e12},
            clock_hz=1.75e9,
            ici_links=4,
            ici_bandwidth=100e9,
            wraps=16,
            dcn_bandwidth=50e9,
            shapes=_SMALL_SQUARES,
            zones=(
                *("us-central1-b", "us-east1-d", "us-east4-a", "us-east4-b", "us-east5-a"),
                *("us-east5-b", "us-east5-c", "us-west1-c", "southamerica-west1-a"),
                *("us-south1-ai1b", "europe-west4-a", "asia-northeast1-b"),
            ),
            gke_slice="tpu-v6e-slice",
            hyperdisk=True,
            quotas=(_quota("V6E", per_chip=1),),
        ),
        Accelerator(
            name="v7x",
            aliases=("tpu7x", "v7", "ironwood"),
            device_kinds=("TPU7x", "TPU v7x"),
            devices_per_chip=2,
            accelerator_type="tpu7x",
            runtime_version=None,
            libtpu_name="tpu7x",
            hbm_bytes=192 * GIB,
            hbm_bandwidth=7380e9,
            peak_flops={"bfloat16": 2307e12, "float8": 4614e12},
            clock_hz=2.20e9,
            ici_links=6,
            ici_bandwidth=100e9,
            wraps=4,
            dcn_bandwidth=50e9,
            shapes=_CUBES,
            zones=("us-central1-c", "us-central1-ai1a"),
            gke_slice="tpu7x",
            hyperdisk=True,
        ),
    )
}

# Dense bf16 FLOP/s from NVIDIA's data sheets, without sparsity.
_GPU_PEAK_FLOPS: Final[dict[str, float]] = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def accelerator_of(device: Any) -> Accelerator | None:
    """Returns the generation of a JAX device, or None if the table lacks it."""
    found = (each for each in ACCELERATORS.values() if device.device_kind in each.device_kinds)
    return next(found, None)


def takes_kernels(device: Any) -> bool:
    """Returns whether our Pallas kernels run on a device."""
    found = accelerator_of(device)
    return found is not None and found.kernels


def takes_cudnn_attention(device: Any) -> bool:
    """Returns whether cuDNN's attention runs on a device: NVIDIA GPUs from Ampere on."""
    # "9.0" on an H100. Another vendor's GPU has no such number.
    found = re.fullmatch(r"(\d+)\.\d+", getattr(device, "compute_capability", ""))
    return device.platform == "gpu" and found is not None and int(found[1]) >= 8


def cores(device: Any) -> int:
    """Returns the number of a device's cores, which share the grid of a kernel."""
    found = accelerator_of(device)
    return 2 if found is not None and found.megacore else 1


def vmem_bytes(device: Any) -> int | None:
    """Returns the bytes of a core's VMEM, or None if our kernels do not run on the device."""
    found = accelerator_of(device)
    return None if found is None else found.vmem_bytes


def composes_int32(device: Any) -> bool:
    """Returns whether a device emulates int32 multiplication by other operations."""
    found = accelerator_of(device)
    return found is not None and found.composes_int32


def computes_bfloat16(device: Any) -> bool:
    """Returns whether a device's vector unit computes in bfloat16."""
    found = accelerator_of(device)
    return found is not None and found.computes_bfloat16


def peak_flops(device: Any) -> float | None:
    """Returns a device's peak bf16 FLOP/s, or None if it is unknown, as for CPUs."""
    if (found := accelerator_of(device)) is not None:
        return found.peak_flops["bfloat16"] / found.devices_per_chip
    return _GPU_PEAK_FLOPS.get(device.device_kind)
