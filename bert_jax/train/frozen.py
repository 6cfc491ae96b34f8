"""Frozen parameters: models that a task uses but does not train, such as a teacher."""

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from etils import epath
from flax import nnx
from jax import tree
from jax.sharding import Mesh

from bert_jax.errors import UserError, differing
from bert_jax.parallel.same_settings import require_same
from bert_jax.parallel.sharding_rules import gathered
from bert_jax.task import Params, Task
from bert_jax.train import state


class FrozenParams(NamedTuple):
    """The parameters of a task's frozen models on a mesh."""

    params: Params  # parameters by name of the model
    hashes: Mapping[str, str]  # hash of each model's parameters, see `hash_params`


NONE_FROZEN: Final = FrozenParams({}, {})


def abstract_frozen(task: Task, mesh: Mesh) -> Params:
    """Returns the abstract parameters of a task's frozen models, sharded as between steps."""
    return {
        name: state.trained_params(state.define_model(model.build), mesh)
        for name, model in task.frozen_models().items()
    }


def load_frozen(task: Task, mesh: Mesh) -> FrozenParams:
    """Loads the frozen models of a task; every process must call it.

    Raises UserError if a model cannot be loaded, or its parameters differ between processes.
    """
    models = task.frozen_models()
    if not models:
        return NONE_FROZEN
    abstract = abstract_frozen(task, mesh)
    params = {name: model.load(abstract[name]) for name, model in models.items()}
    hashes = {name: hash_params(found) for name, found in params.items()}
    require_same({"frozen": hashes})
    return FrozenParams(params, hashes)


def hash_params(params: Params) -> str:
    """Returns the SHA-256 of names, dtypes, shapes and values, independent of shardings.

    Every process must call it. Gathers one array at a time.
    """
    digest = hashlib.sha256()
    for name, leaf in sorted(state.named(params)):
        array = np.asarray(state.gather_whole(leaf))
        digest.update(f"{name} {array.dtype}{list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def check_frozen(
    saved: Mapping[str, str], found: Mapping[str, str], *, place: epath.PathLike
) -> None:
    """Raises UserError if frozen models have other hashes than those that were saved."""
    for name in {**saved, **found}:
        now, then = differing(found.get(name, "none"), saved.get(name, "none"))
        if now != then:
            raise UserError(
                "frozen.changed",
                f"found {name} {now} (SHA-256), but the checkpoint was trained with {then}",
                place=place,
            )


def initial_params(task: Task, frozen: Params, abstract: Params, draw: state.DrawParams) -> Params:
    """Returns initial parameters: from the frozen models if they give some, the others drawn.

    `frozen` has the parameters of the frozen models by name. Every process must call it. Raises
    UserError if the trained model cannot start from a frozen model.
    """
    given: Params = {}
    for name, model in task.frozen_models().items():
        if model.initial is not None:
            given |= model.initial(frozen[name], abstract)
    return given | draw({part: abstract[part] for part in abstract if part not in given})


def bind(task: Task, params: Params) -> dict[str, nnx.Module]:
    """Returns a task's frozen models with these parameters, for `Task.loss`."""
    return {
        name: nnx.merge(state.define_model(model.build).graphdef, params[name])
        for name, model in task.frozen_models().items()
    }


def gather(task: Task, params: Params) -> Params:
    """Returns frozen parameters gathered over the data axis, for a loop over microbatches."""
    return {
        name: tree.map(gathered, params[name], state.define_model(model.build).axes)
        for name, model in task.frozen_models().items()
    }
