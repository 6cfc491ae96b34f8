"""`bert-jax predict`: a fine-tuned run and a file → predictions, or a benchmark's own files."""

from pathlib import Path

import jax
from rich.console import Console

from bert_jax.data.row_errors import OnError
from bert_jax.inference.bucketed import check_batch_size
from bert_jax.parallel.mesh import initialise
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import open_run
from bert_jax.runs.lock import hold_output
from bert_jax.tasks.prediction import PredictionOutput, Predictions, predict_to
from bert_jax.train.progress_display import format_scores
from bert_jax.verbs.same_command import join_same_command


def predict(
    run_dir: str,
    output: str,
    *,
    input_path: str | None = None,
    submission: bool = False,
    probabilities: bool = False,
    checkpoint: str = "auto",
    batch_size: int | None = None,
    mesh: MeshSection | None = None,
    force: bool = False,
    on_error: OnError | None = None,
    console: Console | None = None,
) -> Predictions:
    """Predicts a file, or the test splits of the task that a run was fine-tuned on.

    SQuAD 2.0's threshold is the one tuned on dev for the same checkpoint.

    Args:
        run_dir: of `finetune`.
        output: .jsonl (the full record of each example) or .csv (id and prediction); with
            `submission` a directory, which gets the files that the benchmark itself takes and may
            hold those of other tasks already.
        input_path: a file in the task's own layout; None for the test splits. Rows without a label
            are predicted too; the scores are of the rows with one.
        submission: write the benchmark's files.
        probabilities: in a .csv, add a column ``probability:LABEL`` for each label.
        checkpoint: `auto` (the best), `last`, `best`, or a step.
        batch_size: rows at a time; does not change the predictions.
        mesh: devices to use; None for all there are.
        force: replace `output`.
        on_error: "skip" leaves out malformed rows of a table, "stop" raises; None for what the
            run's task says.
        console: where the result is shown.

    Raises:
        UserError: not a fine-tuned run, no such file, `output` exists, no batch size, or a
            checkpoint that was not evaluated on the dev file that its threshold comes from.
    """
    target = PredictionOutput(Path(output), submission, force, probabilities)
    target.check()
    check_batch_size(batch_size)
    arguments = {
        "run_dir": run_dir,
        "output": output,
        "--input": input_path,
        "--submission": submission,
        "--probabilities": probabilities,
        "--checkpoint": checkpoint,
        "--batch-size": batch_size,
        "--force": force,
    }
    join_same_command("predict", mesh, arguments)
    initialise(mesh or MeshSection())  # the lock is one for all processes of the job
    with hold_output(target.path):
        result = predict_to(
            target,
            open_run(run_dir),
            input_path=input_path,
            checkpoint=checkpoint,
            batch_size=batch_size,
            mesh=mesh,
            on_error=on_error,
        )
    if console is not None and jax.process_index() == 0:
        files = ", ".join(map(str, result.files))
        counts = ", ".join(f"{name} {len(found):,}" for name, found in result.records.items())
        lines = [*result.notes, f"{files}: {counts}"]
        if result.scores:
            lines.append(format_scores(result.scores) + _of_some(result))
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return result


def _of_some(result: Predictions) -> str:
    """Returns `` (7 of 20 rows have a label)``; "" if all rows have one."""
    of = {name: len(result.records[name]) for name in result.scored}
    some = [f"{n:,} of {of[name]:,} rows" for name, n in result.scored.items() if n < of[name]]
    return f" ({', '.join(some)} have a label)" if some else ""
