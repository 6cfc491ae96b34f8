"""`bert-jax finetune --seeds N`, or with `finetune.sweep`: many runs as one job.

The run directory of a sweep is that of its best run, so every other verb works on it::

    <run_dir>/config.yaml, checkpoints/, evaluation.json, …   the best run
    <run_dir>/sweep.json, sweep.csv                           every run, and the table
    <run_dir>/runs/seed1-lr5e-05-epochs3/                     one of them

One by one, each run is an ordinary one in its directory: a sweep that was stopped goes on with the
run that was. Side by side, those with the same number of epochs are one program
(`finetune.side_by_side`), which starts again if it was stopped; their directories have the curves,
that of the best also its parameters.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from typing import Final

import jax
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig, need
from bert_jax.errors import RunStopped, UserError
from bert_jax.files import read_text, write_whole
from bert_jax.finetune.degenerate import degenerate
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.sweep import Point, Result, SweepSection, best_of, points_of
from bert_jax.finetune.way import Size, Way, choose_way, step_bytes
from bert_jax.parallel.rules import runs_sharding
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.loop import Outcome
from bert_jax.train.sections import CheckpointSection
from bert_jax.verbs.finetune_run import fine_run
from bert_jax.verbs.finetune_setup import (
    Prepared,
    claim,
    make_predictor,
    prepare,
    settings_of,
    tell_data,
)
from bert_jax.verbs.finetuned import EVALUATION, PREDICTIONS, conclude
from bert_jax.verbs.loading import load_params
from bert_jax.verbs.run_dir import CHECKPOINTS, claim_run, open_run, write_run
from bert_jax.verbs.sweep_record import SWEEP, Record
from bert_jax.verbs.sweep_together import point_config, run_together

__all__ = ["SWEEP", "plan", "sweep"]

RUNS: Final = "runs"


def plan(config: RunConfig, *, seeds: int | None) -> tuple[RunConfig, list[Point]]:
    """Returns the runs that a configuration asks for, and the configuration that says so itself.

    Args:
        config: needs `finetune`.
        seeds: in place of `finetune.sweep.seeds`.

    Returns:
        The configuration with `seeds` in it; with one run, the configuration of that run.

    Raises:
        UserError: fewer than one seed.
    """
    section = need(config.finetune, "finetune", "finetune")
    if seeds is not None:
        if seeds < 1:
            raise UserError(f"--seeds: found {seeds}, allowed: 1 or more")
        asked = (section.sweep or SweepSection()).model_copy(update={"seeds": seeds})
        section = section.model_copy(update={"sweep": asked})
        config = config.model_copy(update={"finetune": section})
    points = points_of(
        section.sweep or SweepSection(),
        seed=config.seed,
        learning_rate=section.optimizer.learning_rate,
        epochs=section.epochs,
    )
    if len(points) == 1 and config.run_dir is not None:
        return point_config(config, points[0], run_dir=config.run_dir), points
    return config, points


def sweep(config: RunConfig, points: Sequence[Point], *, console: Console) -> Outcome:
    """Runs all points that are not done yet, shows the table, and writes the best run.

    Args:
        config: from `plan`.
        points: from `plan`.
        console: where progress is shown.

    Returns:
        The best run's step and figures, or that a signal stopped the sweep.

    Raises:
        UserError: the configuration does not fit the data, the origin or the run directory, or
            its runs cannot be compared.
        RunStopped: no run ended with a figure.
    """
    prepared = prepare(config)
    _check(prepared, points)
    way = _way(prepared, points)
    root = claim_run(
        config, architecture=prepared.architecture, tokenizer=prepared.origin.tokenizer
    )
    record = Record(root, settings=settings_of(config), metric=prepared.family.best_metric)
    if not record.done:
        tell_data(prepared, console)
        record.write()
        predictor = make_predictor(prepared)
        if not _run_all(prepared, points, way, root, record, predictor, console):
            return Outcome(0, True, {})
        _promote(prepared, root, record, predictor, console)
    record.show(console)
    best = best_of(record.results)
    assert best is not None  # otherwise it would not be done
    return Outcome(best.step, False, best.scores)


def _run_all(
    prepared: Prepared,
    points: Sequence[Point],
    way: Way,
    root: epath.Path,
    record: Record,
    predictor: Predictor,
    console: Console,
) -> bool:
    """Runs what is not done, and returns False if a signal came before all was."""
    told = "side by side" if way.together else "one by one"
    done = f", {len(record.results)} of them done" if record.results else ""
    _say(console, f"{len(points)} runs {told} ({way.why}){done}")
    for epochs, found in itertools.groupby(points, key=lambda point: point.epochs):
        group = [point for point in found if point not in record]
        if way.together and group:
            _say(console, f"epochs {epochs}: {len(group)} runs")
            results = run_together(
                _at(prepared, group[0], root),
                group,
                root=root / RUNS,
                predictor=predictor,
                console=console,
            )
            if results is None:
                return False
            record.add(results)
            continue
        for point in group:
            _say(console, point.name)
            result = _run_point(_at(prepared, point, root), point, predictor, console)
            if result is None:
                return False
            record.add([result])
    return True


def _run_point(
    prepared: Prepared, point: Point, predictor: Predictor, console: Console
) -> Result | None:
    """Runs one point as an ordinary run, from where it was stopped; None if it is stopped again."""
    started = time.monotonic()
    root = claim(prepared)
    try:
        outcome = fine_run(prepared, root, predictor, console=console)
    except RunStopped as stopped:
        _say(console, f"{point.name}: {stopped}")
        seconds = time.monotonic() - started
        return Result(point, None, 0, {}, f"stopped: {stopped}", seconds)
    if outcome.interrupted:
        return None
    found = json.loads(read_text(root / EVALUATION))
    lines = read_text(root / PREDICTIONS / f"{prepared.dev[0]}.jsonl").splitlines()
    why = degenerate(prepared.family, [json.loads(line) for line in lines])
    scores = found["scores"]
    seconds = time.monotonic() - started
    metric = prepared.family.best_metric
    return Result(point, scores[metric], found["step"], scores, why, seconds)


def _promote(
    prepared: Prepared, root: epath.Path, record: Record, predictor: Predictor, console: Console
) -> None:
    """Makes the sweep's directory that of its best run."""
    best = best_of(record.results)
    if best is None:
        raise RunStopped(
            f"none of {len(record.results)} runs ended with a figure; see {root / SWEEP}"
        )
    run = open_run(root / RUNS / best.point.name)
    loaded = load_params(run, checkpoint="auto", on=prepared.mesh)
    with Checkpointer(root / CHECKPOINTS, CheckpointSection()) as checkpointer:
        # There already, if the process was killed below.
        if checkpointer.latest_step() is None:
            checkpointer.save_params(loaded.params, step=loaded.step, rank=0.0)
    config = point_config(prepared.config, best.point, run_dir=str(root))
    own = need(config.finetune, "finetune", "finetune").model_copy(
        update={"sweep": prepared.section.sweep}
    )
    if jax.process_index() == 0:
        write_whole(root / "metrics.jsonl", (run.directory / "metrics.jsonl").read_bytes())
        write_run(
            root,
            config.model_copy(update={"finetune": own}),
            run_dir=str(root),
            architecture=prepared.architecture,
            tokenizer=prepared.origin.tokenizer,
            origin={"init_from": str(prepared.origin.directory), "best_of": SWEEP},
        )
    conclude(
        open_run(root),
        prepared.family,
        predictor,
        mesh=prepared.mesh,
        console=console,
        seeds=[result.to_json() for result in record.results if result.score is not None],
    )
    record.finish()


