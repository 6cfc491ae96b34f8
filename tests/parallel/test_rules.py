"""The sharding table: the mesh axis of every parameter and moment."""

import jax
import pytest
from jax.sharding import Mesh, PartitionSpec

from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import (
    MESH_AXES,
    RULES,
    batch_parts,
    batch_sharding,
    check_divides,
    constrain,
    parameter_sharding,
    partition_spec,
    trained_sharding,
)
from bert_jax.train.state import abstract_params, define_model
from tests.golden.make_specs import GOLDEN, text
from tests.project import refuses
from tests.support import small_task


def mesh(data: int, fsdp: int, tensor: int) -> Mesh:
    devices = jax.devices()[: data * fsdp * tensor]
    return make_mesh(MeshSection(data=data, fsdp=fsdp, tensor=tensor), devices)


def test_every_layout_equals_the_golden_file() -> None:
    """After an intended change, run ``python -m tests.golden.make_specs``."""
    assert text() == GOLDEN.read_text(encoding="utf-8")


def test_the_table_names_only_axes_of_the_mesh() -> None:
    assert {axis for axes in RULES.values() for axis in axes} == set(MESH_AXES)


def test_one_arrays_axes_cannot_share_a_mesh_axis() -> None:
    with pytest.raises(ValueError, match=r'"mlp" and "vocab" of one array both claim .* "tensor"'):
        partition_spec(("mlp", "vocab"))
    with pytest.raises(ValueError, match=r'"batch" and "embed" of one array both claim .* "fsdp"'):
        partition_spec(("batch", "length", "embed"))


def test_an_axis_without_a_rule_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match='no rule for logical axis "head"; did you mean "heads"'):
        partition_spec(("layers", "head"))


def test_tensor_axis_must_divide_the_heads() -> None:
    with refuses("mesh.not_a_divisor", place="model.size", found=4, size=6, axis="heads"):
        check_divides(mesh(2, 1, 4), "heads", 6, key="model.size")
    check_divides(mesh(2, 1, 4), "heads", 8, key="model.size")
    task = small_task(num_attention_heads=4, hidden_size=64)
    values = {"mesh_axes": "tensor", "found": 8, "axis": "heads", "size": 4}
    with refuses("mesh.parameter", **values) as caught:
        abstract_params(define_model(task.build), mesh(1, 1, 8))
    assert " encoder/" in str(caught.value)


def test_fsdp_axis_must_divide_the_hidden_size() -> None:
    values = {"mesh_axes": "fsdp", "found": 8, "axis": "embed", "size": 60, "name": "x/y"}
    with refuses("mesh.parameter", **values):
        parameter_sharding(mesh(1, 8, 1), ("embed", "mlp"), (60, 64), name="x/y")


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        (("embed", "mlp"), (64, 16), (("fsdp", "data"), "tensor")),
        (("layers", "mlp", "embed"), (2, 16, 64), (None, ("tensor", "data"), "fsdp")),
        (("layers", "embed"), (4, 64), (None, "fsdp")),
        (("embed", "mlp"), (4, 16), ("fsdp", "tensor")),
    ],
    ids=["rows", "stacked", "a vector", "not divided"],
)
def test_data_axis_splits_rows_that_it_divides(
    axes: tuple[str, ...], shape: tuple[int, ...], expected: tuple[object, ...]
) -> None:
    found = trained_sharding(mesh(4, 2, 1), axes, shape).spec
    assert found == PartitionSpec(*expected)


def test_a_batch_is_split_over_data_and_fsdp_only() -> None:
    on = mesh(2, 2, 2)
    assert batch_sharding(on).spec == PartitionSpec(("copy", "data", "fsdp"))
    assert batch_parts(on) == 4
    shards = jax.device_put(jax.numpy.arange(8.0), batch_sharding(on)).addressable_shards
    assert {shard.data.shape for shard in shards} == {(2,)}


def test_constrain_shards_an_array_only_inside_a_mesh() -> None:
    x = jax.numpy.ones((8, 4))
    assert constrain(x, "batch", "hidden") is x
    with jax.set_mesh(mesh(4, 2, 1)):
        found = jax.jit(lambda y: constrain(y, "batch", "hidden"))(x)
    assert found.sharding.shard_shape(x.shape) == (1, 4)
