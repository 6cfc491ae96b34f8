"""`bert-jax report`: the page of a pretraining run, or a comparison of several."""

import os
from collections.abc import Sequence

from etils import epath
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.narration import doing
from bert_jax.report.pretraining.page import MOST_RUNS
from bert_jax.runs.run_directory import Run, open_run
from bert_jax.runs.settings import REPORT
from bert_jax.workflows import pretraining_report

COMPARISON = "comparison.html"


def write_report(
    runs: str | Sequence[str], *, output: str | None = None, console: Console | None = None
) -> epath.Path:
    """Writes the report of a pretraining run, or a page that compares several.

    ``write_report("runs/base")``, ``write_report(["runs/a", "runs/b"], output="both.html")``

    `pretrain` writes the report of a run at its end. During a run, this function writes it from the
    metrics and the last checkpoint so far.

    Args:
        runs: run directories of `pretrain`, local or ``gs://``.
        output: file to write. Default: ``report.html`` in the run's directory; for several runs
            ``comparison.html`` in the working directory.
        console: console for the result. Default: no output.

    Returns:
        The file.

    Raises:
        UserError: a run does not exist or was not pretrained, two runs are equal, a checkpoint is
            damaged, or the file cannot be written.
    """
    paths = [runs] if isinstance(runs, str) else list(runs)
    if not 1 <= len({os.path.normpath(path) for path in paths}) == len(paths) <= MOST_RUNS:
        raise UserError.wrong(
            "report.runs", f"{len(paths)}", f"1 to {MOST_RUNS} different runs", place="RUN"
        )
    opened = {name: _open(path) for name, path in zip(_names(paths), paths, strict=True)}
    default = epath.Path(paths[0]) / REPORT if len(paths) == 1 else epath.Path(COMPARISON)
    file = default if output is None else epath.Path(output)
    with doing(f"writing {file}"):
        pretraining_report.write_report(opened, file)
    if console is not None:
        console.print(f"report: {file}", markup=False, soft_wrap=True)
    return file


def _open(path: str) -> Run:
    run = open_run(path)
    if run.is_fine_tuned:
        raise UserError(
            "report.fine_tuned",
            f"a fine-tuned run; `bert-jax finetune` has written {epath.Path(path) / REPORT}",
            place=path,
        )
    if not run.has("train"):
        raise UserError("report.imported", "an imported model, which has no metrics", place=path)
    return run


def _names(paths: Sequence[str]) -> list[str]:
    """Returns the last parts of paths, as few as distinguish them: ``["a/run", "b/run"]``."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)