def _at(prepared: Prepared, point: Point, root: epath.Path) -> Prepared:
    """Returns what is prepared for one point: the same data, its own settings."""
    config = point_config(prepared.config, point, run_dir=str(root / RUNS / point.name))
    return prepared._replace(config=config, section=need(config.finetune, "finetune", "finetune"))


def _check(prepared: Prepared, points: Sequence[Point]) -> None:
    if not prepared.dev:
        raise UserError(
            f"finetune.task.dev: found none, allowed: a file, since {len(points)} runs are "
            f"compared by their dev figures"
        )


def _way(prepared: Prepared, points: Sequence[Point]) -> Way:
    """Decides between side by side and one by one."""
    section, mesh = prepared.section, prepared.mesh
    runs = sum(point.epochs == points[0].epochs for point in points)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(prepared.model.params))
    choices = len(prepared.family.splits["train"].row(0).sequences)
    activations = step_bytes(
        prepared.architecture,
        prepared.task.execution,
        rows=section.batch_size // section.accumulation * choices,
        length=section.max_length,
    )
    return choose_way(
        (section.sweep or SweepSection()).together,
        runs=runs,
        size=Size(parameters, activations),
        devices=list(runs_sharding(mesh, runs).device_set),
        processes=jax.process_count(),
        patience=section.patience is not None,
    )


def _say(console: Console, line: str) -> None:
    if jax.process_index() == 0:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
