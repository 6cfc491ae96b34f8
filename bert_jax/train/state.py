"""The train state (parameters, optimizer, random key, step) and its sharding on the mesh."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bert_jax.model.initial import Initial
from bert_jax.parallel.compiling import made_once
from bert_jax.parallel.parameter_groups import ParameterGroups
from bert_jax.parallel.sharding_rules import parameter_sharding, replicated, trained_sharding
from bert_jax.task import Params

OptState: TypeAlias = optax.OptState
Leaf: TypeAlias = Any  # a jax.Array, or a ShapeDtypeStruct in an abstract state


class TrainState(NamedTuple):
    """The input and output of a step, as plain arrays without NNX objects."""

    step: Leaf  # int32 []: number of optimizer steps
    rng: Leaf  # uint32 [2]: key data from which every step derives its own keys
    params: Params  # float32
    opt_state: OptState
    healthy: Leaf  # bool []: False after a bad step, which freezes the state
    ema: Params | None = None  # float32: moving average of `params`, if the run keeps one


@dataclasses.dataclass(frozen=True, eq=False)
class ModelDefinition:
    """The structure of a model without parameters.

    `define_model` returns the same object for equal models.
    """

    graphdef: Any  # argument of `nnx.merge`
    params: Params  # shapes and dtypes, as ShapeDtypeStruct
    axes: dict[str, Any]  # logical axes, nested like `params`
    initial: dict[str, Any]  # initial values as `Initial`, nested like `params`
    dtypes: dict[str, Any]  # dtypes to which the model casts parameters, nested like `params`
    groups: ParameterGroups  # empty for a model that is no `EncoderModel`


Build: TypeAlias = Callable[[], nnx.Module]
# (abstract parameters of some modules) → their initial parameters, see `draw_params`
DrawParams: TypeAlias = Callable[[Params], Params]


def define_model(build: Build) -> ModelDefinition:
    """Returns the definition of the model that `build` makes, without allocating arrays."""
    # Bound methods of equal objects are not equal, so compare function and object.
    return _define(getattr(build, "__func__", build), getattr(build, "__self__", None))


@made_once
def _define(build: Callable[..., nnx.Module], owner: object) -> ModelDefinition:
    if owner is not None:
        build = functools.partial(build, owner)
    model = build()
    graphdef, state = nnx.split(model)
    facts = (
        jax.tree.map(
            operator.attrgetter(fact), state, is_leaf=lambda node: isinstance(node, nnx.Variable)
        )
        for fact in ("logical", "initial", "read")
    )
    groups = getattr(model, "groups", ParameterGroups())
    params, axes, initial, dtypes = map(nnx.to_pure_dict, (state, *facts))
    return ModelDefinition(graphdef, params, axes, initial, dtypes, groups)


def abstract_params(model: ModelDefinition, mesh: Mesh) -> Params:
    """Returns abstract parameters with their shardings within a step.

    Raises UserError if an axis of the mesh does not divide a parameter's axis.
    """

    def place(path: Any, leaf: Any, axes: Any) -> jax.ShapeDtypeStruct:
        return _with(leaf, parameter_sharding(mesh, axes, leaf.shape, name=_name(path)))

    return jax.tree_util.tree_map_with_path(place, model.params, model.axes)


def trained_params(model: ModelDefinition, mesh: Mesh) -> Params:
    """Returns abstract parameters with their shardings between steps.

    Between steps, matrix rows are also split over the data axis (ZeRO). Raises UserError like
    `abstract_params`.
    """

    def place(leaf: Any, axes: Any) -> jax.ShapeDtypeStruct:
        return _with(leaf, trained_sharding(mesh, axes, leaf.shape))

    return jax.tree.map(place, abstract_params(model, mesh), model.axes)


def abstract_state(
    model: ModelDefinition,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    ema: bool = False,
) -> TrainState:
    """Returns the abstract state with its shardings between steps, see `trained_params`.

    `ema`: whether the state has a moving average of the parameters. Raises UserError like
    `abstract_params`.
    """
    everywhere, params = replicated(mesh), trained_params(model, mesh)

    def is_masked(node: Any) -> bool:  # a parameter that a part of the optimizer leaves out
        return isinstance(node, optax.MaskedNode)

    opt_state = optax.tree_map_params(
        optimizer,
        lambda leaf, param: leaf if is_masked(leaf) else _with(leaf, param.sharding),
        jax.eval_shape(optimizer.init, model.params),
        params,
        transform_non_params=lambda leaf: _with(leaf, everywhere),
        is_leaf=is_masked,
    )
    return TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere),
        rng=jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=everywhere),
        params=params,
        opt_state=opt_state,
        healthy=jax.ShapeDtypeStruct((), jnp.bool_, sharding=everywhere),
        ema=params if ema else None,
    )


def initialise(
    params: Params, optimizer: optax.GradientTransformation, abstract: TrainState, *, seed: int
) -> TrainState:
    """Returns the state before the first step."""
    layout = _Layout.of(abstract.opt_state)
    return TrainState(
        step=_laid_out(np.zeros((), np.int32), abstract.step),
        rng=_laid_out(np.asarray(run_key(seed)), abstract.rng),
        params=params,
        opt_state=_computed(optimizer.init, layout)(params),
        healthy=_laid_out(np.ones((), np.bool_), abstract.healthy),
        ema=None if abstract.ema is None else copied(params),
    )


def draw_params(model: ModelDefinition, abstract: Params, *, seed: int) -> Params:
    """Returns initial parameters of the modules in `abstract`, with the shardings of `abstract`.

    A parameter's values depend only on the seed and on its own name and shape.
    """

    def first(path: Any, leaf: Any, initial: Initial) -> jax.Array:
        return _laid_out(initial.values(leaf.shape, seed=seed, name=_name(path)), leaf)

    wanted = {part: model.initial[part] for part in abstract}
    return jax.tree_util.tree_map_with_path(first, abstract, wanted)


def _laid_out(values: np.ndarray, like: Leaf) -> jax.Array:
    """Returns a sharded array from `values`, which every process must have in full."""
    return jax.make_array_from_callback(values.shape, like.sharding, values.__getitem__)


def laid_out_as(params: Params, abstract: Params) -> Params:
    """Returns parameters with the shardings of `abstract`; every process must call it."""
    return (
        params
        if same_layout(params, abstract)
        else _computed(_identity, _Layout.of(abstract))(params)
    )


def copied(params: Params) -> Params:
    """Returns a copy in memory of its own; every process must call it."""
    return _computed(_copy, _Layout.of(params))(params)


def same_layout(params: Params, others: Params) -> bool:
    """Returns whether two trees of arrays or ShapeDtypeStructs have equal shardings."""
    return _Layout.of(params) == _Layout.of(others)


def gather_whole(params: Params) -> Params:
    """Returns parameters that each process can read in full; every process must call it.

    Copies arrays that are split over processes to the host, one at a time.
    """

    def whole(leaf: jax.Array) -> Any:
        if leaf.is_fully_addressable:
            return leaf
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(whole, params)


class _Layout(NamedTuple):
    """The structure and shardings of a tree, as a hashable argument for `made_once`."""

    structure: Any
    shardings: tuple[jax.sharding.Sharding, ...]

    @classmethod
    def of(cls, tree: Any) -> Self:
        leaves, structure = jax.tree.flatten(tree)
        return cls(structure, tuple(leaf.sharding for leaf in leaves))


@made_once
def _computed(function: Callable[[Params], Any], layout: _Layout) -> Callable[[Params], Any]:
    """Returns a jitted function whose result has the shardings of `layout`."""
    return jax.jit(function, out_shardings=jax.tree.unflatten(*layout))


def _identity(tree: Params) -> Params:
    return tree


def _copy(tree: Params) -> Params:
    return jax.tree.map(jnp.copy, tree)  # without this, JAX would return the argument itself


def run_key(seed: int) -> jax.Array:
    """Returns the key data of a run, uint32 [2], from which all steps derive their keys."""
    return jax.random.key_data(jax.random.split(jax.random.key(seed, impl="threefry2x32"))[1])


def named(tree: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a tree with their paths: ``("layers/output/kernel", leaf)``."""
    return [(_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def abstract_like(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """Returns the shape, dtype and sharding of an array."""
    return _with(leaf, leaf.sharding)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _with(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
