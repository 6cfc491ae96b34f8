"""`bert-jax import`: a checkpoint of Hugging Face or google-research → a run directory."""

import contextlib
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import filelock
import jax
import jax.numpy as jnp
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.data.worker_process import prepare_worker, without_main
from bert_jax.files.atomic import new_directory
from bert_jax.files.read import sha256_of
from bert_jax.files.remote import require_local
from bert_jax.files.scratch import user_cache
from bert_jax.interop.hf_tokenizer import tokenizer_files
from bert_jax.interop.importing import read_checkpoint, to_device
from bert_jax.interop.sources import fetch, identify, is_checkpoint, is_hub_name
from bert_jax.interop.tensor_conversion import Params, Pretrained
from bert_jax.model.section import Execution
from bert_jax.narration import doing
from bert_jax.objectives.registry import kind_for
from bert_jax.optim.optimizer import MomentsState, make_optimizer, with_moments
from bert_jax.parallel.section import MeshSection
from bert_jax.places import MODELS
from bert_jax.runs.lock import hold_output, hold_run
from bert_jax.runs.open_checkpoints import write_checkpoints
from bert_jax.runs.run_directory import CONFIG, names_of_import, write_run
from bert_jax.runs.settings import describe
from bert_jax.task import GENERATOR
from bert_jax.train.checkpoint_manifest import IMPORTED
from bert_jax.train.state import TrainState, run_key
from bert_jax.verbs.same_command import errors_for_all, several_processes
from bert_jax.version import __version__

# Memory that Orbax needs in addition to the array that it writes.
SAVE_SLACK_BYTES: Final = 1 << 20


def import_checkpoint(
    source: str,
    run_dir: str,
    *,
    tokenizer: str | None = None,
    lower_case: bool | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Path:
    """Converts another program's checkpoint to an ordinary run directory.

    The verbs fill-mask, features, finetune and export accept the directory like any other run. If
    the checkpoint has Adam's moments, `pretrain` resumes from its step.

    Args:
        source: a local directory with a checkpoint of Hugging Face or google-research; the path
            of a TensorFlow checkpoint without ``.index``; or a model on a hub with an
            optional revision: ``google-bert/bert-base-uncased@main``. ``provenance.json`` records
            the source.
        run_dir: a new local directory.
        tokenizer: a tokenizer directory, for a checkpoint without a tokenizer.
        lower_case: whether the vocabulary is lower case, for a ``vocab.txt`` alone.
        force: replace `run_dir`. The old run stays until the new run is complete.
        console: console for the result.

    Returns:
        The run directory.

    Raises:
        UserError: the checkpoint is unreadable, a tensor has a wrong shape, or `run_dir` exists.
    """
    fetched = fetch(source) if is_hub_name(source) else None
    directory = Path(source) if fetched is None else fetched.directory
    for path in (source if fetched is None else "", run_dir):
        require_local(path, verb="import")
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_output(run_dir))
        if Path(run_dir, CONFIG).exists():  # fails if the old run is training
            stack.enter_context(hold_run(epath.Path(run_dir)))
        aside = stack.enter_context(new_directory(Path(run_dir), force=force, ours=names_of_import))
        stack.enter_context(doing(f"importing {source}"))
        model = read_checkpoint(directory, tokenizer=tokenizer, lower_case=lower_case)
        _write(aside, model, run_dir, record={} if fetched is None else fetched.record)
    if console is not None:
        for line in _summary(model):
            console.print(f"{run_dir}: {line}", markup=False, soft_wrap=True)
    return Path(run_dir)


class Origin(NamedTuple):
    """A run from which another run takes its initial parameters."""

    run_dir: str
    name: str  # value for a configuration: run directory, or model with its revision


def find_origin(source: str, *, mesh: MeshSection | None = None) -> Origin:
    """Returns a run with the parameters of a source, imported into the cache if necessary.

    With several processes, an error before they have joined is the error of all of them.

    `source`: a run directory; a local directory of Hugging Face or google-research, with an
    optional ``@`` and the SHA-256 of its contents; or a model on a hub. `mesh`: devices of the
    verb. Raises UserError like `fetch`, `identify` and `import_checkpoint`.
    """
    with errors_for_all(mesh):
        return _find_origin(source, alone=several_processes(mesh))


