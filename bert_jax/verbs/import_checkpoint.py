"""`bert-jax import`: a Hugging Face or google-research/bert checkpoint → a run directory."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import filelock
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import user_cache
from bert_jax.interop.importing import read_checkpoint, summarize, write_imported_run
from bert_jax.interop.sources import fetch, identify, is_checkpoint, is_hub_name
from bert_jax.narration import doing
from bert_jax.places import MODELS
from bert_jax.runs.directory import CONFIG
from bert_jax.runs.lock import hold_output, hold_run


def import_checkpoint(
    source: str,
    run_dir: str,
    *,
    tokenizer: str | None = None,
    lower_case: bool | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Path:
    """Writes an ordinary run directory from a checkpoint of another program.

    fill-mask, features, fine-tuning and export work on it as on a run of our own. If the checkpoint
    has Adam's moments, `pretrain` resumes from its step.

    Args:
        source: a local directory with a Hugging Face or a google-research/bert checkpoint; the
            path of the latter without ``.index``; or a model on a hub with an optional revision,
            ``google-bert/bert-base-uncased@main``. provenance.json records the commit.
        run_dir: a new local directory.
        tokenizer: a tokenizer directory, for a checkpoint without a tokenizer.
        lower_case: casing of a vocab.txt without settings.
        force: replace `run_dir`; the old run stays until the new one is whole.
        console: where the result is shown.

    Returns:
        The run directory.

    Raises:
        UserError: no readable checkpoint, a tensor that does not fit, or `run_dir` exists.
    """
    fetched = fetch(source) if is_hub_name(source) else None
    directory = Path(source) if fetched is None else fetched.directory
    for path in (source if fetched is None else "", run_dir):
        if is_remote(path):
            raise UserError(
                f"import: found {path}, allowed: a local path (copy it from the bucket)"
            )
    config = RunConfig()
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_output(run_dir))
        if Path(run_dir, CONFIG).exists():  # may be training
            stack.enter_context(hold_run(epath.Path(run_dir)))
        aside = stack.enter_context(new_directory(Path(run_dir), force=force))
        stack.enter_context(doing(f"importing {source}"))
        model = read_checkpoint(directory, tokenizer=tokenizer, lower_case=lower_case)
        write_imported_run(
            aside,
            model,
            run_dir=run_dir,
            settings=config.model_dump(mode="json"),
            optimizer=config.optimizer,
            seed=config.seed,
            record={} if fetched is None else fetched.record,
        )
    if console is not None:
        for line in summarize(model):
            console.print(f"{run_dir}: {line}", markup=False, soft_wrap=True)
    return Path(run_dir)


class Origin(NamedTuple):
    """A run that parameters are taken from."""

    run_dir: str
    name: str  # for configurations: the run's directory, or a pinned name


def find_origin(source: str) -> Origin:
    """Returns the run that a source names; another program's checkpoint is imported into the cache.

    The source is a run directory; a local Hugging Face or google-research/bert directory, with an
    optional ``@`` and the SHA-256 of its contents; or a model on a hub. Raises UserError as
    `fetch`, `identify` and `import_checkpoint`.
    """
    models, on_hub = user_cache("models"), is_hub_name(source)
    if not on_hub and not is_checkpoint(source):
        return Origin(source, source)
    found = fetch(source) if on_hub else identify(source, cached=models)
    run_dir = models / found.cached_as
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    # Processes of one job start together, and share the cache if they share a machine.
    with filelock.FileLock(f"{run_dir}.importing"):
        if not (run_dir / CONFIG).exists():
            import_checkpoint(
                f"{MODELS}{found.pinned}" if on_hub else str(found.directory), str(run_dir)
            )
    return Origin(str(run_dir), found.pinned)
