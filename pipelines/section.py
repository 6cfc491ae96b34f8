"""Settings of ``bert-jax examples``, and its text settings, which ``bert-jax vocab`` also uses."""

from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import pydantic

from bert_jax.data.dataset.provenance import MixtureSection, PairingSection
from bert_jax.errors import SettingError
from bert_jax.files.read import shown
from bert_jax.pipelines.engines.beam import BeamSection
from bert_jax.section import (
    DataPathText,
    PathText,
    Section,
    Strings,
    as_tuple,
    check_data_path,
    refuse_ignored,
)

MAX_LINE_LENGTH: Final = 1_000_000
"""Lowest number of characters at which a line is an error. Such a line is not prose, and splitting
or encoding it would need too much memory and time."""

MAX_DOCUMENT_LENGTH: Final = 16_000_000
"""Lowest number of characters at which a record is an error. Books are shorter."""

Format: TypeAlias = Literal[
    "auto", "text", "jsonl", "parquet", "wikiextractor", "wikipedia_xml", "tfds"
]
_LANGUAGE: Final = "en"


def as_inputs(value: Any) -> Any:
    """Returns file names as a tuple; for several languages, as a dict of tuples.

    Raises SettingError if ``value`` has another type.
    """
    by_language = value if isinstance(value, dict) else {None: value}
    inputs = {code: as_tuple(names) for code, names in by_language.items()}
    for names in inputs.values():
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise SettingError.wrong(
                "input.form", shown(value), "a list of files and globs, or a list for each language"
            )
    inputs = {code: tuple(map(check_data_path, names)) for code, names in inputs.items()}
    return inputs if isinstance(value, dict) else inputs[None]


class SourcesSection(Section):
    """Files of text and their format. ``docs/data.md`` describes every format."""

    input: Annotated[
        tuple[str, ...] | dict[str, tuple[str, ...]], pydantic.BeforeValidator(as_inputs)
    ]
    """Files and globs, local or ``gs://``, plain or packed (``.gz``, ``.bz2``, ``.xz``, ``.zst``).
    Also directories or names of TFDS datasets. For several languages, a list per ISO 639 code."""
    mixture: MixtureSection | None = None
    """Share of each language in the result. By default, the same share as in the corpus."""
    format: Format = "auto"
    """Format of the files. ``auto`` detects each file's format by its suffix and first bytes."""
    text_field: str = "text"
    """Field, column or feature with the text of a JSONL, Parquet or TFDS record."""
    id_field: str | None = None
    """Field with the record's id, which must be unique in its file. By default, the id is the
    record's position. Wikipedia's formats always use the page id."""
    tfds_split: str = "train"
    """Split of TFDS datasets."""
    max_line_length: Annotated[int, pydantic.Field(ge=1)] = MAX_LINE_LENGTH
    """Lowest number of characters at which a line is an error."""
    max_document_length: Annotated[int, pydantic.Field(ge=1)] = MAX_DOCUMENT_LENGTH
    """Lowest number of characters at which a record (in JSONL, a line) is an error."""
    on_error: Literal["fail", "skip"] = "fail"
    """Treatment of a damaged file or record. ``fail`` stops with a message. ``skip`` skips the
    record, or the rest of a damaged file's part, and lists the problem in ``preparation.json``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Entries of ``input`` in all languages."""
        return tuple(name for names in self.by_language.values() for name in names)

    @property
    def by_language(self) -> dict[str | None, tuple[str, ...]]:
        """Entries of ``input`` by language, in order of code. A single list has the key None."""
        if isinstance(self.input, tuple):
            return {None: self.input}
        return dict(sorted(self.input.items()))

    @pydantic.field_validator("mixture")
    @classmethod
    def _mixture_needs_languages(
        cls, mixture: MixtureSection | None, info: pydantic.ValidationInfo
    ) -> MixtureSection | None:
        if mixture is not None and isinstance(info.data.get("input"), tuple):
            raise SettingError(
                "input.mixture",
                "allowed only if input has a list of files for each language, such as input: "
                "{en: [en/*.txt], zh: [zh/*.txt]}",
            )
        return mixture


class BoilerplateSection(Section):
    """Drops lines and documents of web pages that are not prose.

    The defaults are the rules of C4 (arXiv:1910.10683, section 2.2), without its list of bad words
    and its removal of repeated three-sentence spans. Phrases are compared in lower case.
    """

    min_line_words: Annotated[int, pydantic.Field(ge=0)] = 5
    """Drop lines with fewer words. Each ideograph or kana is a word."""
    letters: bool = True
    """Drop lines without a letter."""
    sentence_end: bool = True
    """Drop lines that do not end in a full stop, an exclamation mark, a question mark or a closing
    quotation mark."""
    line_phrases: Strings = (
        *("javascript", "terms of use", "privacy policy", "cookie policy", "uses cookies"),
        *("use of cookies", "use cookies"),
    )
    """Drop lines with one of these phrases."""
    document_phrases: Strings = ("lorem ipsum", "{")
    """Drop documents with one of these phrases."""
    min_sentence_ends: Annotated[int, pydantic.Field(ge=0)] = 3
    """Drop documents whose remaining lines have fewer sentence ends."""


