"""Runs pretraining from its settings."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from etils import epath
from rich.console import Console

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.encoders.kernel_choice import execution_on
from bert_jax.errors import UserError, all_of
from bert_jax.files.atomic import refusal_of
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.narration import doing, narrator_of
from bert_jax.objectives.registry import make_objective
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import Schedule, pretraining_schedule
from bert_jax.parallel.channel import alone
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.same_settings import require_same
from bert_jax.runs.lock import hold_run
from bert_jax.runs.open_checkpoints import find_checkpoint, read_checkpoints, write_checkpoints
from bert_jax.runs.run_directory import CONFIG, claim_run, open_run, write_run
from bert_jax.runs.settings import REPORT, describe
from bert_jax.task import Objective, Params
from bert_jax.text import load_tokenizer
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.evaluation_section import EvaluationSection, score_name
from bert_jax.train.frozen import initial_params, load_frozen
from bert_jax.train.loop import Outcome, train
from bert_jax.train.progress_display import warn_aloud
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.train.spec import CheckpointSelection, Intervals, TrainSpec, check_batches
from bert_jax.train.state import DrawParams, abstract_params, define_model
from bert_jax.train.trackers import require_trackers
from bert_jax.workflows.epochs import PhaseEpochs, describe_epochs
from bert_jax.workflows.initial_generator import restorable, same_generator, with_generator
from bert_jax.workflows.initial_model import INIT_FROM, find_initial, inherit
from bert_jax.workflows.mlperf import check_mlperf, open_mlperf_log
from bert_jax.workflows.phases import OpenedPhase, PhaseOpener
from bert_jax.workflows.pretraining_report import write_report
from bert_jax.workflows.pretraining_settings import PretrainSettings
from bert_jax.workflows.resume_rules import DataFingerprints, check_resume


def run_pretraining(settings: PretrainSettings, *, console: Console) -> Outcome:
    """Trains to the last step; resumes from the newest checkpoint if there is one.

    Raises:
        UserError: settings, data, model and devices do not fit each other, or the run directory
            belongs to another run.
        RunStopped: a bad step or a failed save stops the run.
    """
    run, schedule = _prepare(settings, say=narrator_of(console).say)
    with doing("opening the datasets"):
        opened = [run.open(index) for index in range(len(settings.train.phases))]
    contents = {
        f"train.phases.{at}.dataset": {"training": found.training, "validation": found.validation}
        for at, found in enumerate(opened)
    }
    require_same({"tokenizer": run.tokenizer.hash, **contents})
    if jax.process_index() != 0:
        console = Console(quiet=True)
    root = claim_run(
        settings.run_dir, verb="pretrain", architecture=run.architecture, tokenizer=run.tokenizer
    )
    say = narrator_of(console).say
    line, repeats = describe_epochs([each for found in opened for each in found.epochs])
    say(line, style="bold yellow" if repeats else "")
    profile, steps = settings.train.profile, sum(each.steps for each in settings.train.phases)
    if profile is not None and profile.last > steps:
        say(f"train.profile: its last step {profile.last:,} is after the run's last step {steps:,}")
    for found in opened:
        if settings.train.evaluation is not None and found.phase.evaluate is None:
            say(f"{found.dataset} has no validation split: evaluation is skipped")
        for path, masks in found.masks.items():
            if masks.low:
                say(f"{path}: {masks.describe()}")
    with (
        hold_run(root) as check_lock,
        write_checkpoints(root, settings.train.checkpoint) as checkpoints,
    ):
        origin = _origin(run.settings, opened, root, checkpoints, console=console)
        spec = _train_spec(
            run, schedule, opened, root, checkpoints, check_lock, origin=origin, console=console
        )
        outcome = train(spec, console=console)
        if not outcome.interrupted and jax.process_index() == 0:
            epochs = [each for found in opened for each in found.epochs]
            _write_report(root, epochs, run.cache, say=say)
        return outcome


def _write_report(
    root: epath.Path,
    epochs: Sequence[PhaseEpochs],
    cache: DatasetCache,
    *,
    say: Callable[[str], None],
) -> None:
    """Writes the run's report. A failure is a warning, because the run itself is complete."""

    def write() -> None:
        with alone():
            write_report({root.name: open_run(root)}, root / REPORT, epochs=epochs, cache=cache)

    if (reason := refusal_of(write)) is None:
        say(f"report: {root / REPORT}")
    else:
        warn_aloud(f"no {REPORT}: {reason}. `bert-jax report {root}` writes it again")


