"""Traces the steps that most of the processes will run, before there is any of them.

A trace is a function of the step and of shapes: it needs no device. Each process would make it
anew, a third of the CPU time of a run of a few steps.
"""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Sharding

from bert_jax.config import RunConfig, parse_config
from bert_jax.model.config import resolve_architecture
from bert_jax.model.execution import resolve_execution
from bert_jax.objectives.registry import make_objective
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import linear_schedule
from bert_jax.parallel.rules import MESH_AXES, RULES, batch_sharding, replicated
from bert_jax.task import Objective
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.train.sections import PhaseSection, schedule_segments
from bert_jax.train.state import TrainState, abstract_params, define_model, trained_params
from bert_jax.train.step import StepLimits, StepSpec, make_evaluation_step, make_train_step
from tests.run_config import DROPOUT, VOCAB_SIZE, project_config

CPU = AbstractDevice(device_kind="cpu", num_cores=None, platform="cpu")


def trace_steps() -> None:
    """Traces what runs of `project_config` compute, on one device and on two."""
    for changes, devices in itertools.product((DROPOUT, {}), (1, 2)):
        values = project_config(Path())
        values["model"]["architecture"] |= changes
        types = (AxisType.Auto,) * len(MESH_AXES)
        mesh = AbstractMesh((1, devices, 1, 1), MESH_AXES, axis_types=types, abstract_device=CPU)
        _trace(parse_config(values, source="traces"), mesh)


def _trace(config: RunConfig, mesh: Any) -> None:
    assert config.train is not None
    phase = config.train.phases[0]
    task = _objective(config, longest=phase.seq_length)
    model = define_model(task.build)
    optimizer = make_optimizer(config.optimizer, model.axes)
    spec = StepSpec(task=task, model=model, optimizer=optimizer)
    schedule = linear_schedule(schedule_segments(config.train, config.optimizer))
    layout, everywhere = batch_sharding(mesh), replicated(mesh)
    limit = _laid_out(np.float32(), everywhere)
    with jax.sharding.use_abstract_mesh(mesh):
        params = trained_params(model, mesh)
        moments = jax.eval_shape(optimizer.init, params)
        rest = (np.int32(), np.zeros(2, np.uint32), moments, np.bool_())
        step, rng, moments, healthy = jax.tree.map(lambda leaf: _laid_out(leaf, everywhere), rest)
        state = TrainState(step, rng, params, moments, healthy)
        jax.jit(make_train_step(spec, accumulation=1)).trace(
            state,
            _batch(task, phase, layout, evaluation=False),
            StepLimits(limit, limit),
            _laid_out(schedule, everywhere),
        )
        jax.jit(make_evaluation_step(task, model)).trace(
            abstract_params(model, mesh), _batch(task, phase, layout, evaluation=True)
        )


def _laid_out(like: Any, layout: Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=layout)


def _batch(
    task: Objective, phase: PhaseSection, layout: Sharding, *, evaluation: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    rows = task.features(seq_length=phase.seq_length, max_predictions=None, evaluation=evaluation)
    return {
        name: jax.ShapeDtypeStruct(
            (phase.batch_size, *array.shape[1:]), array.dtype, sharding=layout
        )
        for name, array in rows.batch([], []).items()
    }


def _objective(config: RunConfig, *, longest: int) -> Objective:
    """Returns what a run pretrains on: nothing of its tokenizer is traced but the size."""
    assert config.model is not None
    architecture = resolve_architecture(config.model, vocab_size=VOCAB_SIZE)
    only_cpu: Any = SimpleNamespace(devices=np.array([CPU]), shape=dict.fromkeys(RULES["heads"], 1))
    rest = (f"piece{at}" for at in range(VOCAB_SIZE - len(SPECIAL_PIECES)))
    return make_objective(
        config.objective,
        architecture=architecture,
        execution=resolve_execution(
            config.model.execution, architecture=architecture, mesh=only_cpu, longest=longest
        ),
        tokenizer=WordPieceTokenizer([*SPECIAL_PIECES, *rest], lower_case=True),
    )
