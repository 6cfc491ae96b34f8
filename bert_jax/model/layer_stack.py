"""The layers of an encoder: stacked parameters, and what the backward pass stores."""

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
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


def stacked(layer: M, *, depth: int | Mapping[str, int]) -> M:
    """Returns the module of a layer with the parameters of `depth` layers along a leading axis.

    `depth` is one number, or a number for each part of the layer.
    """
    graphdef, state = nnx.split(layer)

    def stack(path: Any, one: nnx.Variable) -> nnx.Variable:
        entries = depth if isinstance(depth, int) else depth[path[0].key]
        shape, axes = (entries, *one.shape), ("layers", *one.logical)
        return one.replace(jax.ShapeDtypeStruct(shape, one.dtype), logical=axes)

    return nnx.merge(graphdef, jax.tree_util.tree_map_with_path(stack, state, is_leaf=_is_param))


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
        stack: stacked parameters with one entry per layer, or per group of layers that share them,
            and stacked inputs with one entry per layer. Shared parameters are not copied.
        sharing: number of layers of each group.
        unroll: number of layers per iteration.

    Returns:
        The last carried value, and the outputs, stacked.
    """
    if max(sharing) == 1:
        return jax.lax.scan(layer, start, stack, unroll=unroll)
    params, inputs = stack
    x, end, outputs = start, 0, []
    leaves, structure = jax.tree.flatten(params)
    cuts = [_cut(leaf, _sizes(leaf, sharing)) for leaf in leaves]
    for group, size in zip(zip(*cuts, strict=True), sharing, strict=True):
        shared = {at: leaf[0] for at, leaf in enumerate(group) if len(leaf) == 1}
        own = {at: leaf for at, leaf in enumerate(group) if at not in shared}
        layers = slice(end, end := end + size)

        def one(
            x: Any, given: tuple[dict[int, Array], Any], shared: dict[int, Array] = shared
        ) -> tuple[Any, Any]:
            of_layer = [leaf for _, leaf in sorted((shared | given[0]).items())]
            return layer(x, (structure.unflatten(of_layer), given[1]))

        given = own, jax.tree.map(operator.itemgetter(layers), inputs)
        x, output = jax.lax.scan(one, x, given, length=size, unroll=min(unroll, size))
        outputs.append(output)
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)


def without_last_layer(params: Any, *, sharing: Sequence[int]) -> tuple[Any, tuple[int, ...], Any]:
    """Returns parameters and sharing of all layers but the last, and the last layer's parameters.

    For the arguments, see `scan_layers`. The first result includes parameters of the last layer
    that other layers share.
    """
    *sizes, last_size = sharing

    def cut(leaf: Array) -> tuple[Array, Array]:
        first, last = _cut(leaf, (len(leaf) - 1, 1))
        is_reused = last_size > 1 and len(leaf) == len(sharing)
        return leaf if is_reused else first, last[0]

    leaves, structure = jax.tree.flatten(params)
    first, last = (structure.unflatten(part) for part in zip(*map(cut, leaves), strict=True))
    return first, (*sizes, last_size - 1) if last_size > 1 else tuple(sizes), last


def each_layer(params: Any, *, sharing: Sequence[int]) -> list[Any]:
    """Returns the parameters of each layer. For the arguments, see `scan_layers`."""
    leaves, structure = jax.tree.flatten(params)
    used: list[list[Array]] = []
    for leaf in leaves:
        entries = [entry[0] for entry in _cut(leaf, (1,) * len(leaf))]
        if len(entries) == len(sharing):
            entries = [one for one, size in zip(entries, sharing, strict=True) for _ in range(size)]
        used.append(entries)
    return [structure.unflatten(layer) for layer in zip(*used, strict=True)]


def _sizes(leaf: Array, sharing: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of entries of a stacked parameter that each group of layers uses."""
    return (1,) * len(sharing) if len(leaf) == len(sharing) else tuple(sharing)


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
