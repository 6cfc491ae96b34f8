"""The model that `pretrain --init-from` names.

A new run takes its network, and the parameters of the modules that both have. The tokenizers must
be equal, because a row of the embedding belongs to a piece.
"""

import os
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import ModelSection
from bert_jax.runs.open_checkpoints import read_checkpoints, run_of_checkpoint
from bert_jax.runs.run_directory import CONFIG, TOKENIZER, Run, open_run, read_run_provenance
from bert_jax.text import Tokenizer
from bert_jax.workflows.pretraining_settings import PretrainSettings

INIT_FROM: Final = "--init-from"


def find_initial(settings: PretrainSettings, tokenizer: Tokenizer) -> Run | None:
    """Returns the run whose network a run has; None if `settings.model` defines the network.

    It is the run that `--init-from` names. A resumed run that began with `--init-from` keeps its
    own network, and does not need the other run any more.

    Raises UserError if a resumed run began with another `--init-from` or without it, or if the
    tokenizers differ.
    """
    if (epath.Path(settings.run_dir) / CONFIG).exists():
        own = open_run(settings.run_dir)
        began = None if own.is_fine_tuned else read_run_provenance(own.directory).get("init_from")
        if read_checkpoints(own.directory, lambda found: found.on_disk.steps()):
            _require_same_start(settings, began)
            return None if began is None else own
        if began is not None and settings.init_from is None:
            raise UserError(
                "init_from.missing", f"{own.directory} began with {began}. Set it.", place=INIT_FROM
            )
    if settings.origin is None:
        return None
    run = open_run(settings.origin)
    require_tokenizer(run, tokenizer, found=settings.tokenizer, name=settings.init_from)
    return run_of_checkpoint(run, checkpoint="last")


def require_tokenizer(run: Run, tokenizer: Tokenizer, *, found: str, name: str | None) -> None:
    """Raises UserError if a run to start from has another tokenizer; names are for the message."""
    if run.tokenizer.hash != tokenizer.hash:
        raise UserError(
            "init_from.tokenizer",
            f"found {found} ({tokenizer.vocab_size:,} pieces), but {name} has others "
            f"({run.tokenizer.vocab_size:,}). Use {run.directory / TOKENIZER} or `vocab --extend`.",
            place="tokenizer",
        )


def _require_same_start(settings: PretrainSettings, began: str | None) -> None:
    """Raises UserError if `settings` have another `--init-from` than the first start of the run.

    The same command resumes a run, even if its hub model has a newer revision now. `began` is the
    model of the first start with its revision.
    """
    if (asked := settings.init_from) is None:
        return
    names = [name for name in (asked, settings.origin, settings.pinned_origin) if name is not None]
    if began is not None and (
        os.path.abspath(began) in map(os.path.abspath, names) or began.startswith(f"{asked}@")
    ):
        return
    raise UserError(
        "init_from.other_start",
        f"found {asked}, but {settings.run_dir} began "
        f"{f'with {began}' if began else 'without this option'}. Remove it, or use a new run_dir.",
        place=INIT_FROM,
    )


def inherit(section: ModelSection, run: Run) -> EncoderArchitecture:
    """Returns the architecture of `run`, with the settings of `section` that may differ.

    Dropout and the initial range may differ, and the number of positions if it determines no
    parameter. Raises UserError if `section` sets another value of any other setting.
    """
    theirs = run.architecture
    if section.kind != theirs.kind:
        raise _other(run, "model.kind", "kind", section.kind, theirs.kind)
    changed = {}
    for key, name, found in section.chosen(vocab_size=theirs.vocab_size):
        expected = getattr(theirs, name)
        if may_differ(name, theirs):
            changed[name] = found
        elif found != expected:
            raise _other(run, f"model.{key}", name, found, expected)
    return theirs.with_changes(changed)


def may_differ(name: str, theirs: EncoderArchitecture) -> bool:
    """Returns whether a run may change a setting of the network that it starts from."""
    if name == "max_position_embeddings":
        positions = theirs.model_dump().get("position_embedding")
        return theirs.rotary_setting is not None or positions == "sinusoidal"
    return "dropout" in name or name == "initializer_range"


def _other(run: Run, key: str, name: str, found: object, expected: object) -> UserError:
    return UserError(
        "init_from.other_model",
        f"found {name} {found}, but {run.directory} has {expected}. Remove this setting.",
        place=key,
    )
