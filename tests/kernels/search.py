"""Searches over shapes: a kernel equals plain JAX, or its limit refuses the shape."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bert_jax.encoders.build import model_type
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.kernel_limits import KernelUse, Part
from bert_jax.model.section import Execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.model.parts import fresh_params, model_of
from tests.support import loss_of, small_batch, small_task

LONG: Final = 200
PARTS: Final = (1, 1, 2, 4)
"""Sizes of the tensor axis, most often 1."""

Cases = dict[str, st.SearchStrategy[Any]]
Outcome = Literal["equal", "refused"]


def shapes(few: int) -> pytest.MarkDecorator:
    """Returns the mark of a search: some shapes, or many with `make chaos`."""
    chosen = [
        pytest.param(few, marks=pytest.mark.slow, id="few"),
        pytest.param(LONG, marks=pytest.mark.chaos, id="many"),
    ]
    return pytest.mark.parametrize("shapes", chosen)


def mostly(usual: st.SearchStrategy[int], other: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    """Draws from `usual` in four of five cases."""
    return st.integers(0, 4).flatmap(lambda n: other if n == 4 else usual)


def search(
    check: Callable[..., Outcome], cases: Cases, *, shapes: int, start: int = 0
) -> Counter[Outcome]:
    """Checks shapes, the same ones for the same `start`. Returns the number of each outcome."""
    found: Counter[Outcome] = Counter()

    @seed(start)
    @settings(
        max_examples=shapes,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.fixed_dictionaries(cases))
    def each(case: dict[str, Any]) -> None:
        found[check(**case)] += 1

    each()
    assert found["equal"] > shapes // 4, found
    return found


def refused(
    part: Part,
    architecture: EncoderArchitecture,
    *,
    dtype: str = "bfloat16",
    length: int = 1,
    parts: int = 1,
) -> bool:
    """Returns whether the limit that `auto` reads refuses the kernel of a part on a TPU.

    `parts` is the size of the tensor axis, and `length` the length of rows in tokens.
    """
    execution = Execution.model_validate({"dtype": dtype})
    split = {"heads": parts, "mlp": parts, "vocab": parts}
    use = KernelUse(part, execution, architecture, split, length, None)
    return model_type(architecture).limit(use) is not None


def assert_near(found: Any, expected: Any, *, error: float = 2e-5) -> None:
    """Compares arrays. `error` is relative to the largest number of an array, at least to 1.

    Some gradients are zero except for rounding, for example with a single key.
    """
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = (np.asarray(each, np.float64) for each in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=error * max(1.0, abs(other).max()))


def tensor_mesh(parts: int) -> Any:
    """Returns a mesh that splits heads, FFN and vocabulary into parts."""
    return make_mesh(MeshSection(data=1, tensor=parts), jax.devices()[:parts])


def assert_a_models_cores_are_equal(**sizes: Any) -> None:
    """Compares loss and gradients with the fused kernel and with plain JAX, on two tensor devices.

    `sizes` are arguments of `small_task`.
    """
    batch = {name: jnp.asarray(array) for name, array in small_batch(rows=2, length=64).items()}
    batch["segment_ids"] *= 1 + jnp.arange(64) // 20  # packed examples, and padding
    params = fresh_params(small_task(**sizes))

    def loss_and_gradients(core: str) -> Any:
        task = small_task(execution={"attention": core}, **sizes)

        def loss(params: Any) -> Any:
            return loss_of(task, model_of(task, params), batch)[0]

        return jax.jit(jax.value_and_grad(loss))(params)

    with jax.set_mesh(tensor_mesh(2)):
        assert_near(loss_and_gradients("fused"), loss_and_gradients("xla"))
