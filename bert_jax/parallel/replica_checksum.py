"""Checksums of replicated arrays, which detect a chip that computes wrong numbers.

All replicas of an array are computed from the same bits by the same program, so they must be equal.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bert_jax.parallel.compiling import compiling
from bert_jax.parallel.sharding_rules import replicated, split_over


class Deviation(NamedTuple):
    """A device with replicas of arrays that differ from other devices' replicas."""

    device: Any  # a jax.Device of any process
    arrays: tuple[str, ...]  # names of the arrays
    outvoted: bool  # whether the majority of replicas of every array has other bits


def find_deviations(tree: Any, mesh: Mesh) -> list[Deviation]:
    """Returns the devices whose replicas deviate. Every process must call this.

    The result is the same on all processes. Every device computes a checksum of its own bits. Only
    the checksums are exchanged: 4 bytes per array and device. A single flipped bit always changes a
    checksum. Arrays without replicas, such as those that ZeRO splits, are not checked.
    """
    named = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if _groups(mesh, leaf.sharding.spec).max() + 1 < mesh.size
    ]
    if not named:
        return []
    shapes = tuple(
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for _, leaf in named
    )
    sums = jax.device_get(_program(mesh, shapes)(*(leaf for _, leaf in named)))
    found: dict[int, list[tuple[str, bool]]] = {}
    for at, (name, leaf) in enumerate(named):
        for row, outvoted in _deviating(sums[:, at], _groups(mesh, leaf.sharding.spec)):
            found.setdefault(row, []).append((name, outvoted))
    devices = mesh.devices.ravel()
    return [
        Deviation(devices[row], tuple(name for name, _ in arrays), all(vote for _, vote in arrays))
        for row, arrays in sorted(found.items())
    ]


def _deviating(sums: np.ndarray, groups: np.ndarray) -> list[tuple[int, bool]]:
    """Returns (index of the device, whether it is outvoted) for each deviating replica."""
    found = []
    for group in range(groups.max() + 1):
        rows = np.flatnonzero(groups == group)
        if (sums[rows] == sums[rows[0]]).all():
            continue
        common, votes = collections.Counter(sums[rows].tolist()).most_common(1)[0]
        majority = 2 * votes > len(rows)
        found += [(int(row), majority) for row in rows if not majority or sums[row] != common]
    return found


@functools.lru_cache(maxsize=256)
def _groups(mesh: Mesh, spec: PartitionSpec) -> np.ndarray:
    """Returns the index of each device's shard of an array: int [devices]."""
    split = set(itertools.chain.from_iterable(split_over(spec)))
    shape = [mesh.shape[axis] if axis in split else 1 for axis in mesh.axis_names]
    pieces = np.arange(np.prod(shape)).reshape(shape)
    return np.broadcast_to(pieces, mesh.devices.shape).ravel()


@functools.lru_cache(maxsize=4)
def _program(mesh: Mesh, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> Callable[..., jax.Array]:
    """Returns the compiled program that computes checksums, uint32 [devices, arrays]."""

    def sums(*pieces: jax.Array) -> jax.Array:
        return jnp.stack([checksum(piece) for piece in pieces])[None]

    on_each = jax.shard_map(
        sums,
        mesh=mesh,
        in_specs=tuple(shape.sharding.spec for shape in shapes),
        out_specs=PartitionSpec(mesh.axis_names),
        check_vma=False,  # the check assumes equal replicas
    )
    with compiling("the comparison of replicas"):
        return jax.jit(on_each, out_shardings=replicated(mesh)).lower(*shapes).compile()


@jax.jit
def checksum(array: jax.Array) -> jax.Array:
    """Returns Σ bits · (2 · index + 1) modulo 2³², uint32 [].

    Any single flipped bit changes the sum.
    """
    if array.dtype == jnp.bool_:
        bits = array.astype(jnp.uint32)
    elif array.dtype.itemsize >= 4:
        bits = jax.lax.bitcast_convert_type(array, jnp.uint32)
    else:
        small = jnp.uint16 if array.dtype.itemsize == 2 else jnp.uint8
        bits = jax.lax.bitcast_convert_type(array, small).astype(jnp.uint32)
    return (bits * _odd_weights(bits.shape)).sum(dtype=jnp.uint32)


def _odd_weights(shape: Sequence[int]) -> jax.Array:
    """Returns 1, 3, 5, … by position, uint32. XLA fuses it into the sum, without a buffer."""
    index, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return 2 * index + 1
