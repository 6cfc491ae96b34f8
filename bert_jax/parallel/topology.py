"""TPU slices: generation and shape, from any common spelling."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Final

from bert_jax.errors import UserError, commas, did_you_mean, one_of
from bert_jax.parallel.accelerators import ACCELERATORS, Accelerator

_NAMES: Final[dict[str, Accelerator]] = {
    name: accelerator
    for accelerator in ACCELERATORS.values()
    for name in (accelerator.name, *accelerator.aliases)
}
_PATTERN = re.compile(r"(?:tpu[ -])?(?P<name>[a-z0-9]+(?:-lite)?)(?:pod)?[:-](?P<size>[0-9x]+)")


@dataclasses.dataclass(frozen=True)
class TpuTopology:
    """One slice."""

    accelerator: Accelerator  # generation of the chips
    shape: tuple[int, ...]  # chips along each dimension of the torus

    @property
    def name(self) -> str:
        """The documentation's spelling: ``v5e:4x4``."""
        return f"{self.accelerator.name}:{_cross(self.shape)}"

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """Number of JAX devices."""
        return self.chips * self.accelerator.devices_per_chip

    def hosts(self, *, gke: bool = False) -> int:
        """Returns the number of machines in the Cloud TPU API or in GKE.

        The two numbers differ for 8 chips of v5e or v6e. The Cloud TPU API uses one machine of 8
        chips. On GKE, our pods request two machines of 4 chips (machine type ``…-4t``).
        """
        accelerator = self.accelerator
        alone = accelerator.chips_per_host if gke else accelerator.chips_of_one_host
        return 1 if self.chips <= alone else -(-self.chips // accelerator.chips_per_host)

    @property
    def accelerator_type(self) -> str:
        """Cloud's spelling: ``v5litepod-16``, ``v4-32``."""
        accelerator = self.accelerator
        name = accelerator.accelerator_type or accelerator.name
        return f"{name}-{accelerator.count(self.shape)}"

    @property
    def libtpu_name(self) -> str:
        """The spelling of libtpu: ``tpu7x:2x2x1``."""
        return f"{self.accelerator.libtpu_name or self.accelerator.name}:{_cross(self.shape)}"

    @property
    def wrapped_axes(self) -> tuple[bool, ...]:
        """For each dimension, whether its ends are joined to a ring."""
        wraps = self.accelerator.wraps
        return tuple(
            size % wraps == 0 if self.accelerator.dimensions == 3 else size >= wraps
            for size in self.shape
        )


def parse_topology(text: str, *, key: str = "topology", others: Sequence[str] = ()) -> TpuTopology:
    """Parses the name of a slice in any common spelling.

    Examples: ``v3:4x4`` or ``v3-32`` (TensorCores), ``v5e:4x4``, ``v5litepod-16`` or ``v5e-16``
    (chips), ``v4:2x2x4`` or ``v4-32`` (TensorCores: 16 chips).

    `key` names the setting in the error. `others` are other allowed values of that setting. Raises
    UserError if there is no such generation or slice.
    """
    match = _PATTERN.fullmatch(text.strip().lower())
    if match is None:
        raise UserError(
            "topology.form",
            f'found "{text}", allowed: a generation and a shape or a count, such as '
            f"{one_of(['v5e:4x4', 'v5litepod-16', 'v4-32', *others])}{did_you_mean(text, others)}",
            place=key,
        )
    accelerator, size = _NAMES.get(match["name"]), match["size"]
    if accelerator is None:
        near = did_you_mean(match["name"], _NAMES)
        raise UserError(
            "topology.generation",
            f'found "{text}", allowed: {one_of([*ACCELERATORS, *others])}{near}',
            place=key,
        )
    shape = _shape(accelerator, size)
    if shape is None:
        sizes = commas(map(_cross if "x" in size else accelerator.count, accelerator.shapes))
        raise UserError(
            "topology.size",
            f'found "{text}", allowed: {sizes}; did you mean "{_suggest(accelerator, size)}"?',
            place=key,
        )
    return TpuTopology(accelerator, shape)


def _shape(accelerator: Accelerator, size: str) -> tuple[int, ...] | None:
    """Returns the shape of a slice from a shape or count, or None if there is no such slice."""
    if "x" not in size:
        return {accelerator.count(shape): shape for shape in accelerator.shapes}.get(int(size))
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)+", size):
        return None
    shape = tuple(map(int, size.split("x")))
    if accelerator.dimensions == 2 and len(shape) == 3 and shape[-1] == 1:
        shape = shape[:-1]  # libtpu prints a third dimension of 1
    return shape if shape in accelerator.shapes else None


def _suggest(accelerator: Accelerator, size: str) -> str:
    """Returns the slice with the nearest number of chips, spelled like `size`."""
    wanted = math.prod(int(number) for number in size.split("x") if number)
    if "x" not in size:
        wanted *= accelerator.count_unit

    def ratio(shape: tuple[int, ...]) -> float:
        return abs(math.log(math.prod(shape) / max(wanted, accelerator.count_unit)))

    nearest = TpuTopology(accelerator, min(accelerator.shapes, key=ratio))
    return nearest.name if "x" in size else nearest.accelerator_type


def _cross(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
