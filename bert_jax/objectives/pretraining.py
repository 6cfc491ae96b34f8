"""One pretraining run: from its settings to a checked plan, and from the plan to the end."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.errors import UserError
from bert_jax.model.config import Architecture, resolve_architecture
from bert_jax.model.execution import resolve_execution
from bert_jax.narration import doing, narrator_of
from bert_jax.objectives.phases import PhaseOpener
from bert_jax.objectives.registry import make_objective
from bert_jax.objectives.resume import DataFingerprints, check_resume
from bert_jax.objectives.section import PretrainSettings
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import Schedule, linear_schedule
from bert_jax.parallel.mesh import open_mesh, process_share
from bert_jax.parallel.rules import check_divides
from bert_jax.parallel.same_settings import require_same
from bert_jax.runs.checkpoints import read_checkpoints, write_checkpoints
from bert_jax.runs.directory import CONFIG, claim_run, open_run, write_run
from bert_jax.runs.execution import suited_to
from bert_jax.runs.lock import hold_run
from bert_jax.task import Objective, Params
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_selection import CheckpointSelection
from bert_jax.train.loop import Outcome, train
from bert_jax.train.sections import schedule_segments
from bert_jax.train.spec import Intervals, Phase, TrainSpec, check_batches
from bert_jax.train.state import DrawParams, abstract_params, define_model
from bert_jax.train.step import StepSpec
from bert_jax.train.trackers import require_trackers


class PretrainPlan(NamedTuple):
    """A run whose parts are resolved and fit together, nothing of it written."""

    settings: PretrainSettings
    tokenizer: Tokenizer
    architecture: Architecture
    objective: Objective
    mesh: Mesh
    step: StepSpec
    schedule: Schedule
    phases: list[Phase]
    data: DataFingerprints


def prepare(
    settings: PretrainSettings, *, say: Callable[[str], None] = lambda line: None
) -> PretrainPlan:
    """Opens data and devices, and checks that everything fits together.

    `say` gets a line while a dataset is copied from a bucket, and for each step that is loaded in
    place of being compiled. Raises UserError: it does not.
    """
    section = settings.train
    require_trackers(section.trackers, key="train.trackers")
    schedule = linear_schedule(schedule_segments(section, settings.optimizer))
    mesh = open_mesh(settings.mesh)
    settings = _executed_on(mesh, settings, say=say)
    tokenizer = load_tokenizer(settings.tokenizer)
    architecture = resolve_architecture(settings.model, vocab_size=tokenizer.vocab_size)
    check_divides(mesh, "heads", architecture.num_attention_heads, key="mesh.tensor")
    check_batches(section, mesh)
    objective = make_objective(
        settings.objective,
        architecture=architecture,
        execution=resolve_execution(
            settings.model.execution,
            architecture=architecture,
            mesh=mesh,
            longest=max(phase.seq_length for phase in section.phases),
        ),
        tokenizer=tokenizer,
    )
    with doing("defining the model"):
        model = define_model(objective.build)
    opener = PhaseOpener(
        settings=settings,
        objective=objective,
        architecture=architecture,
        model=model,
        tokenizer=tokenizer,
        mesh=mesh,
        cache=DatasetCache(settings.loader.cache, say=say),
    )
    with doing("opening the datasets"):
        opened = [opener.open(index) for index in range(len(section.phases))]
    contents = {
        f"train.phases.{index}.dataset": {
            "training": phase.training,
            "validation": phase.validation,
        }
        for index, phase in enumerate(opened)
    }
    require_same({"tokenizer": tokenizer.hash, **contents})
    return PretrainPlan(
        settings=settings,
        tokenizer=tokenizer,
        architecture=architecture,
        objective=objective,
        mesh=mesh,
        step=StepSpec(
            task=objective, model=model, optimizer=make_optimizer(settings.optimizer, model.axes)
        ),
        schedule=schedule,
        phases=[each.phase for each in opened],
        data=DataFingerprints(
            datasets={each.dataset: each.training for each in opened},
            validation={each.dataset: each.validation for each in opened},
        ),
    )


def _executed_on(
    mesh: Mesh, settings: PretrainSettings, *, say: Callable[[str], None]
) -> PretrainSettings:
    """Returns the settings with what they leave to the devices filled in."""
    execution = settings.model.execution
    chosen = "dtype" in execution.model_fields_set
    execution = suited_to(execution, mesh, chosen=chosen, say=say)
    model = settings.model.model_copy(update={"execution": execution})
    return dataclasses.replace(settings, model=model)


def run_plan(plan: PretrainPlan, *, console: Console) -> Outcome:
    """Trains to the end of a plan, from the run's last checkpoint where there is one.

    Raises UserError: the run directory holds another run; RunStopped: numbers went bad, see
    `bert_jax.train.recovery`.
    """
    settings, section = plan.settings, plan.settings.train
    if jax.process_index() != 0:
        console = Console(quiet=True)
    root = claim_run(
        settings.run_dir,
        verb="pretrain",
        architecture=plan.architecture,
        tokenizer=plan.tokenizer,
    )
    for phase, opened in zip(section.phases, plan.phases, strict=True):
        if section.evaluation is not None and opened.evaluate is None:
            console.print(f"{phase.dataset} has no validation split: no evaluation", markup=False)
    with (
        hold_run(root) as check_lock,
        write_checkpoints(root, section.checkpoint) as checkpoints,
    ):
        write_config = functools.partial(
            write_run,
            settings=settings.config,
            run_dir=str(root),
            model=settings.model,
            architecture=plan.architecture,
            tokenizer=plan.tokenizer,
            origin=_origin(plan, root, checkpoints, console=console),
        )
        spec = TrainSpec(
            step=plan.step,
            schedule=plan.schedule,
            phases=plan.phases,
            intervals=Intervals(
                log_every=section.log_every,
                evaluate_every=section.evaluation.every if section.evaluation else None,
                checkpoint_every=section.checkpoint.every,
                checksum_every=section.checksum_every,
                checkpoint_minutes=section.checkpoint.every_minutes,
            ),
            selection=CheckpointSelection(
                metric=plan.objective.best_metric, larger_is_better=False
            ),
            mesh=plan.mesh,
            share=process_share(plan.mesh),
            seed=settings.seed,
            run_dir=root,
            checkpoints=checkpoints,
            check_lock=check_lock,
            initial_params=_initial_params(plan, console=console),
            write_config=write_config if jax.process_index() == 0 else lambda folder: None,
            allow_data_change=settings.allow_data_change,
            example_log=section.example_log,
            trackers=section.trackers,
            watchdog=section.watchdog,
            started=settings.started,
            bad_steps=section.bad_steps,
            profile=section.profile,
        )
        return train(spec, console=console)


def _origin(
    plan: PretrainPlan, root: epath.Path, checkpoints: Checkpointer, *, console: Console
) -> dict[str, Any]:
    """Returns what provenance.json says of the run; a run that goes on keeps what it has."""
    origin = {**plan.data._asdict(), "init_from": plan.settings.init_from}
    if not (root / CONFIG).exists():
        return origin
    held = check_resume(open_run(root), plan.settings, checkpoints, data=plan.data, console=console)
    data = {name: {**held.get(name, {}), **paths} for name, paths in plan.data._asdict().items()}
    return {**origin, **held, **data}


def _initial_params(
    plan: PretrainPlan, *, console: Console
) -> Callable[[Params, DrawParams], Params]:
    if plan.settings.init_from is None:
        return lambda abstract, draw: draw(abstract)
    return functools.partial(
        take_over,
        run_dir=plan.settings.init_from,
        rows=plan.architecture.vocab_size,
        mesh=plan.mesh,
        console=console,
    )


# The parts of a pretraining model that an import may lack.
HEADS: Final = {
    "pooler": "the pooler",
    "mlm": "the MLM head",
    "next_sentence": "the next-sentence head",
}


def take_over(
    abstract: Params, draw: DrawParams, *, run_dir: str, rows: int, mesh: Mesh, console: Console
) -> Params:
    """Returns another run's parameters on the mesh, and fresh ones of parts that it lacks.

    An import may lack heads, which then start fresh; a head of that run's that pretraining has no
    use for is left out. Both are said in a line. Raises UserError: no checkpoint, or one of another
    architecture; the origin's embedding has not as many `rows`.
    """
    origin = open_run(run_dir)
    if (theirs := origin.architecture.vocab_size) != rows:
        raise UserError(
            f"model.architecture.vocab_size: found {rows}, but {run_dir} has {theirs} rows; "
            f"allowed: {theirs}"
        )
    wanted = abstract_params(define_model(origin.build), mesh)
    shared = [part for part in abstract if part in wanted]
    wanted |= {part: abstract[part] for part in shared}

    def read(checkpoints: Checkpointer) -> Params:
        step = checkpoints.latest_params()
        if step is None:
            raise UserError(f"--init-from: {run_dir} has no checkpoint")
        return checkpoints.restore_params(wanted, step=step)

    found = read_checkpoints(origin.directory, read)
    lacking = [part for part in HEADS if part in abstract and part not in shared]
    unused = [f"the {part} head" for part in found if part not in abstract]
    for heads, what in (([HEADS[part] for part in lacking], "start fresh"), (unused, "left out")):
        if heads and jax.process_index() == 0:
            narrator_of(console).say(f"--init-from {run_dir}: {what}: {', '.join(heads)}")
    return draw({part: abstract[part] for part in lacking}) | {part: found[part] for part in shared}