def _prepare(
    settings: PretrainSettings, *, say: Callable[[str], None]
) -> tuple[PhaseOpener, Schedule]:
    """Opens devices and tokenizer, defines the model, and checks the settings against them."""
    section = settings.train
    require_trackers(section.trackers, key="train.trackers")
    check_mlperf(settings)
    schedule = pretraining_schedule(schedule_segments(section, settings.optimizer))
    mesh = open_mesh(settings.mesh)
    tokenizer = load_tokenizer(settings.tokenizer)
    if (initial := find_initial(settings, tokenizer)) is not None:
        architecture = inherit(settings.model, initial)
    else:
        architecture = settings.model.resolve(
            vocab_size=tokenizer.vocab_size, padding_id=tokenizer.special.pad
        )
    check_batches(section, mesh)
    execution, resolved = execution_on(
        mesh,
        settings.model.execution,
        architecture=architecture,
        longest=max(phase.seq_length for phase in section.phases),
        chosen="dtype" in settings.model.execution.model_fields_set,
        say=say,
    )
    heads = _heads(settings)
    model_section = settings.model.model_copy(update={"execution": execution, "heads": heads})
    settings = dataclasses.replace(settings, model=model_section)

    def objective_for(phase: int, architecture: EncoderArchitecture) -> Objective:
        return make_objective(
            settings.objective_of(phase),
            architecture=architecture,
            execution=resolved,
            tokenizer=tokenizer,
        )

    objective = objective_for(len(section.phases) - 1, architecture)
    with doing("defining the model"):
        model = define_model(objective.build)
    opener = PhaseOpener(
        settings=settings,
        objective=objective,
        architecture=architecture,
        model=model,
        optimizer=make_optimizer(settings.optimizer, model.axes, pieces=architecture.vocab_size),
        tokenizer=tokenizer,
        mesh=mesh,
        cache=DatasetCache(settings.loader.cache, say=say),
        objective_for=objective_for,
    )
    return opener, schedule


def _heads(settings: PretrainSettings) -> HeadsSection:
    """Returns the heads of the last phase's objective.

    Raises UserError if the model section has others, or the objectives of other phases need others.
    """
    *earlier, last = settings.objectives
    heads = last.heads
    for phase, objective in enumerate(earlier):
        if objective.heads.of_pretraining != heads.of_pretraining:
            raise UserError(
                "objective.phases",
                f"trains {describe(objective.heads)}, but the last phase {describe(heads)}",
                place=f"{settings.objective_key(phase)}.kind",
            )
    given = settings.model.heads
    if given not in (HeadsSection(), heads):
        raise UserError.wrong(
            "model.heads_of_objective", describe(given), describe(heads), place="model.heads"
        )
    return heads


def _train_spec(
    run: PhaseOpener,
    schedule: Schedule,
    opened: Sequence[OpenedPhase],
    root: epath.Path,
    checkpoints: Checkpointer,
    check_lock: Callable[[], None],
    *,
    origin: Mapping[str, Any],
    console: Console,
) -> TrainSpec:
    settings, section, mesh = run.settings, run.settings.train, run.mesh
    # Only the run's default objective can have frozen models.
    tasks = [found.phase.step.task for found in opened]
    frozen = load_frozen(next((task for task in tasks if task.frozen_models()), tasks[0]), mesh)
    evaluation = run.settings.train.evaluation
    if evaluation is not None:
        with jax.set_mesh(mesh):
            _check_rules(evaluation.rules, opened, frozen.params)
    write_config = functools.partial(
        write_run,
        settings=settings.config,
        run_dir=str(root),
        execution=settings.model.execution,
        heads=settings.model.heads,
        architecture=run.architecture,
        tokenizer=run.tokenizer,
        origin=origin,
    )
    return TrainSpec(
        schedule=schedule,
        phases=[found.phase for found in opened],
        intervals=Intervals(
            log_every=section.log_every,
            evaluate_every=evaluation and evaluation.every,
            evaluate_first=bool(evaluation and (evaluation.at_start or evaluation.at_most)),
            patience=evaluation and evaluation.patience,
            stop_at=evaluation and evaluation.stop_at,
            at_most=evaluation.at_most if evaluation else {},
            stop_above=bool(evaluation and evaluation.on_exceeded == "stop"),
            checkpoint_every=section.checkpoint.every,
            checksum_every=section.checksum_every,
            checkpoint_minutes=section.checkpoint.every_minutes,
        ),
        selection=CheckpointSelection(
            weights=_selection_weights(run, evaluation), larger_is_better=False
        ),
        mesh=mesh,
        seed=settings.seed,
        run_dir=root,
        checkpoints=checkpoints,
        check_lock=check_lock,
        initial_params=functools.partial(_initial_params, run, console, frozen.params),
        write_config=write_config,
        allow_data_change=settings.allow_data_change,
        trackers=section.trackers,
        watchdog=section.watchdog,
        started=settings.started,
        bad_steps=section.bad_steps,
        profile=section.profile,
        frozen=frozen,
        milestones=section.mlperf
        and open_mlperf_log(
            root,
            section.mlperf,
            settings,
            eval_samples=opened[0].evaluated,
            say=narrator_of(console).say,
        ),
    )


