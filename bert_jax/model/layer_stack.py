"""The layers of an encoder: stacked parameters, and what the backward pass stores."""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.model.section import Remat
from bert_jax.parallel.sharding_rules import gathered

Array = jax.Array
M = TypeVar("M", bound=nnx.Module)

# Maximum number of layers that are unrolled by default. On a TPU, a scan takes 50% more cycles and
# twice the memory for temporaries. On a CPU, a scan is 20% slower, but a deep unrolled model takes
# minutes to compile.
UNROLLED_ON_TPU: Final = 28
UNROLLED: Final = 4

# What a layer stores for the backward pass. `none`: all arrays. `attention`: all but attention
# weights, see attention.py. `dots`: products with parameters. `full`: only the input of the layer.
REMAT: Final[dict[Remat, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "none": lambda layer: layer,
    "attention": lambda layer: layer,
    "dots": lambda layer: jax.checkpoint(
        layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "full": jax.checkpoint,
}


def default_unroll(depth: int, *, on_tpu: bool) -> int:
    """Returns the default of `unroll` for a model with `depth` layers."""
    return depth if depth <= (UNROLLED_ON_TPU if on_tpu else UNROLLED) else 1


def gathered_params(layers: nnx.Module) -> Any:
    """Returns the stacked parameters of layers, gathered for use."""
    return jax.tree.map(
        lambda one: one.replace(gathered(one[...], one.logical)),
        nnx.state(layers),
        is_leaf=_is_param,
    )


def stacked(layer: M, *, depth: int) -> M:
    """Returns the module of a layer with the parameters of `depth` layers along a leading axis."""
    graphdef, state = nnx.split(layer)

    def stack(one: nnx.Variable) -> nnx.Variable:
        shape, axes = (depth, *one.shape), ("layers", *one.logical)
        return one.replace(jax.ShapeDtypeStruct(shape, one.dtype), logical=axes)

    return nnx.merge(graphdef, jax.tree.map(stack, state, is_leaf=_is_param))


def scan_layers(
    layer: Callable[[Any, tuple[Any, Any]], tuple[Any, Any]],
    start: Any,
    stack: tuple[Any, Any],
    *,
    sharing: Sequence[int],
    unroll: int,
) -> tuple[Any, Any]:
    """Computes layer after layer, like `jax.lax.scan`.

    Args:
        layer: function of the carried value and (parameters, input) of a layer. It returns the next
            carried value and an output.
        start: first carried value.
        stack: stacked parameters with one entry per group of layers, and stacked inputs with one
            entry per layer.
        sharing: number of layers of each group. Layers of a group share their parameters, which are
            not copied.
        unroll: number of layers per iteration.

    Returns:
        The last carried value, and the outputs, stacked.
    """
    if max(sharing) == 1:
        return jax.lax.scan(layer, start, stack, unroll=unroll)
    params, inputs = stack
    x, end, outputs = start, 0, []
    for group, size in zip(split_layers(params, [1] * len(sharing)), sharing, strict=True):
        shared = jax.tree.map(lambda param: param[0], group)
        layers = slice(end, end := end + size)
        x, output = jax.lax.scan(
            lambda x, given, shared=shared: layer(x, (shared, given)),
            x,
            jax.tree.map(operator.itemgetter(layers), inputs),
            length=size,
            unroll=min(unroll, size),
        )
        outputs.append(output)
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)


def _is_param(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def split_layers(params: Any, sizes: Sequence[int]) -> list[Any]:
    """Splits stacked parameters into parts with the given numbers of layers."""
    leaves, structure = jax.tree.flatten(params)
    parts = zip(*(_cut(leaf, tuple(sizes)) for leaf in leaves), strict=True)
    return [structure.unflatten(part) for part in parts]


def _cut_forward(x: Array, sizes: tuple[int, ...]) -> tuple[tuple[Array, ...], None]:
    ends = itertools.accumulate(sizes)
    return tuple(x[end - size : end] for end, size in zip(ends, sizes, strict=True)), None


def _cut_backward(sizes: tuple[int, ...], _: None, gradients: tuple[Array, ...]) -> tuple[Array]:
    # The gradient of JAX would be a sum of arrays that are padded with zeros.
    del sizes
    return (jnp.concatenate(gradients),)


_cut = jax.custom_vjp(lambda x, sizes: _cut_forward(x, sizes)[0], nondiff_argnums=(1,))
_cut.defvjp(_cut_forward, _cut_backward)