def _find_origin(source: str, *, alone: bool) -> Origin:
    models, on_hub = user_cache(f"models/{__version__}"), is_hub_name(source)
    if not on_hub and not is_checkpoint(source):
        return Origin(source, source)
    found = fetch(source) if on_hub else identify(source, cached=models)
    run_dir = models / found.cached_as
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    # Processes of one job may import into a shared cache at the same time.
    with filelock.FileLock(f"{run_dir}.importing"):
        if not (run_dir / CONFIG).exists():
            model = f"{MODELS}{found.pinned}" if on_hub else str(found.directory)
            (_import_alone if alone else import_checkpoint)(model, str(run_dir))
    return Origin(str(run_dir), found.pinned)


def _import_alone(source: str, run_dir: str) -> None:
    """Imports in a process of its own, for a job of several processes.

    JAX joins the others only before its first computation. After that, a save waits for them.
    """
    context = multiprocessing.get_context("spawn")
    with (
        doing(f"importing {source}"),
        without_main(),
        ProcessPoolExecutor(1, context, initializer=prepare_worker, initargs=(0, 1)) as pool,
    ):
        pool.submit(import_checkpoint, source, run_dir).result()


def _write(root: Path, model: Pretrained, run_dir: str, *, record: Mapping[str, str]) -> None:
    """Writes the run directory to `root`, which is later renamed to `run_dir`.

    Replaces the model's NumPy arrays with JAX arrays. `record` is the model's source, for
    provenance.json.
    """
    objective: dict[str, Any] = {"kind": kind_for(model.heads)}
    if model.generator is not None and model.heads.replaced_tokens:
        objective = {"kind": "electra", "generator": model.generator_settings}
    config = RunConfig.model_validate({"objective": objective})
    directory = model.files[0].parent
    model_type = {} if model.model_type is None else {"model_type": model.model_type}
    files = sorted({*model.files, *tokenizer_files(directory)})
    write_run(
        epath.Path(root),
        config.model_dump(mode="json"),
        run_dir=run_dir,
        execution=Execution(dtype="float32"),
        heads=model.heads,
        architecture=model.architecture,
        tokenizer=model.tokenizer,
        origin={
            "imported_from": {
                **record,
                **model_type,
                "directory": str(directory),
                "sha256": {
                    path.relative_to(directory).as_posix(): sha256_of(path) for path in files
                },
            },
            "tensors_ignored": dict(model.ignored),
        },
    )
    params = dict(model.params)
    if model.generator is not None:
        params[GENERATOR] = model.generator
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    to_device(params)
    step = model.step or 0
    with write_checkpoints(root, save_bytes=largest + SAVE_SLACK_BYTES) as checkpointer:
        if model.moments is None:
            checkpointer.save_params(params, step=step)
        else:
            state = _train_state(params, model.moments, step, config)
            checkpointer.save(state, step=step, progress={IMPORTED: True})


def _summary(model: Pretrained) -> list[str]:
    """Returns lines that describe the imported model."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    moments = "" if model.moments is None else f", Adam's moments at step {model.step or 0}"
    rows, pieces = model.architecture.vocab_size, model.tokenizer.vocab_size
    lines = [f"{numbers:,} parameters, {describe(model.heads)}, {pieces:,} pieces{moments}"]
    if rows > pieces:
        lines.append(
            f"vocab_size is {rows:,}: {rows - pieces:,} rows have no piece and are never predicted"
        )
    if getattr(model.architecture, "type_vocab_size", 2) == 1:
        lines.append("type_vocab_size is 1: both spans of a pair get token type 0")
    return [*lines, *model.notes]


def _train_state(params: Params, moments: MomentsState, step: int, config: RunConfig) -> TrainState:
    """Returns the state that a run with `config` would save at this step."""
    for part in moments:
        to_device(part)
    optimizer = make_optimizer(config.optimizer, axes=None)  # only LAMB's update reads the axes
    fresh = jax.eval_shape(optimizer.init, params)
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        rng=run_key(config.seed),
        params=params,
        opt_state=with_moments(fresh, moments, step=step),
        healthy=jnp.ones((), jnp.bool_),
    )