def _selection_weights(
    run: PhaseOpener, evaluation: EvaluationSection | None
) -> Mapping[str, float]:
    """Returns the weights of the scores that select the best checkpoint."""
    if evaluation is not None and evaluation.best_by is not None:
        return evaluation.best_by
    sets = (evaluation and evaluation.sets) or [""]
    return {score_name(each, run.objective.best_metric): 1 / len(sets) for each in sets}


def _check_rules(
    rules: Mapping[str, Iterable[str]], opened: Sequence[OpenedPhase], frozen: Params
) -> None:
    """Raises UserError if a phase has no evaluation, or no evaluation has the scores of a rule.

    See `EvaluationSection.rules`.
    """
    names: dict[str, set[type]] = {}  # kinds of objectives that have a score
    together: list[list[str]] = []  # names of the scores of each phase
    for found in opened if rules else ():
        if found.evaluator is None:
            raise UserError(
                "evaluation.rule_no_split",
                f"{found.dataset} has no validation split. Remove this setting.",
                place=f"train.evaluation.{next(iter(rules))}",
            )
        own = found.evaluator.score_names(frozen)
        own = [score_name(part, each) for part in found.phase.scored for each in own]
        together.append(own)
        for name in own:
            names.setdefault(name, set()).add(type(found.phase.step.task))
    for key, wanted in rules.items():
        place = f"train.evaluation.{key}"
        # The total losses of two objectives cannot be compared.
        allowed = [name for name, kinds in names.items() if key != "at_most" or len(kinds) == 1]
        for name in wanted:
            if name not in allowed:
                raise UserError.unknown("evaluation.unknown_score", name, allowed, place=place)
        if key == "best_by" and not any(set(wanted) <= set(own) for own in together):
            raise UserError(
                "evaluation.scores_apart", f"no evaluation has {all_of(wanted)}", place=place
            )


def _origin(
    settings: PretrainSettings,
    opened: Sequence[OpenedPhase],
    root: epath.Path,
    checkpoints: Checkpointer,
    *,
    console: Console,
) -> dict[str, Any]:
    """Returns the entries of provenance.json. A resumed run keeps its earlier entries."""
    data = DataFingerprints(
        datasets={path: own for found in opened for path, own in found.training.items()},
        validation={found.dataset: found.validation for found in opened},
    )
    origin = {**data._asdict(), "init_from": settings.pinned_origin}
    if not (root / CONFIG).exists():
        return origin
    run, wanted = open_run(root), settings.model.heads
    saved = check_resume(run, settings, checkpoints, data=data, console=console)
    same_direction = run.heads.model_copy(update={"causal": wanted.causal})
    if same_direction != wanted:  # an imported model
        raise UserError(
            "run.other_heads",
            f"found {root} with {describe(run.heads)}, but the objective has {describe(wanted)}. "
            f"Use a new directory with --init-from {root}.",
            place="run_dir",
        )
    merged = {name: {**saved.get(name, {}), **paths} for name, paths in data._asdict().items()}
    return {**origin, **saved, **merged}


def _initial_params(
    run: PhaseOpener, console: Console, frozen: Params, abstract: Params, draw: DrawParams
) -> Params:
    """Returns the initial parameters, from the run in `origin` if it is set.

    Without `origin`, the objective's frozen models may give some of them. Modules that the other
    run lacks are randomly initialized, and so is a generator of other sizes. Messages name the
    heads that are initialized, and the other run's heads that are not loaded. Raises UserError if
    the other run has no checkpoint, or the model cannot start from a frozen model.
    """
    objective = run.objective_for(0, run.architecture)
    if run.settings.origin is None:
        return initial_params(objective, frozen, abstract, draw)
    origin = open_run(run.settings.origin)
    same = same_generator(origin, objective)
    wanted = abstract_params(define_model(origin.build), run.mesh)
    wanted |= {part: abstract[part] for part in abstract if part in wanted}

    def read(checkpoints: Checkpointer) -> Params:
        step = find_checkpoint(origin, checkpoints, "last").step
        parts = restorable(checkpoints.training_parts(step), abstract) if same else {}
        params = checkpoints.restore_params(wanted | parts, step=step)
        return with_generator(params, abstract, place=INIT_FROM) if parts else params

    found = read_checkpoints(origin.directory, read)
    shared = [part for part in abstract if part in found]
    titles = run.model.groups.titles
    lacking = [part for part in titles if part in abstract and part not in shared]
    unused = [titles[part] for part in titles if part in found and part not in abstract]
    for heads, what in (
        ([titles[part] for part in lacking], "randomly initialized"),
        (unused, "not loaded"),
    ):
        if heads and jax.process_index() == 0:
            line = f"{INIT_FROM} {run.settings.init_from}: {what}: {', '.join(heads)}"
            narrator_of(console).say(line)
    return draw({part: abstract[part] for part in lacking}) | {part: found[part] for part in shared}
