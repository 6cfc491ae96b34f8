"""Helpers for tests of the model."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.encoders.bert.model import Bert
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.task import Task
from bert_jax.train.state import abstract_params, define_model, draw_params


def fresh_params(task: Task, *, seed: int = 0) -> dict[str, Any]:
    """Returns the initial parameters of a model as numpy arrays."""
    model, mesh = define_model(task.build), make_mesh(MeshSection(data=1), jax.devices()[:1])
    return jax.device_get(draw_params(model, abstract_params(model, mesh), seed=seed))


def model_of(task: Task, params: Any) -> Bert:
    """Returns the model of a task with these parameters."""
    return nnx.merge(define_model(task.build).graphdef, jax.tree.map(jnp.asarray, params))
