"""Settings of ``bert-jax examples``, and of sources, which ``bert-jax vocab`` shares."""

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
"""A line of this many characters is refused: it is not prose, and splitting or encoding it would
take disproportionate memory and time."""

MAX_DOCUMENT_LENGTH: Final = 16_000_000
"""A record of this many characters is refused: it is larger than any book."""

Format: TypeAlias = Literal[
    "auto", "text", "jsonl", "parquet", "wikiextractor", "wikipedia_xml", "tfds"
]
_LANGUAGE: Final = "en"


def as_inputs(value: Any) -> Any:
    """Returns file names as a tuple, or for several languages as a mapping to tuples.

    Raises ValueError: ``value`` is something else.
    """
    by_language = value if isinstance(value, dict) else {None: value}
    inputs = {code: as_tuple(names) for code, names in by_language.items()}
    for names in inputs.values():
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise SettingError(
                "input.form",
                "found {found}, allowed: a list of files and globs, or a list for each language",
                found=shown(value),
            )
        for name in names:
            check_data_path(name)
    return inputs if isinstance(value, dict) else inputs[None]


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
    """The field with the record's id, unique in its file; by default the id is the record's
    position. Wikipedia's formats always use the page id."""
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
        """All names of ``input``."""
        return tuple(name for names in self.by_language.values() for name in names)

    @property
    def by_language(self) -> dict[str | None, tuple[str, ...]]:
        """The names of ``input`` by language, in the order of codes; ``None``: it has one list."""
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
                "allowed only if input has a list of files for each language, such as "
                "input: {{en: [en/*.txt], zh: [zh/*.txt]}}",
            )
        return mixture


class BoilerplateSection(Section):
    """Lines and documents of web pages that are no prose.

    The defaults are the rules of C4 (arXiv:1910.10683, section 2.2), but for its list of bad words
    and its three-sentence duplicates. Text is compared in lower case.
    """

    min_line_words: Annotated[int, pydantic.Field(ge=0)] = 5
    """Drop lines of fewer words. In scripts without spaces an ideograph or kana counts as one."""
    letters: bool = True
    """Drop lines without a letter."""
    sentence_end: bool = True
    """Drop lines that end neither in a full stop, exclamation or question mark nor in a closing
    quotation mark."""
    line_phrases: Strings = (
        *("javascript", "terms of use", "privacy policy", "cookie policy", "uses cookies"),
        *("use of cookies", "use cookies"),
    )
    """Drop lines with one of these."""
    document_phrases: Strings = ("lorem ipsum", "{")
    """Drop documents with one of these."""
    min_sentence_ends: Annotated[int, pydantic.Field(ge=0)] = 3
    """Drop documents with fewer sentence ends in their remaining lines."""


class NearDuplicatesSection(Section):
    """Documents that share most of their word n-grams with an earlier one.

    MinHash with locality-sensitive hashing in 14 bands of 8 hashes. All numbers are FineWeb's
    (arXiv:2406.17557, section 3.4).
    """

    ngram: Annotated[int, pydantic.Field(ge=1, le=50)] = 5
    """Words per n-gram."""
    threshold: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.75
    """A document is dropped if the share of equal hashes, an estimate of the Jaccard similarity of
    the n-gram sets, is at least this."""


class ContaminationSection(Section):
    """Documents that hold text of evaluation sets."""

    files: Annotated[
        tuple[DataPathText, ...], pydantic.BeforeValidator(as_tuple), pydantic.Field(min_length=1)
    ]
    """Files and globs: GLUE's ``.tsv`` (every field), SQuAD's ``.json`` (questions and contexts),
    anything else as plain lines."""
    ngram: Annotated[int, pydantic.Field(ge=1, le=50)] = 13
    """Length in words of a shared n-gram; 13 as in GPT-3 (arXiv:2005.14165, appendix C).
    Evaluation texts with fewer words are counted, but cannot be found."""
    on_contaminated: Literal["report", "drop"] = "report"
    """Whether documents with an overlap are dropped, or only counted."""


class CleaningSection(Section):
    """Rules for text to leave out, in the order of their use; every rule is off by default."""

    unicode: Literal["nfc", "nfkc"] | None = None
    """Unicode normalisation form to bring lines into."""
    boilerplate: BoilerplateSection | None = None
    """``{}``: the rules of C4."""
    duplicate_lines: Literal["keep", "document", "corpus"] = "keep"
    """Which lines to drop: those that occur earlier in their document, or in any earlier one."""
    language_filter: str | None = None
    """``package.module:function`` of yours: text of a document in, True or False or a language code
    out. It must be deterministic."""
    languages: Strings = ()
    """Codes to keep, when the function returns codes."""
    contamination: ContaminationSection | None = None
    """Overlap with evaluation sets."""
    duplicate_documents: bool = False
    """Drop documents whose text equals an earlier one's."""
    near_duplicates: NearDuplicatesSection | None = None
    """``{}``: drop documents that nearly equal an earlier one."""

    @property
    def looks_across_documents(self) -> bool:
        """Whether a rule needs all documents, so that they are read before any is tokenised."""
        return (
            self.duplicate_documents
            or self.near_duplicates is not None
            or self.duplicate_lines == "corpus"
        )


class ExamplesSection(SourcesSection, PairingSection):
    """Where the text is, how it is read, and how examples are made of it.

    The keys are flat: they include the keys of :class:`SourcesSection` and :class:`PairingSection`.
    Names and defaults of the latter are google-research/bert's.
    """

    tokenizer: PathText
    """Directory of the tokenizer."""
    output: PathText
    """Directory of the dataset, which must not exist yet."""
    layout: Literal["sentences", "prose"] = "sentences"
    """``sentences``: each line is a sentence, as in google-research/bert. ``prose``: each line is
    a paragraph."""
    documents: Literal["blank_line", "file"] = "blank_line"
    """Separation of documents in plain text: blank lines, or each file is one document."""
    language: str = _LANGUAGE
    """ISO 639 code, for splitting prose into sentences, where ``input`` does not name languages."""
    input_root: PathText | None = None
    """File names below this directory go into document ids; by default the deepest that holds all
    files."""
    cleaning: CleaningSection = CleaningSection()
    """Parts of the text to leave out; by default none."""
    validation_fraction: Annotated[float, pydantic.Field(ge=0.0, le=0.5)] = 0.01
    """Share of the documents held out as the split ``validation``; 0: no such split."""
    num_shards: Annotated[int, pydantic.Field(ge=1, le=99_999)] | None = None
    """Shards of the split ``train``; by default a function of its size."""
    engine: Literal["local", "beam"] = "local"
    """Processes of this machine, or an Apache Beam runner. The dataset does not depend on the
    engine, nor on ``workers`` and ``beam``."""
    workers: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Processes on this machine; by default one per core."""
    beam: BeamSection = BeamSection()
    """The runner of ``engine: beam``, and its options."""
    seed: int = 12345
    """Seed of every random choice; google-research/bert's default."""

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
            raise SettingError(
                "input.language_twice",
                'found "{found}", but input already names the languages. Remove this setting.',
                found=language,
            )
        return language
