"""THE table of accelerators: what one chip is, does and is called.

Where a figure is published for a chip, it is here as published; how JAX and libtpu cut a chip into
devices follows from `devices_per_chip`. Bandwidths are bytes per second in one direction.

Sources, named per row by the keys of `SOURCES`. A clock that no page states is the published peak
divided by the products per cycle of the chip's matrix units; compiling a large product for each
generation with libtpu 0.0.51 gives 70 to 98% of those products per cycle (docs/planning.md).
"""

from typing import Any, Final

from bert_jax.parallel.accelerator import Accelerator, Quota

GIB: Final = 2**30

SOURCES: Final[dict[str, str]] = {
    "v2": "https://docs.cloud.google.com/tpu/docs/v2",
    "v3": "https://docs.cloud.google.com/tpu/docs/v3",
    "v4": "https://docs.cloud.google.com/tpu/docs/v4",
    "v5e": "https://docs.cloud.google.com/tpu/docs/v5e",
    "v5p": "https://docs.cloud.google.com/tpu/docs/v5p",
    "v6e": "https://docs.cloud.google.com/tpu/docs/v6e",
    "v7x": "https://docs.cloud.google.com/tpu/docs/tpu7x",
    # Clock, memory bandwidth and links of v2 and v3.
    "cacm": "https://doi.org/10.1145/3360307",
    # The same of v4, and links of v3, table 4.
    "v4-paper": "https://arxiv.org/abs/2304.01433",
    # Links of v5e to v6e, the data-centre network per host.
    "scaling-book": "https://jax-ml.github.io/scaling-book/tpus",
    "runtimes": "https://docs.cloud.google.com/tpu/docs/runtimes",
    # Zones, GKE's selectors and the names of quotas change; read 2026-11.
    "zones": "https://docs.cloud.google.com/tpu/docs/regions-zones",
    "gke": "https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus",
    "quotas": "https://docs.cloud.google.com/tpu/docs/quota",
    # Ids as the service's own refusals name them; v3's by the pattern of v2's and v4's.
    "quota-ids": "https://github.com/skypilot-org/skypilot/blob/master/sky/backends/"
    "cloud_vm_ray_backend.py, https://github.com/marin-community/marin/issues/87",
}


def _quota(version: str, kind: str = "", *, per_chip: int, smallest: int = 1) -> Quota:
    """Returns a quota by the pattern of all ids; one machine of v2 and v3 has another one."""
    ending = f"{kind}PerProjectPerZoneForTPUAPI"
    ids = (f"TPU{version}{ending}", f"TPU{version}Preemptible{ending}")
    return Quota(*ids, per_chip=per_chip, smallest=smallest)


_SQUARES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL_SQUARES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_CUBES = (
    *((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8)),
    *((8, 8, 12), (8, 8, 16), (8, 16, 16), (16, 16, 16)),
)
_BASE_RUNTIME = "tpu-ubuntu2204-base"

ACCELERATORS: Final[dict[str, Accelerator]] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="v2",
            device_kinds=("TPU v2",),
            devices_per_chip=2,
            count_unit=0.5,
            runtime_version=_BASE_RUNTIME,
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
            sources=("v2", "cacm", "runtimes", "zones", "quotas", "quota-ids"),
        ),
        Accelerator(
            name="v3",
            device_kinds=("TPU v3",),
            devices_per_chip=2,
            count_unit=0.5,
            runtime_version=_BASE_RUNTIME,
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
            sources=(
                *("v3", "cacm", "v4-paper", "scaling-book", "runtimes", "zones", "gke"),
                *("quotas", "quota-ids"),
            ),
        ),
        Accelerator(
            name="v4",
            device_kinds=("TPU v4",),
            count_unit=0.5,
            runtime_version=_BASE_RUNTIME,
            composes_int32=True,
            kernels=True,
            megacore=True,
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
            sources=(
                *("v4", "v4-paper", "scaling-book", "runtimes", "zones", "gke"),
                *("quotas", "quota-ids"),
            ),
        ),
        Accelerator(
            name="v5e",
            aliases=("v5litepod", "v5lite", "v5-lite"),
            device_kinds=("TPU v5 lite", "TPU v5e"),
            accelerator_type="v5litepod",
            chips_of_one_host=8,
            runtime_version="v2-alpha-tpuv5-lite",
            kernels=True,
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
            sources=("v5e", "scaling-book", "runtimes", "zones", "gke", "quotas"),
        ),
        Accelerator(
            name="v5p",
            aliases=("v5",),
            device_kinds=("TPU v5", "TPU v5p"),
            count_unit=0.5,
            runtime_version="v2-alpha-tpuv5",
            kernels=True,
            megacore=True,
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
            sources=("v5p", "scaling-book", "runtimes", "zones", "gke", "quotas"),
        ),
        Accelerator(
            name="v6e",
            aliases=("trillium", "v6lite"),
            device_kinds=("TPU v6 lite", "TPU v6e"),
            chips_of_one_host=8,
            runtime_version="v2-alpha-tpuv6e",
            kernels=True,
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
            quotas=(_quota("V6E", per_chip=1),),
            sources=("v6e", "scaling-book", "runtimes", "zones", "gke", "quotas"),
        ),
        Accelerator(
            name="v7x",
            aliases=("tpu7x", "v7", "ironwood"),
            device_kinds=("TPU7x", "TPU v7x"),
            devices_per_chip=2,
            count_unit=0.5,
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
            sources=("v7x", "zones", "gke"),
        ),
    )
}

# Dense bf16 products, FLOP/s, of NVIDIA's data sheets (without sparsity).
_GPU_PEAK_FLOPS: Final[dict[str, float]] = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}
_DEVICE_PEAK_FLOPS: Final[dict[str, float]] = _GPU_PEAK_FLOPS | {
    kind: accelerator.peak_flops["bfloat16"] / accelerator.devices_per_chip
    for accelerator in ACCELERATORS.values()
    for kind in accelerator.device_kinds
}


def takes_kernels(device: Any) -> bool:
    """Returns whether our Pallas kernels run on a device."""
    kinds = (each.device_kinds for each in ACCELERATORS.values() if each.kernels)
    return any(device.device_kind in each for each in kinds)


def cores(device: Any) -> int:
    """Returns how many cores a device has, which share the grid of a kernel."""
    kinds = (each.device_kinds for each in ACCELERATORS.values() if each.megacore)
    return 2 if any(device.device_kind in each for each in kinds) else 1


def composes_int32(device: Any) -> bool:
    """Returns whether a device makes a product of two int32 out of other operations."""
    kinds = (each.device_kinds for each in ACCELERATORS.values() if each.composes_int32)
    return any(device.device_kind in each for each in kinds)


def peak_flops(device: Any) -> float | None:
    """Returns a device's peak bf16 FLOP/s, or None where no honest figure exists (CPUs)."""
    return _DEVICE_PEAK_FLOPS.get(device.device_kind)
