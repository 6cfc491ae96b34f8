"""``bert-jax examples``: text and a tokenizer in, a dataset of two-span examples out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pydantic
from etils import epath

from bert_jax.data.dataset.provenance import (
    FORMAT_VERSION,
    PROVENANCE_NAME,
    Provenance,
    Recipe,
    SourceRecord,
    TextRecord,
    read_provenance,
)
from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.data.dataset.schema import token_dtype
from bert_jax.errors import UserError, first_line
from bert_jax.files.remote import is_remote
from bert_jax.pipelines.cleaning.tally import Tally, sum_tallies
from bert_jax.pipelines.engines.engine import Engine, open_engine
from bert_jax.pipelines.preparation import (
    PreparationRecipe,
    preparation_recipe,
    read_preparation,
    write_preparation,
)
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards.splits import write_splits
from bert_jax.pipelines.shards.tfds_metadata import write_metadata
from bert_jax.pipelines.sources.files import absolute
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.sources import Source, find_sources
from bert_jax.pipelines.tokenised.corpus import OVERLAP_INDEX, describe_corpus, tokenise_corpus
from bert_jax.pipelines.workspace import Workspace, shorten
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentences import check_language

__all__ = ["ExamplesSection", "make_examples"]


def make_examples(
    section: ExamplesSection, *, progress: Callable[[str], None] | None = None
) -> Provenance:
    """Makes a dataset directory that :func:`open_dataset` and TFDS open.

    The documents are tokenised part by part (``tokenise``), dealt into buckets by a hash
    of their ids, and each bucket is paired and written as one shard (``write_shard``), all in
    ``<output>.partial``, which gets the output's name when it is whole. A run that was stopped goes
    on where it ended; the same settings and input give the same bytes on either engine with any
    number of workers.

    Args:
        section: the settings.
        progress: called with a line of text when a part or a shard is finished.

    Returns:
        What ``provenance.json`` holds. If the output is already there, made from the same input
        with the same settings, nothing is done.

    Raises:
        UserError: bad input or settings, an output that holds something else, another run on the
            same output, a full disk.
        RunStopped: the system has killed a worker.
    """
    say = progress or (lambda line: None)
    check_language(section.language)
    output = dataset_directory(section)
    tokenizer = load_tokenizer(section.tokenizer)
    problems = Problems(section.on_error)
    sources = find_sources(section, root=section.input_root, problems=problems)
    recipe = _recipe(section, tokenizer, sources)
    preparation = preparation_recipe(section, sources)
    if (made := _already_made(output, recipe, preparation)) is not None:
        say(f"{output} is already made")
        return made
    with Workspace(output, say=say) as workspace, _engine(section, workspace) as engine:
        # With the version of the format, since another release may cut and pair otherwise.
        settings = {"format_version": FORMAT_VERSION, **recipe.model_dump(mode="json")}
        settings["the input files' age"] = [source.modified for source in sources]
        # Without on_error: a run that a damaged file has ended goes on with on_error: skip.
        settings |= preparation.model_dump(mode="json", exclude={"on_error"})
        workspace.check_settings(settings)
        corpus = tokenise_corpus(
            section,
            sources=sources,
            problems=problems,
            directory=workspace.work,
            engine=engine,
            say=say,
        )
        tally = Tally()
        tally.take(problems)
        tally.add(sum_tallies([*corpus.spills, *corpus.runs]))
        if tally.problems and section.on_error == "fail":  # skipped by the run that this goes on
            raise UserError(tally.listed_problems[0])
        for line in tally.listed_problems:
            say(f"skipped: {line}")
        figures = describe_corpus(corpus.runs, unknown=tokenizer.special.unk)
        splits = write_splits(
            section, workspace, special=tokenizer.special, runs=corpus.runs, engine=engine, say=say
        )
        provenance = Provenance(**dict(recipe), corpus=figures, splits=splits)
        index = workspace.work / OVERLAP_INDEX
        write_preparation(workspace.partial, preparation, tally, overlap_index=index)
        write_metadata(workspace.partial, provenance)
        workspace.publish()
    say(f"{output}: {provenance.splits['train'].examples:,} training examples")
    return provenance


def _engine(section: ExamplesSection, workspace: Workspace) -> AbstractContextManager[Engine]:
    return open_engine(
        section.engine, workers=section.workers, beam=section.beam, directory=workspace.work
    )


def dataset_directory(section: ExamplesSection) -> epath.Path:
    """Returns where the dataset goes, from the root on, or in a bucket."""
    return epath.Path(absolute(section.output))


def _recipe(section: ExamplesSection, tokenizer: Tokenizer, sources: Sequence[Source]) -> Recipe:
    files = [SourceRecord(name=source.name, bytes=source.bytes) for source in sources]
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
            language=_language(section, sources),
            files=tuple(files),
        ),
        mixture=section.mixture,
    )


def _language(section: ExamplesSection, sources: Sequence[Source]) -> str | tuple[str, ...] | None:
    if isinstance(section.input, dict):
        return tuple(source.language or section.language for source in sources)
    return section.language if section.layout == "prose" else None


def _already_made(
    output: epath.Path, recipe: Recipe, preparation: PreparationRecipe
) -> Provenance | None:
    """Returns the provenance of a finished output, ``None`` if there is none.

    Raises:
        UserError: the output is something else.
    """
    try:
        if not output.exists():
            return None
    except Exception as error:  # of a bucket's library, each has its own
        if not is_remote(output):
            raise
        raise UserError(f"output: {output} cannot be reached ({first_line(error)})") from error
    if not output.is_dir():
        raise UserError(f"output: {output} is a file; allowed: a directory that does not exist yet")
    if not (output / PROVENANCE_NAME).exists():
        # In a bucket an unfinished run has its shards there, and its work beside it.
        if any(output.iterdir()) and not Workspace(output).is_begun:
            raise UserError(
                f"output: {output} holds other files; choose a directory that does not exist yet"
            )
        return None
    made = read_provenance(output)
    _check_same(output, made, recipe, Recipe.model_fields)
    held = read_preparation(output)
    if held is not None or not preparation.is_plain:
        _check_same(output, held, preparation, PreparationRecipe.model_fields)
    return made


def _check_same(output: epath.Path, made: Any, asked: Any, keys: Iterable[str]) -> None:
    """Raises a ``UserError`` that names the first setting of a finished dataset that differs."""
    for key in keys:
        held, wanted = getattr(made, key, None), getattr(asked, key)
        if held != wanted:
            raise UserError(
                f"output: {output} is a dataset in which {key} is {shorten(_plain(held))}, now "
                f"{shorten(_plain(wanted))}; choose another directory or delete it"
            )


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, pydantic.BaseModel) else value
