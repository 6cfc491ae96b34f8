"""`bert-jax replay`: repeats a bad step from its dump, on any machine."""

import jax
from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.model.section import Dtype
from bert_jax.objectives.of_run import objective_of
from bert_jax.parallel.mesh import initialise
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.run_directory import Run, open_run
from bert_jax.tasks.training.setup import task_of
from bert_jax.train.dump import DumpRecord, read_record
from bert_jax.train.replay import Replay, by_layer, by_module, replay_step
from bert_jax.train.state import define_model
from bert_jax.verbs.teachers import teacher_of_task, with_teacher_of_run


def replay(
    dump: str,
    *,
    dtype: Dtype | None = None,
    mesh: MeshSection | None = None,
    console: Console | None = None,
) -> Replay:
    """Repeats a step from the parameters, batch and random key of its dump.

    Args:
        dump: a directory ``bad_step_<n>`` of a run, or a copy.
        dtype: dtype of activations. Default: the run's dtype. In float32, an overflow of bfloat16
            disappears, but other non-finite values remain.
        mesh: section whose platform is used; its other settings are ignored. The replay uses the
            largest number of local devices that divides the rows of a microbatch.
        console: console for the result. Default: standard output.

    Returns:
        Loss, gradient norms, non-finite inputs, and whether the step reproduces.

    Raises:
        UserError: the dump is missing or damaged.
    """
    folder = epath.Path(dump)
    record = read_record(folder)
    run = open_run(folder)
    if dtype is not None:
        execution = run.model.execution.model_copy(update={"dtype": dtype})
        run = run._replace(model=run.model.model_copy(update={"execution": execution}))
    run = run._replace(architecture=run.architecture.with_changes(record.architecture))
    initialise(mesh or MeshSection())
    if run.is_fine_tuned:
        weights = record.task.get("class_weights")
        task = task_of(run, class_weights=weights, teacher=teacher_of_task(run))
        found = replay_step(folder, record, task, chunks=task.chunks)
    else:
        task = objective_of(with_teacher_of_run(run), phase=record.phase)
        found = replay_step(folder, record, task)
    _show(run, record, found, console or Console())
    return found


def _show(run: Run, record: DumpRecord, found: Replay, console: Console) -> None:
    def say(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    here, then = jax.default_backend(), record.figures
    say(f"step {record.step}: {record.reason}")
    say(f"then, {record.platform}: loss {then['loss']:.6g}, norm {then['gradient_norm']:.6g}")
    execution, groups = run.model.execution, define_model(run.build).groups
    say(f"here, {here}, {execution.dtype}: loss {found.loss:.6g}, norm {found.gradient_norm:.6g}")
    for line in found.bad_inputs:
        say(f"not finite before the step: {line}", "bold")
    recorded = by_module(by_layer(record.gradient_norms, groups))
    table = Table("gradient norm, in the order of the backward pass", "then", "here")
    for module, norm in by_module(found.gradient_norms).items():
        table.add_row(module, f"{recorded.get(module, float('nan')):.4g}", f"{norm:.4g}")
    console.print(table)
    if found.first_bad:
        say(f"first gradient that is not finite: {found.first_bad}", "bold")
    say(f"reproduces: {'yes' if found.reproduces else 'no'}", "bold")
