"""`bert-jax score`: a model and a corpus → labels, scores, tags or vectors."""

from collections.abc import Mapping
from typing import Any

from etils import epath
from rich.console import Console

from bert_jax.config import AnyConfig, RunConfig, as_config
from bert_jax.corpus.job import open_scored_model, prepare
from bert_jax.corpus.report import REPORT, write_report
from bert_jax.corpus.run import ScoreResult, run_job
from bert_jax.corpus.section import ScoreSection
from bert_jax.errors import counted
from bert_jax.narration import speaking
from bert_jax.parallel.accelerators import accelerator_of
from bert_jax.parallel.memory import advising
from bert_jax.parallel.own_host import open_own_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.planning.prices import load_prices
from bert_jax.runs.lock import hold_output
from bert_jax.runs.run_directory import open_run
from bert_jax.section import need
from bert_jax.tasks.data_of_run import section_of
from bert_jax.tasks.table import TableSection
from bert_jax.validation import validate


def score(config: AnyConfig, *, console: Console | None = None, **overrides: Any) -> ScoreResult:
    """Runs a model over a corpus. The same command finishes the parts that are missing.

    Every host of a job scores its own parts and needs no other host. The results depend neither on
    the number of workers and hosts nor on the engine, for an equal number of devices in a process.

    Args:
        config: a configuration, a dict of its settings or its file, with `score`.
        console: console for the progress. Default: standard output.
        overrides: settings that replace the configuration's, see `bert_jax.pretrain`.

    Raises:
        UserError: a setting does not fit the model or the input, or a row cannot be read.
        RunStopped: the system killed a worker, or a bucket does not answer.
    """
    with speaking(console or Console()):
        return score_with(as_config(config, overrides), console=console or Console())


@advising("Use a smaller score.batch_tokens or score.max_length.")
def score_with(config: RunConfig, *, console: Console) -> ScoreResult:
    """Runs a model over a corpus as configured. Raises the errors of `score`."""
    section = need(config.score, "score", "score")
    mesh, host = open_own_mesh(config.mesh, one_device=section.engine == "beam")  # as its workers
    lock = f"{section.output}.host-{host.index}" if host.count > 1 else section.output
    with hold_output(lock):
        model = open_scored_model(section, mesh)
        job = prepare(section, model)
        price = dollars_per_hour(section, model.mesh.devices.flat)
        result = run_job(job, model, host=host, dollars_per_hour=price)
        if not result.missing and (result.computed or not (job.output / REPORT).exists()):
            write_report(job, result, speed=_speed(result, price))
    for line in _lines(section, result, price):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return result


def predict_files(
    run_dir: str,
    pattern: str,
    output: str,
    *,
    checkpoint: str,
    mesh: MeshSection,
    settings: Mapping[str, Any],
    console: Console,
) -> ScoreResult:
    """Predicts many files with a fine-tuned run, whose task names the columns."""
    task = section_of(open_run(run_dir)).task
    columns = {}
    if isinstance(task, TableSection):
        columns = {"text": task.text, "pair": task.pair, "id": task.id}
    values = {
        "model": run_dir,
        "checkpoint": checkpoint,
        "input": pattern,
        "output": output,
        "result": "head",
        **{name: column for name, column in columns.items() if column is not None},
        **settings,
    }
    return score_files(values, mesh=mesh, console=console)


def score_files(values: Mapping[str, Any], *, mesh: MeshSection, console: Console) -> ScoreResult:
    """Scores many files with the settings of a section `score`."""
    section = validate(ScoreSection, values, source="", key="score")
    return score_with(RunConfig(score=section, mesh=mesh), console=console)


def dollars_per_hour(section: ScoreSection, devices: Any) -> float | None:
    """Returns the price of this host: as set, or the list price of its TPU chips."""
    if section.dollars_per_hour is not None:
        return section.dollars_per_hour
    found = accelerator_of(devices[0])
    price = found and load_prices().chip_hour.get(found.name)
    return price.on_demand * len(devices) if price else None


def _lines(section: ScoreSection, result: ScoreResult, price: float | None) -> list[str]:
    """Returns the lines to print at the end."""
    records = result.records
    total = {
        name: sum(getattr(record, name) for record in records)
        for name in ("read", "written", "dropped", "skipped", "cut")
    }
    lines = [note for record in records for note in record.notes][:3]
    lines += [f"{record.damage} (reading ended there)" for record in records if record.damage][:3]
    found = [counted(total["read"], "document")]
    if section.keep is not None:
        found.append(f"{total['written']:,} kept, {total['dropped']:,} dropped")
    if total["cut"]:
        found.append(f"{total['cut']:,} cut")
    if total["skipped"]:
        found.append(f"{total['skipped']:,} skipped")
    parts = counted(len(records), "part")
    if result.missing:
        parts += f", {result.missing:,} missing: other hosts compute them, or the same command"
    lines.append(f"{section.output}: {parts}, {', '.join(found)}")
    if (speed := _speed(result, price)) is not None:
        lines.append(speed)
    if not result.missing:
        lines.append(f"report: {epath.Path(section.output) / REPORT}")
    return lines


def _speed(result: ScoreResult, price: float | None) -> str | None:
    """Returns the time and the rates of this command, or None if it read no rows."""
    if not result.rows:
        return None
    seconds = max(result.seconds, 1e-9)
    rates = [
        f"{result.rows / seconds:,.0f} documents/s",
        f"{result.tokens / seconds:,.0f} tokens/s",
        f"padding {1 - result.tokens / result.positions:.0%}",
        f"devices waited {result.waited:.0%}",
    ]
    if price is not None:
        rates.append(f"${price * seconds / 3600:,.2f}")
    return ", ".join([f"{seconds:,.0f} s", *rates])
