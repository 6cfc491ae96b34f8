"""Settings of ``bert-jax examples``, and those of sources that ``bert-jax vocab`` shares."""

from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import pydantic

from bert_jax.data.dataset.recipe import MixtureSection, PairingSection
from bert_jax.pipelines.cleaning.settings import CleaningSection
from bert_jax.pipelines.engines.beam import BeamSection
from bert_jax.pipelines.engines.engine import EngineName
from bert_jax.pipelines.sources.files import MAX_LINE_LENGTH
from bert_jax.section import PathText, Section, as_tuple, check_data_path, refuse_ignored

MAX_DOCUMENT_LENGTH: Final = 16_000_000
"""A record of this many characters is refused: larger than any book, so not one document."""

Format: TypeAlias = Literal[
    "auto", "text", "jsonl", "parquet", "wikiextractor", "wikipedia_xml", "tfds"
]


_LANGUAGE: Final = "en"


def as_inputs(value: Any) -> Any:
    """Returns names of files as a tuple, those of several languages as a mapping to tuples.

    Raises ValueError: they are something else.
    """
    inputs = {code: as_tuple(v) for code, v in value.items()} if isinstance(value, dict) else None
    lists = [as_tuple(value)] if inputs is None else list(inputs.values())
    if not all(
        isinstance(names, tuple) and all(isinstance(name, str) for name in names) for names in lists
    ):
        raise ValueError("allowed: a list of files and globs, or such a list for each language")
    for names in lists:
        for name in names:
            check_data_path(name)
    return lists[0] if inputs is None else inputs


class SourcesSection(Section):
    """Where text is and how its files hold it. ``docs/data.md`` describes every format."""

    input: Annotated[
        tuple[str, ...] | dict[str, tuple[str, ...]], pydantic.BeforeValidator(as_inputs)
    ]
    """Files and globs, local or ``gs://``, also packed (``.gz``, ``.bz2``, ``.xz``, ``.zst``); of
    TFDS datasets, directories or names. Or such a list for each language, by its ISO 639 code."""
    mixture: MixtureSection | None = None
    """Share of each language in the result; by default that in the corpus."""
    format: Format = "auto"
    """How files hold documents; ``auto``: by each file's suffix and first bytes."""
    text_field: str = "text"
    """The field, column or feature with the text of a JSONL, Parquet or TFDS record."""
    id_field: str | None = None
    """The one with the record's id, unique in its file; by default the id is the record's position.
    Wikipedia's formats always use the page id."""
    tfds_split: str = "train"
    """Split of TFDS datasets."""
    max_line_length: Annotated[int, pydantic.Field(ge=1)] = MAX_LINE_LENGTH
    """A line of this length, in characters, is an error."""
    max_document_length: Annotated[int, pydantic.Field(ge=1)] = MAX_DOCUMENT_LENGTH
    """A record of this length (in a JSONL file, of its whole line) is an error."""
    on_error: Literal["fail", "skip"] = "fail"
    """On a damaged file or record: stop with a message, or skip that record or the rest of that
    file's part and list it in ``preparation.json``."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that ``input`` names."""
        return tuple(name for names in self.by_language.values() for name in names)

    @property
    def by_language(self) -> dict[str | None, tuple[str, ...]]:
        """What ``input`` names, by language in the order of codes; ``None``: it has one list."""
        if isinstance(self.input, tuple):
            return {None: self.input}
        return dict(sorted(self.input.items()))

    @pydantic.field_validator("mixture")
    @classmethod
    def _mixture_needs_languages(
        cls, mixture: MixtureSection | None, info: pydantic.ValidationInfo
    ) -> MixtureSection | None:
        if mixture is not None and isinstance(info.data.get("input"), tuple):
            raise ValueError(
                "allowed: only where input has a list of files for each language, such as "
                "input: {en: [en/*.txt], zh: [zh/*.txt]}"
            )
        return mixture


class ExamplesSection(SourcesSection, PairingSection):
    """Where the text is, how it is read, and how examples are made of it.

    The keys are flat: those of :class:`SourcesSection` and :class:`PairingSection`, whose names and
    defaults are google-research/bert's, and its own.
    """

    tokenizer: PathText
    """Directory of the tokenizer."""
    output: PathText
    """Directory of the dataset, which must not exist yet."""
    layout: Literal["sentences", "prose"] = "sentences"
    """``sentences``: each line is a sentence, as in google-research/bert. ``prose``: each line is
    a paragraph."""
    documents: Literal["blank_line", "file"] = "blank_line"
    """What separates documents in files of plain text: blank lines, or each file is one."""
    language: str = _LANGUAGE
    """ISO 639 code, for splitting prose into sentences, where ``input`` does not name languages."""
    input_root: PathText | None = None
    """File names below this directory go into document ids; by default the deepest that holds all
    files."""
    cleaning: CleaningSection = CleaningSection()
    """What is left out of the text; by default nothing."""
    validation_fraction: Annotated[float, pydantic.Field(ge=0.0, le=0.5)] = 0.01
    """Share of the documents held out as the split ``validation``; 0: no such split."""
    num_shards: Annotated[int, pydantic.Field(ge=1, le=99_999)] | None = None
    """Shards of the split ``train``; by default a function of its size."""
    engine: EngineName = "local"
    """Who does the work: processes of this machine, or an Apache Beam runner. The dataset does not
    depend on it, nor on the two that follow."""
    workers: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Processes on this machine; by default one per core."""
    beam: BeamSection = BeamSection()
    """The runner of ``engine: beam``, and its options."""
    seed: int = 12345
    """Of every random choice; google-research/bert's default."""

    @property
    def pairing(self) -> PairingSection:
        """The settings of pairing alone, as a dataset records them."""
        return PairingSection(**{name: getattr(self, name) for name in PairingSection.model_fields})

    @pydantic.model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.engine != "beam":
            refuse_ignored(self, "beam", allowed="engine beam")
        return self

    @pydantic.field_validator("language")
    @classmethod
    def _language_is_given_once(cls, language: str, info: pydantic.ValidationInfo) -> str:
        if isinstance(info.data.get("input"), dict) and language != _LANGUAGE:
            raise ValueError("allowed: no language here, since input has a list for each language")
        return language
