"""Makes a dataset of pretraining examples from text and a tokenizer (``bert-jax examples``)."""

from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from bert_jax.data.dataset.provenance import (
    FORMAT_VERSION,
    MIN_PAIR_TOKENS,
    PROVENANCE_NAME,
    Provenance,
    Recipe,
    SourceRecord,
    TextRecord,
    read_provenance,
)
from bert_jax.data.dataset.schema import token_dtype
from bert_jax.data.rows.collate import special_tokens
from bert_jax.errors import UserError, counted, first_line
from bert_jax.files.remote import absolute, is_remote
from bert_jax.pipelines.changed_setting import AGES, name_change
from bert_jax.pipelines.engines.beam import BeamEngine
from bert_jax.pipelines.engines.local import WorkerPool
from bert_jax.pipelines.preparation import (
    PreparationRecipe,
    preparation_recipe,
    read_preparation,
    write_preparation,
)
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards.splits import write_splits
from bert_jax.pipelines.shards.tfds_metadata import write_metadata
from bert_jax.pipelines.sources.scripts import first_lines, mixed_scripts
from bert_jax.pipelines.sources.sources import Source, find_sources, need_data_libraries
from bert_jax.pipelines.tally import Tally
from bert_jax.pipelines.tokenised.corpus import tokenise_corpus
from bert_jax.pipelines.workspace import DatasetBuild, Workspace
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentences import check_language

__all__ = ["ExamplesSection", "make_examples"]


def make_examples(
    section: ExamplesSection, *, progress: Callable[[str], None] | None = None
) -> Provenance:
    """Makes a dataset directory that :func:`open_dataset` and TFDS open.

    The documents are tokenised part by part (`tokenise_corpus`), sorted by a hash of their ids and
    divided into buckets. Each bucket is paired and written to a shard (`write_shard`). On a file
    system, all files are first written to ``<output>.partial``, which is renamed when it is
    complete. A stopped run resumes. The same settings and input give the same bytes on either
    engine with any number of workers. If the output already has this dataset, writes nothing.

    Returns the content of ``provenance.json``.

    Raises UserError if the input or a setting is bad, the output has other content, another run
    uses the same output, or the disk is full. Raises RunStopped if the system kills a worker.
    """
    say = progress or (lambda line: None)
    need_data_libraries("examples")
    check_language(section.language)
    output = dataset_directory(section)
    tokenizer = load_tokenizer(section.tokenizer)
    tally = Tally()
    _require_room(section, tokenizer)
    sources = find_sources(section, root=section.input_root, tally=tally)
    recipe = _recipe(section, tokenizer, sources)
    preparation = preparation_recipe(section, sources)
    if (made := _already_made(output, recipe, preparation)) is not None:
        say(f"{output} is already made")
        return made
    paragraphs = sum(source.format.startswith("wiki") for source in sources)
    if paragraphs and section.layout == "sentences":
        say(
            "`layout: sentences` expects one sentence per line, but the lines of "
            f"{counted(paragraphs, 'Wikipedia file')} are paragraphs. Use `layout: prose`."
        )
    if (warning := mixed_scripts(section, first_lines(section, sources))) is not None:
        say(warning)
    with Workspace(output, say=say) as workspace, _engine(section, workspace.work) as engine:
        # Include the format version, because another version may pair differently.
        settings = {"format_version": FORMAT_VERSION, **recipe.model_dump(mode="json")}
        settings[AGES] = [source.modified for source in sources]
        # Exclude on_error: a run that stopped at a damaged file may resume with skip.
        settings |= preparation.model_dump(mode="json", exclude={"on_error"})
        workspace.check_settings(settings)
        build = DatasetBuild(section, workspace, engine, say)
        corpus = tokenise_corpus(build, sources=sources, tally=tally)
        listed = corpus.tally.listed_problems
        if listed and section.on_error == "fail":  # an earlier run used skip
            raise UserError(
                "examples.skipped_before",
                f"found fail, but an earlier run left out {listed[0]}. Repair it, or set skip.",
                place="on_error",
            )
        for line in listed:
            say(f"skipped: {line}")
        provenance = Provenance(
            **dict(recipe),
            corpus=corpus.record(unknown=tokenizer.special.unk),
            splits=write_splits(build, tokenizer=tokenizer, languages=corpus.languages),
        )
        write_preparation(workspace.partial, preparation, corpus.tally, work=workspace.work)
        write_metadata(workspace.partial, provenance)
        workspace.publish()
    say(f"{output}: {provenance.splits['train'].examples:,} training examples")
    return provenance


