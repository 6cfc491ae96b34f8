"""What a step changes: parameters, optimizer, random key, step; and how each lies on the mesh."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from bert_jax.model.parameter_rngs import ParameterRngs
from bert_jax.parallel.compiling import made_once
from bert_jax.parallel.rules import moment_sharding, parameter_sharding, replicated
from bert_jax.task import Params, Task

OptState: TypeAlias = optax.OptState
Leaf: TypeAlias = Any  # a jax.Array; a ShapeDtypeStruct in an abstract state


class TrainState(NamedTuple):
    """Everything a step reads and writes, as plain arrays (never NNX objects)."""

    step: Leaf  # int32 []: optimizer steps done
    rng: Leaf  # uint32 [2]: key data from which every step derives its own keys
    params: Params  # float32
    opt_state: OptState
    healthy: Leaf  # bool []: False once a loss or gradient was not finite; freezes the rest


@dataclasses.dataclass(frozen=True, eq=False)
class ModelDefinition:
    """The model without its numbers. `define_model` makes one for equal models, equal to itself."""

    graphdef: Any  # what `nnx.merge` needs beside the parameters
    params: Params  # of ShapeDtypeStruct
    axes: dict[str, Any]  # nested like `params`: the logical axes of each


Build: TypeAlias = Callable[[nnx.Rngs], nnx.Module]


def define_model(build: Build) -> ModelDefinition:
    """Returns what `Task.build` makes as structure, shapes and logical axes, allocating nothing."""
    # To Python, methods of equal objects differ.
    return _define(getattr(build, "__func__", build), getattr(build, "__self__", None))


@made_once
def _define(build: Callable[..., nnx.Module], owner: object) -> ModelDefinition:
    if owner is not None:
        build = functools.partial(build, owner)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: build(ParameterRngs(0))))
    axes = jax.tree.map(
        lambda param: param.logical, state, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    return ModelDefinition(graphdef, nnx.to_pure_dict(state), nnx.to_pure_dict(axes))


def abstract_params(model: ModelDefinition, mesh: Mesh) -> Params:
    """Returns the parameters' shapes, dtypes and layouts on a mesh.

    Raises:
        UserError: an axis of the mesh does not divide the parameter axis it splits.
    """

    def place(path: Any, leaf: Any, axes: Any) -> jax.ShapeDtypeStruct:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return _with(leaf, parameter_sharding(mesh, axes, leaf.shape, name=name))

    return jax.tree_util.tree_map_with_path(place, model.params, model.axes)


def abstract_state(
    model: ModelDefinition, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Returns the state's shapes, dtypes and layouts: what is initialised, compiled for, restored.

    Raises:
        UserError: an axis of the mesh does not divide the parameter axis it splits.
    """
    everywhere = replicated(mesh)
    opt_state = optax.tree_map_params(
        optimizer,
        lambda leaf, axes: _with(leaf, moment_sharding(mesh, axes, leaf.shape)),
        jax.eval_shape(optimizer.init, model.params),
        model.axes,
        transform_non_params=lambda leaf: _with(leaf, everywhere),
    )
    return TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere),
        rng=jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=everywhere),
        params=abstract_params(model, mesh),
        opt_state=opt_state,
        healthy=jax.ShapeDtypeStruct((), jnp.bool_, sharding=everywhere),
    )


def initialise(
    task: Task, optimizer: optax.GradientTransformation, abstract: TrainState, *, seed: int
) -> TrainState:
    """Returns a fresh state. The numbers depend on the run's seed alone, not on the mesh."""
    leaves, structure = jax.tree.flatten(abstract)
    draw = _initialiser(task, optimizer, structure, tuple(leaf.sharding for leaf in leaves))
    return draw(np.asarray(jax.random.key_data(_keys(seed))))


@made_once
def _initialiser(
    task: Task,
    optimizer: optax.GradientTransformation,
    structure: Any,
    shardings: tuple[jax.sharding.Sharding, ...],
) -> Callable[[np.ndarray], TrainState]:
    """Returns what draws a state laid out on a mesh; runs of several seeds share it."""
    layout = jax.tree.unflatten(structure, shardings)
    return jax.jit(make_initial_state(task, optimizer), out_shardings=layout)


@made_once
def make_initial_state(
    task: Task, optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], TrainState]:
    """Returns key data of model and run, uint32 [2, 2] → state."""

    def draw(keys: jax.Array) -> TrainState:
        model_key = jax.random.wrap_key_data(keys[0], impl="threefry2x32")
        params = nnx.to_pure_dict(nnx.split(task.build(ParameterRngs(model_key)))[1])
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            rng=keys[1],
            params=params,
            opt_state=optimizer.init(params),
            healthy=jnp.ones((), jnp.bool_),
        )

    return draw


def run_key(seed: int) -> jax.Array:
    """Returns the key data, uint32 [2], from which all of a run's steps derive theirs."""
    return jax.random.key_data(_keys(seed)[1])


def _keys(seed: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed, impl="threefry2x32"))


def named(tree: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a tree by their paths: ``("layers/output/kernel", leaf)``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def piece_name(name: str, index: Sequence[slice], shape: Sequence[int]) -> str:
    """Returns the name of a piece of an array: ``rng@0:2``, ``params/mlm/bias@0:32``, ``step@``."""
    spans = (part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
    return f"{name}@{','.join(f'{start}:{stop}' for start, stop in spans)}"


def abstract_like(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """Returns the shape, dtype and layout of an array."""
    return _with(leaf, leaf.sharding)


def _with(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
