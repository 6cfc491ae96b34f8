"""Finds a replica with one flipped bit under every sharding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.replica_checksum import checksum, find_deviations
from bert_jax.parallel.section import MeshSection
from bert_jax.train.hooks import replica_error
from tests.project import says

SPEC = {"whole": (), "rows": ("fsdp",), "both": ("fsdp", "tensor"), "single": (("data", "fsdp"),)}


def state(mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {name: rng.normal(size=(8, 4)).astype(np.float32) for name in SPEC} | {
        "step": np.int32(7),
        "healthy": np.bool_(True),
    }
    return {
        name: jax.device_put(array, NamedSharding(mesh, PartitionSpec(*SPEC.get(name, ()))))
        for name, array in arrays.items()
    }


def corrupt(array: jax.Array, device: int, *, bit: int = 0) -> jax.Array:
    """Returns the array with one flipped bit in one device's replica."""
    pieces = []
    for shard in array.addressable_shards:
        data = np.array(shard.data)
        if shard.device.id == device:
            data.view(np.uint32).flat[-1] ^= np.uint32(1 << bit)
        pieces.append(jax.device_put(data, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, pieces)


def mesh_of(data: int, fsdp: int = 1, tensor: int = 1) -> jax.sharding.Mesh:
    devices = jax.devices()[: data * fsdp * tensor]
    return make_mesh(MeshSection(data=data, fsdp=fsdp, tensor=tensor), devices)


@pytest.mark.parametrize("shape", [(8, 1, 1), (4, 2, 1), (4, 1, 2)])
def test_a_flipped_bit_names_its_device(
    shape: tuple[int, int, int],
) -> None:
    mesh = mesh_of(*shape)
    whole = state(mesh)
    assert find_deviations(whole, mesh) == []
    for device in (0, mesh.size - 1):
        for name in ("whole", "rows"):
            (found,) = find_deviations(whole | {name: corrupt(whole[name], device)}, mesh)
            assert found.device.id == device
            assert found.arrays == (name,)
            assert found.outvoted


def test_an_unreplicated_shard_is_not_compared() -> None:
    mesh = mesh_of(4, 2)
    whole = state(mesh)
    assert find_deviations({"single": corrupt(whole["single"], 3)}, mesh) == []
    assert find_deviations(state(mesh_of(1)), mesh_of(1)) == []


def test_two_different_replicas_are_both_named() -> None:
    mesh = mesh_of(2)
    whole = state(mesh)
    found = find_deviations(whole | {"whole": corrupt(whole["whole"], 1)}, mesh)
    assert [each.device.id for each in found] == [0, 1]
    assert not any(each.outvoted for each in found)
    error = replica_error(found)
    devices = ["device 0 (process 0, cpu)", "device 1 (process 0, cpu)"]
    says(error, key="replicas.no_majority", devices=devices, array="first whole", count=1)


@given(st.integers(0, 31), st.integers(0, 99), st.sampled_from(["float32", "int32", "bfloat16"]))
@settings(max_examples=50, deadline=None)
def test_every_flipped_bit_changes_the_checksum(bit: int, at: int, dtype: str) -> None:
    array = np.asarray(jnp.arange(100).astype(dtype))
    flipped = array.copy()
    bits = flipped.view(f"u{array.dtype.itemsize}")
    bits[at] ^= bits.dtype.type(1 << bit % (8 * array.dtype.itemsize))
    before, after = (int(checksum(jnp.asarray(each))) for each in (array, flipped))
    assert before != after
