"""A run directory: what makes it self-contained, written by one verb and read by the others."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final, NamedTuple

from etils import epath
from flax import nnx

from bert_jax import __version__
from bert_jax.config import RunConfig, dump_config, load_config, need
from bert_jax.errors import UserError
from bert_jax.files import write_whole
from bert_jax.model.bert import Bert, bert_builder
from bert_jax.model.config import (
    Architecture,
    HeadsSection,
    ModelSection,
    resolve_architecture,
)
from bert_jax.objectives.registry import make_objective
from bert_jax.task import Objective
from bert_jax.text import Tokenizer, load_tokenizer

CONFIG: Final = "config.yaml"
TOKENIZER: Final = "tokenizer"
CHECKPOINTS: Final = "checkpoints"
PROVENANCE: Final = "provenance.json"


class Run(NamedTuple):
    """A run directory opened."""

    directory: epath.Path
    config: RunConfig
    tokenizer: Tokenizer
    architecture: Architecture
    heads: HeadsSection
    build: Callable[[nnx.Rngs], Bert]

    @property
    def task(self) -> Objective:
        """The objective it is trained on.

        Raises:
            UserError: the run was imported without one of the heads that pretraining needs.
        """
        if not self.heads.pretraining:
            raise UserError(
                f"{self.directory}: has {describe(self.heads)}; pretraining and its evaluation "
                f"need a pooler, an MLM head and a next-sentence head"
            )
        return make_task(self.config, self.architecture, self.tokenizer)


def describe(heads: HeadsSection) -> str:
    """Returns what stands on an encoder, in words: ``no head but a pooler``."""
    names = {"an MLM head": heads.mlm, "a next-sentence head": heads.next_sentence}
    found = [name for name, there in names.items() if there]
    if heads.task is not None:
        found.append(f"a {heads.task.replace('_', '-')} head")
    if not found:
        return "no head but a pooler" if heads.pooler else "no head and no pooler"
    return " and ".join(["a pooler", *found] if heads.pooler else found)


def open_run(directory: epath.PathLike) -> Run:
    """Opens what `pretrain` (or `import`) wrote.

    Args:
        directory: local or gs://.

    Raises:
        UserError: it is no run directory.
    """
    root = epath.Path(directory)
    if not (root / CONFIG).exists():
        what = "no config.yaml in it" if root.exists() else "no such directory"
        raise UserError(f"{root}: {what}; expected a run directory of `bert-jax pretrain`")
    config = load_config(root / CONFIG)
    tokenizer = load_tokenizer(root / TOKENIZER)
    section = need(config.model, "model", "pretrain")
    architecture = resolve_architecture(section, vocab_size=tokenizer.vocab_size)
    build = bert_builder(architecture, section.execution, section.heads)
    return Run(root, config, tokenizer, architecture, section.heads, build)


def make_task(config: RunConfig, architecture: Architecture, tokenizer: Tokenizer) -> Objective:
    """Returns the run's objective."""
    section = need(config.model, "model", "pretrain")
    return make_objective(
        config.objective,
        architecture=architecture,
        execution=section.execution,
        tokenizer=tokenizer,
    )


def claim_run(config: RunConfig, *, architecture: Architecture, tokenizer: Tokenizer) -> epath.Path:
    """Returns the run directory, made if it is not there.

    Raises:
        UserError: the directory cannot be made, or holds a run of another architecture or
            tokenizer.
    """
    root = epath.Path(need(config.run_dir, "run_dir", "pretrain"))
    try:
        if (root / CONFIG).exists():
            _same_model(open_run(root), architecture, tokenizer)
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run_dir: cannot write {root} ({error.strerror or error})") from error
    return root


def write_run(
    root: epath.Path,
    config: RunConfig,
    *,
    run_dir: str,
    architecture: Architecture,
    tokenizer: Tokenizer,
    origin: dict[str, Any],
) -> None:
    """Writes what makes a run self-contained: resolved config.yaml, tokenizer/, provenance.json.

    Args:
        root: where to write.
        config: as the user gave it.
        run_dir: where the run will lie.
        architecture: of the model.
        tokenizer: copied, so that the run needs nothing else.
        origin: what the parameters were made from: datasets, another run, an import.

    Raises:
        UserError: the directory cannot be written.
    """
    resolved = config.model_copy(
        update={"model": _spelled_out(config, architecture), "run_dir": run_dir}
    )
    tokenizer.save(root / TOKENIZER)
    write_whole(root / CONFIG, dump_config(resolved).encode())
    write_whole(root / PROVENANCE, json.dumps(_provenance(tokenizer, origin), indent=2).encode())


def _same_model(run: Run, architecture: Architecture, tokenizer: Tokenizer) -> None:
    if run.tokenizer.hash != tokenizer.hash:
        raise UserError(
            f"tokenizer: differs from the one in {run.directory}; allowed: the same one, or a new "
            f"run_dir"
        )
    for name in Architecture.model_fields:
        was, now = getattr(run.architecture, name), getattr(architecture, name)
        if was != now:
            raise UserError(
                f"model.{name}: found {now}, but {run.directory} holds a run with {was}; allowed: "
                f"{was}, or a new run_dir"
            )


def _spelled_out(config: RunConfig, architecture: Architecture) -> ModelSection:
    """Every size as a number: the file that they came from need not exist later."""
    section = need(config.model, "model", "pretrain")
    sizes = architecture.model_dump(exclude={"vocab_size"})
    return section.model_copy(update={"size": None, "bert_config": None, **sizes})


def _provenance(tokenizer: Tokenizer, origin: dict[str, Any]) -> dict[str, Any]:
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
    return {
        "tokenizer_hash": tokenizer.hash,
        **origin,
        "bert_jax": __version__,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
    }
