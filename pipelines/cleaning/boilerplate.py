"""Lines and documents that are no prose, by the rules that C4 has published."""

import re
from collections.abc import Sequence
from typing import Final

from bert_jax.pipelines.cleaning.settings import BoilerplateSection
from bert_jax.pipelines.cleaning.tally import Tally
from bert_jax.pipelines.cleaning.words import words

_END: Final = re.compile("[.!?。！？．｡…؟।\"”’'»」』]$")
_ENDS: Final = re.compile("[.!?؟।]+[\"”’'»)\\]]*(?=\\s|$)|[。！？．｡]+")


def prose_lines(
    lines: Sequence[str], section: BoilerplateSection, *, tally: Tally
) -> list[str] | None:
    """Returns the lines that no rule drops; ``None`` if a rule drops the whole document.

    A dropped line or document is counted under the first rule that drops it.
    """
    kept = []
    for line in lines:
        rule = _line_rule(line, section)
        if rule is None:
            kept.append(line)
        else:
            tally.lines[f"boilerplate.{rule}"] += 1
    if not kept:
        return kept
    lowered = "\n".join(lines).lower()
    if any(phrase.lower() in lowered for phrase in section.document_phrases):
        rule = "document_phrases"
    elif sentence_ends(kept) < section.min_sentence_ends:
        rule = "min_sentence_ends"
    else:
        return kept
    tally.documents[f"boilerplate.{rule}"] += 1
    return None


def sentence_ends(lines: Sequence[str]) -> int:
    """Returns how often a sentence seems to end: ``["One. Two!", "三。"] -> 3``.

    A full stop, exclamation or question mark before white space or the end of the line; those of
    Chinese and Japanese anywhere.
    """
    return sum(len(_ENDS.findall(line)) for line in lines)


def _line_rule(line: str, section: BoilerplateSection) -> str | None:
    """Returns the rule that drops a line."""
    if section.letters and not any(map(str.isalpha, line)):
        return "letters"
    if section.sentence_end and not _END.search(line):
        return "sentence_end"
    if section.min_line_words and _fewer_words(line, section.min_line_words):
        return "min_line_words"
    lowered = line.lower()
    if any(phrase.lower() in lowered for phrase in section.line_phrases):
        return "line_phrases"
    return None


def _fewer_words(line: str, least: int) -> bool:
    # For almost every line of prose its spaces suffice.
    return len(line.split(maxsplit=2 * least)) <= 2 * least and len(words(line)) < least
