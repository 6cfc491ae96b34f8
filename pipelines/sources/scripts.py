"""Finds text in Chinese and in a Latin alphabet that the settings treat as one language.

A small language then gets few pieces of a vocabulary, and random pairs of two languages are too
easy. ``input`` with a list of files for each language prevents both.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from bert_jax.errors import UserError
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.sources import Source, cut_sources, read_documents
from bert_jax.pipelines.tally import Tally
from bert_jax.text.basic_tokenizer import is_chinese

_SHARE: Final = 0.1  # lowest share of each script; Chinese text has some Latin letters
_LINES: Final = 20_000  # number of lines that are counted
_FILES: Final = 100  # number of files of which the first lines are counted
_PART_BYTES: Final = 64 << 20
# One file of the other formats is large, has one language, and is slow to open.
_FORMATS: Final = ("text", "jsonl", "parquet", "wikiextractor")


def mixed_scripts(section: SourcesSection, lines: Sequence[str]) -> str | None:
    """Returns a warning if lines of an input without languages have both scripts, else None."""
    if isinstance(section.input, dict):
        return None
    counted = lines[
        :: -(-len(lines) // _LINES) or 1
    ]  # a corpus may have one language after another
    counts = Counter(chain.from_iterable(counted))
    letters = {character: n for character, n in counts.items() if character.isalpha()}
    total = sum(letters.values())
    chinese = sum(n for character, n in letters.items() if is_chinese(character))
    latin = sum(n for character, n in letters.items() if character.isascii())
    if not total or min(chinese, latin) < _SHARE * total:
        return None
    return (
        f"{chinese / total:.0%} of the letters of `input` are Chinese and {latin / total:.0%} "
        "Latin, but one list of files is one language. Write a list for each language, such as "
        "`input: {en: [en/*.txt], zh: [zh/*.txt]}`; `mixture: {}` raises the share of the smaller "
        "language."
    )


def first_lines(section: SourcesSection, sources: Sequence[Source]) -> list[str]:
    """Returns the first lines of at most 100 files."""
    readable = [source for source in sources if source.format in _FORMATS]
    chosen = readable[:: -(-len(readable) // _FILES) or 1]
    most = _LINES // max(len(chosen), 1)
    return [line for source in chosen for line in islice(_lines(section, source), most)]


def _lines(section: SourcesSection, source: Source) -> Iterator[str]:
    tally = Tally()
    try:
        for part in cut_sources([source], section, _PART_BYTES, tally):
            for document in read_documents(part, section, tally):
                yield from document.lines
    except UserError:  # the reader of the whole text raises it
        return
