"""Settings of the cleaning rules: each is off until it is asked for."""

from typing import Annotated, Literal

import pydantic

from bert_jax.section import DataPathText, Section, Strings, as_tuple


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
    """Lines with one of these are dropped."""
    document_phrases: Strings = ("lorem ipsum", "{")
    """Documents with one of these are dropped."""
    min_sentence_ends: Annotated[int, pydantic.Field(ge=0)] = 3
    """Documents with fewer sentence ends in their remaining lines are dropped."""


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
        tuple[DataPathText, ...],
        pydantic.BeforeValidator(as_tuple),
        pydantic.Field(min_length=1),
    ]
    """Files and globs: GLUE's ``.tsv`` (every field), SQuAD's ``.json`` (questions and contexts),
    anything else as plain lines."""
    ngram: Annotated[int, pydantic.Field(ge=1, le=50)] = 13
    """Length in words of a shared n-gram; 13 as in GPT-3 (arXiv:2005.14165, appendix C).
    Evaluation texts with fewer words are counted, but cannot be found."""
    on_contaminated: Literal["report", "drop"] = "report"
    """Whether documents with an overlap are dropped, or only counted."""


class CleaningSection(Section):
    """What is left out, in this order; every rule is off by default."""

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
