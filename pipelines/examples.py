"""``bert-jax examples``: text and a tokenizer in, a dataset of two-span examples out."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pydantic
from etils import epath

from bert_jax.data.pairing import PairingSection
from bert_jax.data.provenance import (
    FORMAT_VERSION,
    PROVENANCE_NAME,
    Provenance,
    Recipe,
    SourceRecord,
    TextRecord,
    read_provenance,
)
from bert_jax.data.schema import token_dtype
from bert_jax.errors import UserError
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentences import check_language
from pipelines.metadata import write_metadata
from pipelines.pool import WorkerPool
from pipelines.runs import describe_corpus, tokenise_corpus
from pipelines.settings import ExamplesSection
from pipelines.sources import find_files, relative_names
from pipelines.splits import write_splits
from pipelines.workspace import Workspace, shorten

__all__ = ["ExamplesSection", "make_examples"]


def make_examples(
    section: ExamplesSection, *, progress: Callable[[str], None] | None = None
) -> Provenance:
    """Makes a dataset directory that :func:`bert_jax.data.records.open_dataset` and TFDS open.

    The documents are tokenised part by part (``pipelines.tokenise``), dealt into buckets by a hash
    of their ids, and each bucket is paired and written as one shard (``pipelines.shards``), all in
    ``<output>.partial``, which gets the output's name when it is whole. A run that was stopped goes
    on where it ended; the same settings and input give the same bytes with any number of workers.

    Args:
        section: the settings.
        progress: called with a line of text when a part or a shard is finished.

    Returns:
        What ``provenance.json`` holds. If the output is already there, made from the same input
        with the same settings, nothing is done.

    Raises:
        UserError: bad input or settings, an output that holds something else, another run on the
            same output, a full disk.
    """
    say = progress or (lambda line: None)
    check_language(section.language)
    output = _local(section.output)
    tokenizer = load_tokenizer(section.tokenizer)
    paths = find_files(section.input)
    names = relative_names(paths, root=section.input_root)
    recipe = _recipe(section, tokenizer, paths, names)
    if (made := _already_made(output, recipe)) is not None:
        say(f"{output} is already made")
        return made
    with Workspace(output) as workspace, WorkerPool(section.workers) as pool:
        # With the version of the format, since another release may cut and pair otherwise.
        settings = {"format_version": FORMAT_VERSION, **recipe.model_dump(mode="json")}
        settings["the input files' age"] = [epath.Path(path).stat().mtime for path in paths]
        workspace.check_settings(settings)
        runs = tokenise_corpus(
            section, paths=paths, names=names, directory=workspace.work, pool=pool, say=say
        )
        corpus = describe_corpus(runs, unknown=tokenizer.special.unk)
        splits = write_splits(
            section, workspace, special=tokenizer.special, runs=runs, pool=pool, say=say
        )
        provenance = Provenance(**dict(recipe), corpus=corpus, splits=splits)
        write_metadata(workspace.partial, provenance)
        workspace.publish()
    say(f"{output}: {provenance.splits['train'].examples:,} training examples")
    return provenance


def _local(output: str) -> pathlib.Path:
    if "://" in output:
        raise UserError(
            f"output: {output} is not a local directory; make it locally and copy it there"
        )
    return pathlib.Path(output).expanduser().absolute()


def _recipe(
    section: ExamplesSection, tokenizer: Tokenizer, paths: Sequence[str], names: Sequence[str]
) -> Recipe:
    sizes = [epath.Path(path).stat().length for path in paths]
    files = [SourceRecord(name=n, bytes=size) for n, size in zip(names, sizes, strict=True)]
    return Recipe(
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special._asdict(),
        token_dtype=token_dtype(tokenizer.vocab_size).name,
        seed=section.seed,
        validation_fraction=section.validation_fraction,
        num_shards=section.num_shards,
        pairing=PairingSection(**{k: getattr(section, k) for k in PairingSection.model_fields}),
        text=TextRecord(
            layout=section.layout,
            documents=section.documents,
            language=section.language if section.layout == "prose" else None,
            files=tuple(files),
        ),
    )


def _already_made(output: pathlib.Path, recipe: Recipe) -> Provenance | None:
    """Returns the provenance of a finished output, ``None`` if there is none.

    Raises:
        UserError: the output is something else.
    """
    if not output.exists():
        return None
    if not output.is_dir():
        raise UserError(f"output: {output} is a file; allowed: a directory that does not exist yet")
    if not (output / PROVENANCE_NAME).exists():
        if any(output.iterdir()):
            raise UserError(
                f"output: {output} holds other files; choose a directory that does not exist yet"
            )
        return None
    made = read_provenance(output)
    for key in Recipe.model_fields:
        held, wanted = getattr(made, key), getattr(recipe, key)
        if held != wanted:
            raise UserError(
                f"output: {output} is a dataset in which {key} is {shorten(_plain(held))}, now "
                f"{shorten(_plain(wanted))}; choose another directory or delete it"
            )
    return made


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, pydantic.BaseModel) else value
