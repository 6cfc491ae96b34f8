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
from bert_jax.interop.hub import fetch, is_hub_name
from bert_jax.interop.importing import read_checkpoint, summarize, write_imported_run
from bert_jax.interop.local import cache_name, identify, is_checkpoint
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

    fill-mask, features, fine-tuning and export work on it as on a run of our own. With Adam's
    moments in it, `pretrain` resumes from its step.

    Args:
        source: a local directory with a Hugging Face or a google-research/bert checkpoint, or the
            path of the latter without ``.index``; or the name of a model on a hub, with ``@`` a
            revision, which provenance.json then holds: ``google-bert/bert-base-uncased@main``.
        run_dir: a local directory that does not exist yet.
        tokenizer: a tokenizer directory, for a checkpoint that brings none.
        lower_case: of a bare vocab.txt, which does not say it.
        force: replace `run_dir`; the old one stays until the new one is whole.
        console: where the result is shown.

    Returns:
        The run directory.

    Raises:
        UserError: nothing that can be read, a tensor that does not fit, or `run_dir` exists.
    """
    snapshot = fetch(source) if is_hub_name(source) else None
    directory = source if snapshot is None else snapshot.directory
    for path in (directory, run_dir):
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
        model = read_checkpoint(Path(directory), tokenizer=tokenizer, lower_case=lower_case)
        write_imported_run(
            aside,
            model,
            run_dir=run_dir,
            settings=config.model_dump(mode="json"),
            optimizer=config.optimizer,
            seed=config.seed,
            record={} if snapshot is None else snapshot.record,
        )
    if console is not None:
        for line in summarize(model):
            console.print(f"{run_dir}: {line}", markup=False, soft_wrap=True)
    return Path(run_dir)


class Origin(NamedTuple):
    """A run that parameters are taken from."""

    run_dir: str
    name: str  # what a configuration says: the run's directory, or a name with what it stood for


def find_origin(source: str) -> Origin:
    """Returns the run that a source names; what is no run yet is imported into the user's cache.

    Args:
        source: a run directory; a local Hugging Face or google-research/bert directory, with ``@``
            the SHA-256 of its contents; or the name of a model on a hub.

    Raises:
        UserError: as `fetch`, `identify` and `import_checkpoint`.
    """
    models = user_cache("models")
    if is_hub_name(source):
        snapshot = fetch(source)
        run_dir = models / snapshot.pinned.replace("/", "--")
        _import_once(f"{MODELS}{snapshot.pinned}", run_dir)
        return Origin(str(run_dir), snapshot.pinned)
    if is_checkpoint(source):
        found = identify(source, cached=models)
        run_dir = models / cache_name(found)
        _import_once(found.path, run_dir)
        return Origin(str(run_dir), found.pinned)
    return Origin(source, source)


def _import_once(source: str, run_dir: Path) -> None:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    # Processes of one job start together, and share the cache where they share a machine.
    with filelock.FileLock(f"{run_dir}.importing"):
        if not (run_dir / CONFIG).exists():
            import_checkpoint(source, str(run_dir))
