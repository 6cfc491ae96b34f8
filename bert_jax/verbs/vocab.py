"""`bert-jax vocab`: text → tokenizer, or a run with a larger vocabulary."""

import fnmatch
import glob
import os
import pathlib
from typing import Any

from etils import epath
from rich.console import Console

from bert_jax.config import AnyConfig, as_config
from bert_jax.data.dataset.provenance import PROVENANCE_NAME
from bert_jax.errors import UserError
from bert_jax.files.atomic import remove_unfinished
from bert_jax.files.lock import hold_alone
from bert_jax.files.remote import is_remote
from bert_jax.narration import doing, speaking
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.section import need, under
from bert_jax.text import Tokenizer
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.text.wordpiece import VOCAB_FILE


def vocab(
    config: AnyConfig, *, force: bool = False, console: Console | None = None, **overrides: Any
) -> Tokenizer:
    """Trains and saves the tokenizer of the section `vocab`, or extends a run's vocabulary.

    Args:
        config: a configuration, a dict of its settings or its file, with `vocab`.
        force: replace an existing tokenizer or run. Datasets and runs of the old tokenizer cannot
            use the new one.
        console: console for warnings. Default: standard output.
        overrides: settings that replace the configuration's, see `bert_jax.pretrain`.

    Raises:
        UserError: the section is missing, the output has a tokenizer, another process is writing
            it, or the text is too small for the vocabulary.
    """
    config = as_config(config, overrides)
    section = need(config.vocab, "vocab", "vocab")
    output = console or Console()

    def say(line: str) -> None:
        output.print(line, style="yellow", markup=False, soft_wrap=True)

    if section.extend is not None:
        # Imported here: a tokenizer is trained without JAX.
        from bert_jax.verbs.extend_vocab import extend_vocab

        with speaking(output), under("vocab", VocabSection), doing("extending the vocabulary"):
            return extend_vocab(section, force=force, say=say)
    with speaking(output), hold_alone(section.output, say=say):
        directory = epath.Path(section.output)
        if not force and (directory / CONFIG_FILE).exists():
            raise UserError(
                "vocab.exists",
                f"{section.output} has a tokenizer. Choose another directory, or add --force.",
                place="vocab.output",
            )
        if (directory / PROVENANCE_NAME).exists():
            raise UserError(
                "vocab.output_has_files",
                f"found {section.output}, which is a dataset or a run. Choose another directory.",
                place="vocab.output",
            )
        if not is_remote(directory):
            _refuse_input(pathlib.Path(directory), section)
            remove_unfinished(pathlib.Path(directory))
        with under("vocab", VocabSection), doing("training the tokenizer"):
            return train_vocab(section, progress=say)


def _refuse_input(directory: pathlib.Path, section: VocabSection) -> None:
    """Raises UserError if the next reader of the text would also read the tokenizer."""
    file = os.path.abspath(directory / VOCAB_FILE)
    for pattern in section.names:
        if glob.has_magic(pattern) and fnmatch.fnmatch(file, os.path.abspath(pattern)):
            raise UserError(
                "vocab.output_is_input",
                f"found {section.output}, whose {VOCAB_FILE} would match the input {pattern}",
                place="vocab.output",
            )
