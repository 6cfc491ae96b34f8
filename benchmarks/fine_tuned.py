"""Fine-tuning runs of a benchmark: each is run once, and its scores are read from its directory."""

from pathlib import Path
from typing import NamedTuple

import bert_jax
from benchmarks.finished_runs import RunFolder, require_end, seconds_of
from bert_jax.config import load_config
from bert_jax.runs.evaluation import read_evaluation
from bert_jax.runs.run_directory import CONFIG, open_run
from bert_jax.section import Section


class TaskSection(Section):
    """A fine-tuning task with fixed hyperparameters."""

    config: str
    """A file, or the name of a packaged configuration."""
    overrides: tuple[str, ...] = ()
    """``key=value`` settings."""
    data: str
    """Folder of the task below ``--glue``."""
    metric: str
    """Score on the dev split, larger is better."""


class FineTuned(NamedTuple):
    """The result of a fine-tuning run."""

    scores: dict[str, float]  # of the best checkpoint on the dev split
    seconds: float  # wall time without the time between restarts


def fine_tuned(
    folder: RunFolder, name: str, task: TaskSection, *, origin: str, data: Path, seed: int
) -> FineTuned:
    """Fine-tunes the run `origin` of a folder as the run `name`, unless its result exists.

    Raises:
        UserError: the run had another configuration, or an error of `bert_jax.finetune`.
        RunStopped: a bad step or a signal stopped the run.
    """
    run_dir = folder.run_dir(name)
    config = load_config(
        task.config,
        [
            *task.overrides,
            f"seed={seed}",
            f"run_dir={run_dir}",
            f"finetune.init_from={folder.run_dir(origin)}",
            f"finetune.task.data={data / task.data}",
        ],
    )
    folder.write_config(name, config)
    if (found := _result(run_dir)) is None:
        print(f"fine-tune {name}", flush=True)
        require_end(bert_jax.finetune(config), run_dir)
        found = _result(run_dir)
        assert found is not None
    return found


def _result(run_dir: Path) -> FineTuned | None:
    if not (run_dir / CONFIG).exists() or (found := read_evaluation(open_run(run_dir))) is None:
        return None
    return FineTuned(dict(found.scores), seconds_of(run_dir))
