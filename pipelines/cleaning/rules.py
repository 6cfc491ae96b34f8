"""Cleaning rules that need only one document at a time, and the documents that pass them."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.pipelines.cleaning.contamination import load_index
from bert_jax.pipelines.cleaning.words import words
from bert_jax.pipelines.section import BoilerplateSection, CleaningSection, ExamplesSection
from bert_jax.pipelines.sources.documents import Document, document_id
from bert_jax.pipelines.sources.files import FilePart
from bert_jax.pipelines.sources.sources import read_documents
from bert_jax.pipelines.tally import Tally
from bert_jax.user_function import load_function

_END: Final = re.compile("[.!?。！？．｡…؟।\"”’'»」』]$")
# A sentence ends at a full stop, exclamation or question mark before white space or the end of the
# line. Chinese and Japanese marks end a sentence anywhere.
_ENDS: Final = re.compile("[.!?؟।]+[\"”’'»)\\]]*(?=\\s|$)|[。！？．｡]+")

LANGUAGE_FILTER: Final = "examples.cleaning.language_filter"

_OFF = CleaningSection()


def prose_lines(
    lines: Sequence[str], section: BoilerplateSection, *, tally: Tally
) -> list[str] | None:
    """Returns the lines that no rule drops. If a rule drops the whole document, returns None.

    A dropped line or document is counted under the first rule that drops it.
    """
    kept = []
    for line in lines:
        if rule := _line_rule(line, section):
            tally.lines[f"boilerplate.{rule}"] += 1
        else:
            kept.append(line)
    if not kept:
        return kept
    if _has_phrase("\n".join(lines), section.document_phrases):
        rule = "document_phrases"
    elif sum(len(_ENDS.findall(line)) for line in kept) < section.min_sentence_ends:
        rule = "min_sentence_ends"
    else:
        return kept
    tally.documents[f"boilerplate.{rule}"] += 1
    return None


def _line_rule(line: str, section: BoilerplateSection) -> str | None:
    if section.letters and not any(map(str.isalpha, line)):
        return "letters"
    if section.sentence_end and not _END.search(line):
        return "sentence_end"
    # Splitting at spaces is fast and sufficient for almost every line; `words` is slow.
    least = section.min_line_words
    if least and len(line.split(maxsplit=2 * least)) <= 2 * least and len(words(line)) < least:
        return "min_line_words"
    return "line_phrases" if _has_phrase(line, section.line_phrases) else None


def _has_phrase(text: str, phrases: Sequence[str]) -> bool:
    lowered = text.lower()
    return any(phrase.lower() in lowered for phrase in phrases)


class DocumentRules:
    """Applies the enabled rules in the order of the settings."""

    def __init__(self, section: CleaningSection, *, work: str) -> None:
        """Prepares the rules.

        ``work`` is the directory with the index of evaluation files. Raises UserError if the
        language filter cannot be imported.
        """
        self._section = section
        self._filter = self._index = None
        if section.language_filter is not None:
            self._filter = load_function(section.language_filter, key=LANGUAGE_FILTER, checked=True)
        if section.contamination is not None:
            self._index = load_index(work)

    def apply(self, lines: list[str], *, identity: str, tally: Tally) -> list[str]:
        """Returns the remaining lines of a document. If the document is dropped, there are none."""
        section = self._section
        if section.unicode is not None:
            form = "NFC" if section.unicode == "nfc" else "NFKC"
            normal = (unicodedata.normalize(form, line).strip() for line in lines)
            lines = [line for line in normal if line]
        if section.boilerplate is not None and lines:
            prose = prose_lines(lines, section.boilerplate, tally=tally)
            if prose is None:
                return []
            lines = prose
        if section.duplicate_lines != "keep":
            unique = list(dict.fromkeys(lines))
            if len(unique) < len(lines):
                tally.lines["duplicate_lines.document"] += len(lines) - len(unique)
            lines = unique
        if not lines:
            tally.documents["emptied"] += 1
            return []
        if self._filter is not None and not _keeps(
            self._filter, "\n".join(lines), languages=section.languages, identity=identity
        ):
            tally.documents["language_filter"] += 1
            return []
        if (
            self._index is not None
            and self._index.check("\n".join(lines), identity=identity, tally=tally)
            and section.contamination is not None
            and section.contamination.on_contaminated == "drop"
        ):
            tally.documents["contamination"] += 1
            return []
        return lines


def _keeps(
    function: Callable[[str], Any], text: str, *, languages: Sequence[str], identity: str
) -> bool:
    """Returns whether the user's filter function keeps a document.

    The function returns True, False or a language code. Raises UserError for anything else.
    """
    try:
        answer = function(text)
    except Exception as error:
        raise UserError(
            "cleaning.filter_failed",
            f"the function raised {type(error).__name__} for the document {identity}: {error}",
            place=LANGUAGE_FILTER,
        ) from error
    if isinstance(answer, bool):
        return answer
    if not isinstance(answer, str):
        raise UserError(
            "cleaning.filter_answer",
            f"returned {answer!r:.60} for {identity}, allowed: True, False or a language code",
            place=LANGUAGE_FILTER,
        )
    if not languages:
        raise UserError(
            "cleaning.no_languages",
            f'found none, but language_filter returned "{answer}" for {identity}. List the codes.',
            place="examples.cleaning.languages",
        )
    return answer in languages


class CorpusPart(NamedTuple):
    """Part of the corpus in one language. One worker cleans and tokenises it."""

    number: int
    files: tuple[FilePart, ...]
    language: str
    section: ExamplesSection
    work: str  # work directory, shared by all workers

    @property
    def size(self) -> int:
        """Size of the files on disk, in bytes."""
        return sum(part.size for part in self.files)

    @property
    def spill(self) -> epath.Path:
        """Directory of the cleaned documents. Only rules that compare documents need it."""
        return epath.Path(self.work) / f"spill-{self.number:05d}"

    @property
    def tokenised(self) -> epath.Path:
        """Directory of the documents as token ids."""
        return epath.Path(self.work) / f"part-{self.number:05d}"


def corpus_documents(part: CorpusPart, tally: Tally) -> Iterator[tuple[str, Document]]:
    """Yields ``(id, document)`` for every document that the rules for single documents keep.

    Raises UserError if the input is bad and ``on_error`` is ``fail``.
    """
    section = part.section
    rules = None
    if section.cleaning != _OFF:
        rules = DocumentRules(section.cleaning, work=part.work)
    for file in part.files:
        for document in read_documents(file, section, tally):
            tally.documents["read"] += 1
            tally.lines["read"] += len(document.lines)
            identity = document_id(file.name, document.offset, document.id)
            if rules is not None:
                lines = rules.apply(document.lines, identity=identity, tally=tally)
                if not lines:
                    continue
                document = document._replace(lines=lines)
            yield identity, document