class NearDuplicatesSection(Section):
    """Drops documents that share most of their word n-grams with an earlier document.

    The method is MinHash with locality-sensitive hashing in 14 bands of 8 hashes. Hashes and
    default values are FineWeb's (arXiv:2406.17557, section 3.4).
    """

    ngram: Annotated[int, pydantic.Field(ge=1, le=50)] = 5
    """Words per n-gram."""
    threshold: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.75
    """Lowest share of equal hashes at which a document is dropped. This share estimates the Jaccard
    similarity of the n-gram sets."""


class ContaminationSection(Section):
    """Finds documents that contain text of evaluation sets."""

    files: Annotated[
        tuple[DataPathText, ...], pydantic.BeforeValidator(as_tuple), pydantic.Field(min_length=1)
    ]
    """Files and globs. Texts to find: every field of a ``.tsv`` (GLUE), questions and contexts of a
    ``.json`` (SQuAD), every string of a ``.jsonl``, and each line of any other file."""
    ngram: Annotated[int, pydantic.Field(ge=1, le=50)] = 13
    """Number of words in a shared n-gram. The default is GPT-3's (arXiv:2005.14165, appendix C).
    Shorter evaluation texts cannot be found; the report counts them."""
    on_contaminated: Literal["report", "drop"] = "report"
    """Only count documents with an overlap, or drop them."""


class CleaningSection(Section):
    """Rules that drop text, in the order in which they apply. By default every rule is off."""

    unicode: Literal["nfc", "nfkc"] | None = None
    """Unicode normalisation form of lines. By default, lines are not normalised."""
    boilerplate: BoilerplateSection | None = None
    """Drop lines and documents that are not prose. ``{}`` uses the rules of C4."""
    duplicate_lines: Literal["keep", "document", "corpus"] = "keep"
    """Drop lines that occur earlier: in the same ``document``, or anywhere in the ``corpus``."""
    language_filter: str | None = None
    """Your function, ``package.module:function``. It takes the text of a document and returns True,
    False or a language code. It must be deterministic."""
    languages: Strings = ()
    """Language codes to keep if `language_filter` returns codes."""
    contamination: ContaminationSection | None = None
    """Report or drop documents that overlap with evaluation sets."""
    duplicate_documents: bool = False
    """Drop documents with the same text as an earlier document."""
    near_duplicates: NearDuplicatesSection | None = None
    """Drop documents that nearly equal an earlier document. ``{}`` uses FineWeb's values."""

    @property
    def compares_documents(self) -> bool:
        """Whether a rule compares documents. If so, all are read before the first is tokenised."""
        return (
            self.duplicate_documents
            or self.near_duplicates is not None
            or self.duplicate_lines == "corpus"
        )


class ExamplesSection(SourcesSection, PairingSection):
    """Settings of reading text and making examples from it.

    Names and defaults of :class:`PairingSection` are google-research/bert's.
    """

    tokenizer: PathText
    """Directory of the tokenizer."""
    output: PathText
    """New directory for the dataset."""
    layout: Literal["sentences", "prose"] = "sentences"
    """Content of a line. ``sentences``: one sentence (as in BERT). ``prose``: one paragraph."""
    documents: Literal["blank_line", "file"] = "blank_line"
    """Boundaries of documents in plain text: blank lines, or one document per file."""
    language: str = _LANGUAGE
    """ISO 639 code for splitting prose into sentences. Not allowed if ``input`` has languages."""
    input_root: PathText | None = None
    """Base directory of the file names in document ids. By default, the deepest directory that
    contains all files."""
    cleaning: CleaningSection = CleaningSection()
    """Rules that drop text. By default, no text is dropped."""
    validation_fraction: Annotated[float, pydantic.Field(ge=0.0, le=0.5)] = 0.01
    """Share of the documents in the split ``validation``. If 0, the dataset has no such split."""
    num_shards: Annotated[int, pydantic.Field(ge=1, le=99_999)] | None = None
    """Number of shards of the split ``train``. By default, the size of its text decides."""
    engine: Literal["local", "beam"] = "local"
    """``local``: processes on this machine. ``beam``: an Apache Beam runner. The dataset does not
    depend on ``engine``, ``workers`` and ``beam``."""
    workers: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Number of processes on this machine. By default, one per core."""
    beam: BeamSection = BeamSection()
    """Runner and options for ``engine: beam``."""
    seed: int = 12345
    """Seed of every random choice. The default is google-research/bert's."""

    @property
    def pairing(self) -> PairingSection:
        """Pairing settings, as ``provenance.json`` records them."""
        return PairingSection(**{name: getattr(self, name) for name in PairingSection.model_fields})

    @pydantic.model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        if self.engine != "beam":
            refuse_ignored(self, "beam", allowed="engine beam")
        if self.layout != "prose":
            refuse_ignored(self, "language", allowed="layout prose")
        return self

    @pydantic.field_validator("language")
    @classmethod
    def _language_is_given_once(cls, language: str, info: pydantic.ValidationInfo) -> str:
        if isinstance(info.data.get("input"), dict) and language != _LANGUAGE:
            raise SettingError(
                "input.language_twice",
                f'found "{language}", but input already names the languages. Remove this setting.',
            )
        return language
