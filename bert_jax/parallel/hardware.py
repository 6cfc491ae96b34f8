"""What one device can do at its best, for the share of it that a run uses (MFU)."""

from __future__ import annotations

from typing import Any, Final

# Dense bf16 products, FLOP/s per JAX device. TPU v2 and v3 show two devices a chip.
# Cloud TPU system architecture pages and NVIDIA's data sheets (dense, without sparsity).
PEAK_FLOPS: Final[dict[str, float]] = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def peak_flops(device: Any) -> float | None:
    """Returns a device's peak bf16 FLOP/s, or None where no honest figure exists (CPUs)."""
    return PEAK_FLOPS.get(device.device_kind)
