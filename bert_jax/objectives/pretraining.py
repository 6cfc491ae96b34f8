"""One pretraining run, from its settings to its end."""

import dataclasses
import functools
from typing import Any, Final

import jax
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.errors import UserError
from bert_jax.model.config import resolve_architecture
from bert_jax.narration import doing, narrator_of
from bert_jax.objectives.phases import PhaseOpener
from bert_jax.objectives.registry import make_objective
from bert_jax.objectives.resume import DataFingerprints, check_resume
from bert_jax.objectives.section import PretrainSettings
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import linear_schedule
from bert_jax.parallel.mesh import open_mesh, process_share
from bert_jax.parallel.same_settings import require_same
from bert_jax.runs.checkpoints import read_checkpoints, write_checkpoints
from bert_jax.runs.directory import CONFIG, claim_run, open_run, write_run
from bert_jax.runs.execution import execution_on
from bert_jax.runs.lock import hold_run
from bert_jax.task import Params
from bert_jax.text import load_tokenizer
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_selection import CheckpointSelection
from bert_jax.train.loop import Outcome, train
from bert_jax.train.sections import schedule_segments
from bert_jax.train.spec import Intervals, TrainSpec, check_batches
from bert_jax.train.state import DrawParams, abstract_params, define_model
from bert_jax.train.step import StepSpec
from bert_jax.train.trackers import require_trackers


def run_pretraining(settings: PretrainSettings, *, console: Console) -> Outcome:
    """Opens data and devices, checks that all fits together, and trains to the end.

    Starts from the run's last checkpoint where there is one. Raises UserError: a part does not fit
    another, or the run directory holds another run; RunStopped: numbers went bad, see
    `bert_jax.train.recovery`.
    """
    section, say = settings.train, narrator_of(console).say
    require_trackers(section.trackers, key="train.trackers")
    schedule = linear_schedule(schedule_segments(section, settings.optimizer))
    mesh = open_mesh(settings.mesh)
    tokenizer = load_tokenizer(settings.tokenizer)
    architecture = resolve_architecture(settings.model, vocab_size=tokenizer.vocab_size)
    check_batches(section, mesh)
    execution, resolved = execution_on(
        mesh,
        settings.model.execution,
        architecture=architecture,
        longest=max(phase.seq_length for phase in section.phases),
        chosen="dtype" in settings.model.execution.model_fields_set,
        say=say,
    )
    model_section = settings.model.model_copy(update={"execution": execution})
    settings = dataclasses.replace(settings, model=model_section)
    objective = make_objective(
        settings.objective,
        architecture=architecture,
        execution=resolved,
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
        f"train.phases.{index}.dataset": {"training": each.training, "validation": each.validation}
        for index, each in enumerate(opened)
    }
    require_same({"tokenizer": tokenizer.hash, **contents})
    data = DataFingerprints(
        datasets={each.dataset: each.training for each in opened},
        validation={each.dataset: each.validation for each in opened},
    )
    if jax.process_index() != 0:
        console = Console(quiet=True)
    root = claim_run(
        settings.run_dir, verb="pretrain", architecture=architecture, tokenizer=tokenizer
    )
    for each in opened:
        if section.evaluation is not None and each.phase.evaluate is None:
            console.print(f"{each.dataset} has no validation split: no evaluation", markup=False)
    with (
        hold_run(root) as check_lock,
        write_checkpoints(root, section.checkpoint) as checkpoints,
    ):
        write_config = functools.partial(
            write_run,
            settings=settings.config,
            run_dir=str(root),
            model=settings.model,
            architecture=architecture,
            tokenizer=tokenizer,
            origin=_origin(settings, data, root, checkpoints, console=console),
        )
        spec = TrainSpec(
            step=StepSpec(
                task=objective,
                model=model,
                optimizer=make_optimizer(settings.optimizer, model.axes),
            ),
            schedule=schedule,
            phases=[each.phase for each in opened],
            intervals=Intervals(
                log_every=section.log_every,
                evaluate_every=section.evaluation.every if section.evaluation else None,
                checkpoint_every=section.checkpoint.every,
                checksum_every=section.checksum_every,
                checkpoint_minutes=section.checkpoint.every_minutes,
            ),
            selection=CheckpointSelection(metric=objective.best_metric, larger_is_better=False),
            mesh=mesh,
            share=process_share(mesh),
            seed=settings.seed,
            run_dir=root,
            checkpoints=checkpoints,
            check_lock=check_lock,
            initial_params=functools.partial(
                initial_params,
                run_dir=settings.init_from,
                rows=architecture.vocab_size,
                mesh=mesh,
                console=console,
            ),
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
    settings: PretrainSettings,
    data: DataFingerprints,
    root: epath.Path,
    checkpoints: Checkpointer,
    *,
    console: Console,
) -> dict[str, Any]:
    """Returns what provenance.json says of the run; a run that goes on keeps what it has."""
    origin = {**data._asdict(), "init_from": settings.init_from}
    if not (root / CONFIG).exists():
        return origin
    held = check_resume(open_run(root), settings, checkpoints, data=data, console=console)
    merged = {name: {**held.get(name, {}), **paths} for name, paths in data._asdict().items()}
    return {**origin, **held, **merged}


# The parts of a pretraining model that an import may lack.
HEADS: Final = {
    "pooler": "the pooler",
    "mlm": "the MLM head",
    "next_sentence": "the next-sentence head",
}


def initial_params(
    abstract: Params,
    draw: DrawParams,
    *,
    run_dir: str | None,
    rows: int,
    mesh: Mesh,
    console: Console,
) -> Params:
    """Returns another run's parameters on the mesh, and fresh ones of parts that it lacks.

    Without a `run_dir` all are fresh.
    An import may lack heads, which then start fresh; a head of that run's that pretraining has no
    use for is left out. Both are said in a line. Raises UserError: no checkpoint, or one of another
    architecture; the origin's embedding has not as many `rows`.
    """
    if run_dir is None:
        return draw(abstract)
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
