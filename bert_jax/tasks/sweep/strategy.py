"""Whether the runs of a sweep go side by side in one program, or one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import psutil

from bert_jax.errors import UserError
from bert_jax.model.config import Architecture, Execution

# Beyond this many parameters one run keeps a device busy.
SMALL: Final = 30_000_000

# Float32: parameters, two moments, gradients, and the best parameters so far.
BYTES_PER_PARAMETER: Final = 20

# Of the memory, what arrays may take: the rest is the compiler's, or the host's other work.
SHARE_OF_DEVICE: Final = 0.9
SHARE_OF_HOST: Final = 0.5

Together = Literal["auto", "yes", "no"]


class Way(NamedTuple):
    """How runs are computed, and why."""

    together: bool
    why: str


class Size(NamedTuple):
    """What one run takes."""

    parameters: int
    step_bytes: int  # activations kept for the backward pass


def step_bytes(architecture: Architecture, execution: Execution, *, rows: int, length: int) -> int:
    """Returns about how much a step keeps of its activations until the backward pass.

    ``layers · rows · length · (34 · hidden + 5 · heads · length)`` bytes of two-byte activations
    (arXiv 2205.05198, equation 1), twice that in float32. Recomputation needs less.

    Args:
        architecture: the model's sizes.
        execution: the dtype.
        rows: of a microbatch, every choice of a question counted.
        length: of the longest row.
    """
    per_position = 34 * architecture.hidden_size + 5 * architecture.num_attention_heads * length
    two_bytes = architecture.num_hidden_layers * rows * length * per_position
    return two_bytes * (2 if execution.dtype == "float32" else 1)


def choose_way(
    asked: Together, *, runs: int, size: Size, devices: list[Any], processes: int, patience: bool
) -> Way:
    """Decides how `runs` runs of one number of epochs are computed.

    Args:
        asked: the setting; "auto" puts small models side by side where they fit.
        runs: in one program.
        size: of one of them.
        devices: over which they would be dealt evenly.
        processes: of the job; a program of many runs is one process's.
        patience: whether runs may end early, which those of one program cannot.

    Raises:
        UserError: side by side was asked for and is not possible.
    """
    if asked == "no":
        return Way(False, "finetune.sweep.together is no")
    hindrance = None
    if patience:
        hindrance = "finetune.patience ends each run at a step of its own"
    elif processes > 1:
        hindrance = f"{processes} processes take part"
    if asked == "yes":
        if hindrance is not None:
            raise UserError(
                f'finetune.sweep.together: found "yes", but {hindrance}; allowed: auto, no'
            )
        return Way(True, "finetune.sweep.together is yes")
    if hindrance is not None:
        return Way(False, hindrance)
    if runs < 2:
        return Way(False, "there is one run for each number of epochs")
    if size.parameters >= SMALL:
        return Way(False, f"{size.parameters:,} parameters keep a device busy (limit {SMALL:,})")
    need = runs // len(devices) * (size.parameters * BYTES_PER_PARAMETER + size.step_bytes)
    room, where = _room(devices)
    if room is None:
        return Way(False, f"how much memory {where} has is not known")
    said = f"{runs} runs need about {_gib(need)} GiB on {where}, which has {_gib(room)} for them"
    return Way(need <= room, said)


def _room(devices: list[Any]) -> tuple[int | None, str]:
    """Returns the bytes for arrays on one device, None where it does not say, and its name."""
    device = devices[0]
    if device.platform == "cpu":
        # Simulated devices share the host.
        return int(_host_bytes() * SHARE_OF_HOST) // len(devices), "the host"
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None, device.device_kind
    return int(stats["bytes_limit"] * SHARE_OF_DEVICE), device.device_kind


def _host_bytes() -> int:
    """Returns the memory of this machine, or of the container around this process."""
    total = psutil.virtual_memory().total
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        return min(total, int(text))
    return total


def _gib(size: int) -> str:
    return f"{size / 2**30:.2g}"
