"""`bert-jax vocab --extend`: a checkpoint and text → a run whose vocabulary has new words."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.config import RunConfig
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory
from bert_jax.files.remote import require_local
from bert_jax.interop.importing import to_device
from bert_jax.parallel.mesh import open_mesh
from bert_jax.pipelines.sources.sources import need_data_libraries
from bert_jax.pipelines.vocabulary.extend import (
    MIN_COUNT,
    NewWord,
    choose_words,
    extended,
    pieces_per_word,
    require_extendable,
)
from bert_jax.pipelines.vocabulary.train import VocabSection, sample_text
from bert_jax.runs.lock import hold_output
from bert_jax.runs.open_checkpoints import LoadedParams, load_params, write_checkpoints
from bert_jax.runs.run_directory import Run, names_of_import, open_run, write_run
from bert_jax.task import Params
from bert_jax.text import Tokenizer
from bert_jax.verbs.import_checkpoint import find_origin


def extend_vocab(section: VocabSection, *, force: bool, say: Callable[[str], None]) -> Tokenizer:
    """Writes a run directory with the parameters of `section.extend` and a larger vocabulary.

    The new words of the text get ids after all others. Their rows of the embedding and of the MLM
    head's bias are the means of the rows of their earlier pieces. All other parameters stay bit
    for bit. Optimizer states are not copied.

    Returns the new tokenizer.

    Raises:
        UserError: the checkpoint does not exist, its tokenizer cannot take words, no word of the
            text saves pieces, or the output exists.
    """
    assert section.extend is not None
    need_data_libraries("vocab")
    require_local(section.output, verb="vocab --extend")
    origin = find_origin(section.extend)
    run = open_run(origin.run_dir)
    tokenizer = require_extendable(run.tokenizer, place="extend")
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_output(section.output))
        aside = stack.enter_context(
            new_directory(Path(section.output), force=force, ours=names_of_import)
        )
        lines = sample_text(section)
        words = choose_words(tokenizer, lines, count=section.new_pieces)
        if not words:
            raise UserError(
                "vocab.nothing_new",
                f"found no word of several pieces that occurs {MIN_COUNT} times or more",
                place="input",
            )
        if len(words) < section.new_pieces:
            say(f"the text has {len(words):,} new words, fewer than vocab.new_pieces")
        grown = extended(tokenizer, words)
        before, after = (pieces_per_word(each, lines) for each in (tokenizer, grown))
        loaded = load_params(run, checkpoint="auto", mesh=open_mesh(one_device=True))
        source = {
            "extended_from": {"run": origin.name, "step": loaded.step, "files": [*section.names]},
            "new_words": {new.word: new.occurrences for new in words},
            "pieces_per_word": {"before": before, "after": after},
        }
        _write(aside, section, run, loaded, grown, words, source)
    saved, shown = sum(new.saved for new in words), ", ".join(new.word for new in words[:10])
    say(f"{len(words):,} new words save {saved:,} pieces of the sample: {shown}, …")
    say(f"pieces per word of the sample: {before:.3f} before, {after:.3f} with the new words")
    return grown


def _write(
    root: Path,
    section: VocabSection,
    run: Run,
    loaded: LoadedParams,
    tokenizer: Tokenizer,
    words: list[NewWord],
    source: dict[str, Any],
) -> None:
    """Writes the run to `root`, which is later renamed to the section's output."""
    rows = max(run.architecture.vocab_size, tokenizer.vocab_size)
    architecture = loaded.architecture.with_changes({"vocab_size": rows})
    params = grow_vocabulary(
        jax.device_get(loaded.params),
        loaded.model.axes,
        pieces=run.tokenizer.vocab_size,
        origins=[new.old for new in words],
        padded_size=architecture.padded_vocab_size,
    )
    write_run(
        epath.Path(root),
        RunConfig().model_dump(mode="json"),
        run_dir=section.output,
        execution=run.model.execution,
        heads=run.heads,
        architecture=architecture,
        tokenizer=tokenizer,
        origin=source,
    )
    to_device(params)
    with write_checkpoints(root) as checkpointer:
        checkpointer.save_params(params, step=loaded.step)


def grow_vocabulary(
    params: Params,
    axes: dict[str, Any],
    *,
    pieces: int,
    origins: Sequence[Sequence[int]],
    padded_size: int,
) -> Params:
    """Returns parameters with rows for new pieces, as NumPy arrays.

    Changes every parameter with the logical axis ``vocab``: the embedding and the bias of the MLM
    head. The row of a new piece is the mean of the rows of the pieces that spelled it so far. All
    other rows stay bit for bit.

    Args:
        params: float32 arrays in nested dicts.
        axes: logical axes of each parameter, nested like `params`.
        pieces: number of pieces so far. The new pieces have the following ids.
        origins: ids of the earlier pieces of each new piece.
        padded_size: rows of the grown parameters. Rows without a piece are zero if they are new.
    """

    def grow(value: Any, names: Sequence[str | None]) -> Any:
        if "vocab" not in names:
            return value
        rows = np.moveaxis(np.asarray(value), names.index("vocab"), 0)
        grown = np.zeros((max(padded_size, len(rows)), *rows.shape[1:]), rows.dtype)
        grown[: len(rows)] = rows
        for number, ids in enumerate(origins, start=pieces):
            grown[number] = rows[list(ids)].mean(axis=0)
        return np.ascontiguousarray(np.moveaxis(grown, 0, names.index("vocab")))

    return jax.tree.map(grow, params, axes, is_leaf=lambda node: not isinstance(node, dict))