def _require_room(section: ExamplesSection, tokenizer: Tokenizer) -> None:
    """Raises UserError if the special pieces of a pair leave no room for two tokens."""
    least = special_tokens(tokenizer, pair=True) + MIN_PAIR_TOKENS
    if section.pairing.has_pairs and section.max_seq_length < least:
        raise UserError(
            "pairing.max_seq_length",
            f"found {section.max_seq_length}, allowed: at least {least}",
            place="max_seq_length",
        )


def _engine(section: ExamplesSection, work: epath.Path) -> WorkerPool | BeamEngine:
    if section.engine == "local":
        return WorkerPool(section.workers)
    return BeamEngine(section.beam, workers=section.workers, directory=work)


def dataset_directory(section: ExamplesSection) -> epath.Path:
    """Returns the dataset's directory: an absolute local path, or a path in a bucket."""
    return epath.Path(absolute(section.output))


def _recipe(section: ExamplesSection, tokenizer: Tokenizer, sources: Sequence[Source]) -> Recipe:
    language: str | tuple[str, ...] | None = section.language
    if isinstance(section.input, dict):
        language = tuple(source.language or section.language for source in sources)
    elif section.layout != "prose":
        language = None
    return Recipe(
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special._asdict(),
        token_dtype=token_dtype(tokenizer.vocab_size),
        seed=section.seed,
        validation_fraction=section.validation_fraction,
        num_shards=section.num_shards,
        pairing=section.pairing,
        text=TextRecord(
            layout=section.layout,
            documents=section.documents,
            language=language,
            files=tuple(SourceRecord(name=s.name, bytes=s.bytes) for s in sources),
        ),
        mixture=section.mixture,
    )


def _already_made(
    output: epath.Path, recipe: Recipe, preparation: PreparationRecipe
) -> Provenance | None:
    """Returns the provenance of a finished output, or None if it is not finished.

    Raises UserError if the output has other content or was made with other settings.
    """
    try:
        if not output.exists():
            return None
    except Exception as error:  # each bucket library raises its own errors
        if not is_remote(output) and not isinstance(error, OSError):
            raise
        raise UserError(
            "examples.output_unreachable",
            f"{output} cannot be reached ({first_line(error)})",
            place="output",
        ) from error
    if not output.is_dir():
        raise UserError.wrong(
            "examples.output_is_file", f"the file {output}", "a new directory", place="output"
        )
    if not (output / PROVENANCE_NAME).exists():
        # In a bucket, the shards of an unfinished run are here too.
        if any(output.iterdir()) and not Workspace(output).is_begun:
            raise UserError(
                "examples.output_has_files",
                f"found other files in {output}, allowed: a new directory",
                place="output",
            )
        return None
    made = read_provenance(output)
    _check_same(output, made.model_dump(mode="json"), recipe.model_dump(mode="json"))
    held = read_preparation(output) or preparation.plain
    _check_same(output, held.model_dump(mode="json"), preparation.model_dump(mode="json"))
    return made


def _check_same(output: epath.Path, made: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises UserError if a finished dataset was made with other settings."""
    if changed := [key for key, value in wanted.items() if made.get(key) != value]:
        raise UserError(
            "examples.other_settings",
            f"{output} has other settings ({name_change(made, wanted, changed)}). Choose another.",
            place="output",
        )
