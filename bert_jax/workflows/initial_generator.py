"""The generator of a run that starts from another run's generator and model.

An embedding table of the other run is the generator's own, or one that generator and model share,
with or without deltas. It becomes what the new run's `embedding_sharing` needs.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.errors import UserError, commas
from bert_jax.runs.run_directory import Run
from bert_jax.task import DELTAS, GENERATOR, TRAINING_PARTS, Objective, Params
from bert_jax.train.checkpointer import abstract_deltas
from bert_jax.workflows.initial_model import may_differ
from bert_jax.workflows.objective_of_run import objective_section


def same_generator(origin: Run, objective: Objective) -> bool:
    """Returns whether the generator of `objective` computes what the generator of `origin` does.

    Its settings decide: another number of heads has equal shapes.
    """
    section = objective_section(origin, verb="pretrain") if origin.has("objective") else None
    found, ours = (getattr(each, GENERATOR, None) for each in (section, objective))
    if found is None or ours is None:
        return False
    theirs = found.of_model(origin.architecture)
    a, b = (
        {name: each for name, each in architecture if not may_differ(name, theirs)}
        for architecture in (theirs, ours)
    )
    return a == b


def restorable(stored: Mapping[str, Any], abstract: Params) -> Params:
    """Returns the abstract arrays to restore of a checkpoint's `TRAINING_PARTS`.

    They are empty if the new run has no generator, or one of other sizes. `stored` has the shapes
    in the checkpoint, and `abstract` the parameters of the new run.
    """
    if GENERATOR not in stored or GENERATOR not in abstract:
        return {}
    ours, model = _flat(abstract[GENERATOR]), _model(abstract)
    theirs = _flat(stored[GENERATOR])
    places = {path: ours.get(path, model.get(path)) for path in theirs}
    fits = all(
        place is not None and tuple(place.shape) == tuple(theirs[path].shape)
        for path, place in places.items()
    )
    if not fits or not ours.keys() <= {*theirs, *model}:
        return {}
    parts: Params = {GENERATOR: unflatten_dict(places)}
    if DELTAS in stored:
        parts[DELTAS] = abstract_deltas(stored[DELTAS], abstract)
    return parts


def with_generator(found: Params, abstract: Params, *, place: str) -> Params:
    """Returns the parameters of a new run from the restored ones.

    Raises UserError at `place` if generator and model shall share a table, but theirs differ.
    """
    model, generator = _model(found), _flat(found[GENERATOR])
    deltas, wanted = _flat(found.get(DELTAS, {})), _flat(abstract[GENERATOR])
    apart = _flat(abstract.get(DELTAS, {}))
    new: dict[tuple[str, ...], jax.Array] = {}
    differing = []
    for path in {**apart, **deltas, **dict.fromkeys(generator.keys() - wanted.keys())}:
        of_generator = generator.pop(path, model[path])
        of_model = model[path] + deltas[path] if path in deltas else model[path]
        if path in wanted:
            generator[path], model[path] = of_generator, of_model
        elif path in apart:
            new[path], model[path] = of_model - of_generator, of_generator
        elif not jnp.array_equal(of_generator, of_model):
            differing.append("/".join(path))
    if differing:
        raise UserError(
            "init_from.shared_embeddings",
            f"both networks need equal {commas(sorted(differing))}. Use gradient_disentangled.",
            place=place,
        )
    for path in wanted.keys() - generator.keys():
        generator[path] = jnp.copy(model[path])
    parts = {GENERATOR: unflatten_dict(generator)}
    if apart:
        parts[DELTAS] = unflatten_dict(new)
    return {**unflatten_dict(model), **parts}


def _model(params: Params) -> dict[tuple[str, ...], Any]:
    """Returns the arrays of the model by path."""
    return _flat({part: params[part] for part in params if part not in TRAINING_PARTS})


def _flat(params: Any) -> dict[tuple[str, ...], Any]:
    found: Any = flatten_dict(params)
    return found
