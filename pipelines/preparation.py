"""Reads and writes ``preparation.json``: a dataset's rules for text, and what each rule dropped."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Self

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.pipelines.cleaning.contamination import CONTAMINATION_FILES, OverlapRecord, load_index
from bert_jax.pipelines.cleaning.duplicates import algorithm_version
from bert_jax.pipelines.cleaning.rules import LANGUAGE_FILTER
from bert_jax.pipelines.section import CleaningSection, ExamplesSection
from bert_jax.pipelines.sources.files import find_files, open_text
from bert_jax.pipelines.sources.sources import Source
from bert_jax.pipelines.tally import Tally
from bert_jax.section import Section
from bert_jax.user_function import load_function
from bert_jax.validation import read_section

PREPARATION_NAME: Final = "preparation.json"


class PreparationRecipe(Section):
    """Settings that decide the text of a dataset, in addition to ``provenance.json``."""

    formats: tuple[str, ...]  # distinct formats of the sources
    text_field: str
    id_field: str | None
    on_error: str
    max_line_length: int
    max_document_length: int
    cleaning: CleaningSection
    evaluation_sha256: tuple[str, ...]  # SHA-256 of each evaluation file
    minhash_version: int | None  # version of the MinHash signatures; None without near duplicates

    @property
    def plain(self) -> Self:
        """Settings of a dataset without ``preparation.json``: plain text, none of it dropped."""
        return self.model_copy(
            update={
                "formats": ("text",),
                "on_error": "fail",
                "cleaning": CleaningSection(),
                "evaluation_sha256": (),
                "minhash_version": None,
            }
        )


class Preparation(PreparationRecipe):
    """Content of ``preparation.json``."""

    documents: dict[str, int]
    """Numbers of documents: ``read``, ``kept``, dropped by each rule (named by its setting), and
    ``emptied`` because all lines were dropped."""
    lines: dict[str, int]
    """Numbers of lines, by the keys of ``documents``. Lines of dropped documents count only as
    ``read``."""
    skipped: int  # number of unreadable files, parts of files and records
    skipped_listed: tuple[str, ...]  # messages of the first skipped items
    contamination: tuple[OverlapRecord, ...]
    contaminated_listed: tuple[str, ...]
    """Ids of the first documents with text of an evaluation file."""


def preparation_recipe(section: ExamplesSection, sources: Sequence[Source]) -> PreparationRecipe:
    """Returns the settings that decide the text of a dataset.

    Raises UserError if an evaluation file is missing, or the language filter cannot be imported.
    """
    cleaning, hashes = section.cleaning, []
    if cleaning.language_filter is not None:
        load_function(cleaning.language_filter, key=LANGUAGE_FILTER)  # fail before hours of reading
    if cleaning.contamination is not None:
        paths = find_files(cleaning.contamination.files, key=CONTAMINATION_FILES)
        try:
            for path in paths:
                with open_text(path) as file:
                    digest: Any = hashlib.file_digest
                    hashes.append(digest(file, "sha256").hexdigest())
        except UserError as error:
            raise error.located(CONTAMINATION_FILES) from error
    shared = PreparationRecipe.model_fields.keys() & ExamplesSection.model_fields.keys()
    return PreparationRecipe(
        **{name: getattr(section, name) for name in shared},
        formats=tuple(sorted({source.format for source in sources})),
        evaluation_sha256=tuple(hashes),
        minhash_version=algorithm_version() if cleaning.near_duplicates is not None else None,
    )


def write_preparation(
    directory: epath.Path, recipe: PreparationRecipe, tally: Tally, *, work: epath.Path
) -> None:
    """Writes ``preparation.json``, unless the recipe equals its `plain`.

    Raises UserError if the disk is full.
    """
    if recipe == recipe.plain:
        return
    overlaps: tuple[OverlapRecord, ...] = ()
    if recipe.cleaning.contamination is not None:
        overlaps = load_index(str(work)).report(tally)
    preparation = Preparation(
        **dict(recipe),
        documents=dict(sorted(tally.documents.items())),
        lines=dict(sorted(tally.lines.items())),
        skipped=tally.problems,
        skipped_listed=tuple(tally.listed_problems),
        contamination=overlaps,
        contaminated_listed=tuple(tally.contaminated),
    )
    write_whole(directory / PREPARATION_NAME, preparation.model_dump_json(indent=1) + "\n")


def read_preparation(directory: epath.PathLike) -> Preparation | None:
    """Returns a dataset's ``preparation.json``, or None if there is no such file.

    Raises UserError if the file is damaged.
    """
    path = epath.Path(directory) / PREPARATION_NAME
    if not path.exists():
        return None
    try:
        return read_section(Preparation, path)
    except UserError as error:
        raise error.followed_by("; copy the file again, or make the dataset again") from None
