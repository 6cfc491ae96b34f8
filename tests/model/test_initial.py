"""What parameters are before the first step."""

import numpy as np
import pytest

from bert_jax.model.initial import TruncatedNormal
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import abstract_params, define_model, draw_params, named
from tests.support import small_task

NORMAL = TruncatedNormal(0.02)


def test_the_numbers_of_a_seed_do_not_change_unnoticed() -> None:
    """Each shape's first are the same, so that a longer table starts as a shorter one does."""
    found = NORMAL.values((2, 2), seed=7, name="kernel").ravel()
    expected = [-0.0034391680, 0.0011470966, 0.014643577, -0.0089504113]
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    np.testing.assert_array_equal(NORMAL.values((4,), seed=7, name="kernel"), found)
    for seed, name in ((8, "kernel"), (7, "bias")):
        assert not np.isin(NORMAL.values((4,), seed=seed, name=name), found).any()


@pytest.mark.parametrize("part", ["pooler", "mlm"])
def test_a_part_alone_starts_as_it_does_in_the_whole_model(part: str) -> None:
    model = define_model(small_task().build)
    abstract = abstract_params(model, make_mesh(MeshSection()))
    whole = draw_params(model, abstract, seed=3)
    alone = draw_params(model, {part: abstract[part]}, seed=3)
    assert alone.keys() == {part}
    for (name, found), (_, expected) in zip(named(alone), named({part: whole[part]}), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert found.sharding == expected.sharding
