"""Lowers the steps of a run for a topology, from shapes instead of arrays."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from bert_jax.encoders.kernel_choice import resolve_execution
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.objectives.registry import make_objective, without_functions
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import pretraining_schedule
from bert_jax.parallel.sharding_rules import check_divides
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.request import CannotPlan, CompileRequest
from bert_jax.task import Batch, Objective, Params
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.text.wordpiece import WordPieceTokenizer
from bert_jax.train.compiled import abstract_batch, lower_evaluation_step, lower_train_step
from bert_jax.train.frozen import abstract_frozen
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.train.spec import check_batches
from bert_jax.train.state import (
    TrainState,
    abstract_params,
    abstract_state,
    define_model,
    same_layout,
)
from bert_jax.train.step import StepSpec


class LoweredStep(NamedTuple):
    """A step lowered for a topology.

    `flops` are the useful FLOPs of one step on all chips. Bytes are those of one device. If
    evaluations shard parameters differently, they use a copy in addition to the train state.
    """

    lowered: jax.stages.Lowered
    rows: int
    flops: float
    parameter_bytes: int  # parameters and frozen parameters, as the step shards them
    optimizer_bytes: int  # optimizer state; 0 for an evaluation
    beside_bytes: int  # train state that an evaluation keeps in memory but does not use
    copy_bytes: int  # copy of parameters for evaluations; only set for a train step


class OpenedStep(NamedTuple):
    """A step with the shapes of its arguments."""

    spec: StepSpec
    state: TrainState
    batch: Batch
    frozen: Params
    rows: int


def open_step(request: CompileRequest, mesh: Mesh) -> OpenedStep:
    """Returns the step of a request for a mesh. The devices need not exist.

    Raises UserError if mesh, batch and model do not fit together.
    """
    architecture = request.model.resolve(vocab_size=request.vocab_size)
    phase, key = request.train.phases[request.phase], f"train.phases.{request.phase}"
    architecture = architecture.with_changes(phase.architecture_changes(architecture, key=key))
    check_divides(mesh, "heads", architecture.key_heads, key="mesh.tensor")
    check_batches(request.train, mesh)
    objective = _objective(request, architecture, mesh)
    model = define_model(objective.build)
    optimizer = make_optimizer(request.optimizer, model.axes, pieces=architecture.vocab_size)
    trains = request.kind == "train"
    transform = objective.features(
        seq_length=phase.seq_length,
        max_predictions=phase.max_predictions,
        max_examples=phase.max_examples if trains else 1,
        evaluation=not trains,
    )
    size = request.batch_size or phase.batch_size
    rows = size if trains else request.train.evaluation_rows(phase)
    return OpenedStep(
        StepSpec(task=objective, model=model, optimizer=optimizer, ema=request.train.ema),
        abstract_state(model, optimizer, mesh, ema=request.train.ema is not None),
        abstract_batch(transform, mesh, rows=rows),
        abstract_frozen(objective, mesh),
        rows,
    )


def lower_step(request: CompileRequest, mesh: Mesh) -> LoweredStep:
    """Returns the step that the run would compile for a mesh. The devices need not exist.

    Raises UserError if mesh, batch and model do not fit together.
    """
    spec, state, batch, frozen, rows = open_step(request, mesh)
    objective, model, trains = cast(Objective, spec.task), spec.model, request.kind == "train"
    schedule = pretraining_schedule(schedule_segments(request.train, request.optimizer))
    accumulation = request.train.phases[request.phase].accumulation
    whole = abstract_params(model, mesh)  # parameters as evaluations shard them
    copied = not same_layout(state.params, whole)
    with jax.set_mesh(mesh):
        if trains:
            lowered = lower_train_step(
                spec, state, batch, schedule, frozen, accumulation=accumulation
            )
        else:
            lowered = lower_evaluation_step(objective, model, mesh, whole, batch, frozen)
    flops, but_params = rows * objective.flops_per_row(batch), state._replace(params={})
    return LoweredStep(
        lowered=lowered,
        rows=rows,
        flops=flops if trains else flops / 3,  # an evaluation is one forward pass
        parameter_bytes=device_bytes([state.params if trains else whole, frozen]),
        optimizer_bytes=device_bytes(but_params) if trains else 0,
        beside_bytes=0 if trains else device_bytes(state if copied else but_params),
        copy_bytes=device_bytes(whole) if trains and copied else 0,
    )


def open_devices(topology: TpuTopology, *, slices: int) -> Sequence[Any]:
    """Returns the devices of a topology. They can compile, but not run.

    Raises CannotPlan if libtpu does not know the topology.
    """
    options: dict[str, Any] = {}
    if topology.accelerator.megacore:
        options["chip_config_name"] = "megacore"
    if topology.hosts() == 1 and topology.chips != topology.accelerator.chips_per_host:
        # libtpu's default is a host for every 4 chips.
        options["chips_per_host_bounds"] = [*topology.shape, 1]
    if slices > 1:
        options["num_slices"] = slices
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.libtpu_name, **options
        )
    except (RuntimeError, ValueError) as error:
        raise CannotPlan(
            "plan.topology_unknown",
            f"{topology.name} × {slices} slice(s) is unknown to the installed libtpu ({error})",
            place="topology",
        ) from error
    return described.devices


def device_bytes(tree: Any) -> int:
    """Returns the bytes on one device of a tree of sharded shapes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _objective(request: CompileRequest, architecture: EncoderArchitecture, mesh: Mesh) -> Objective:
    # Shapes depend only on the number of pieces. Functions of the user are left out, because they
    # may not be installed on this machine.
    made_up = (f"piece{at}" for at in range(request.vocab_size - len(SPECIAL_PIECES)))
    section = request.train.phases[request.phase].objective or request.objective
    return make_objective(
        without_functions(section),
        architecture=architecture,
        execution=resolve_execution(
            request.model.execution,
            architecture=architecture,
            mesh=mesh,
            longest=max(phase.seq_length for phase in request.train.phases),
        ),
        tokenizer=WordPieceTokenizer([*SPECIAL_PIECES, *made_up], lower_case=True),
    )
