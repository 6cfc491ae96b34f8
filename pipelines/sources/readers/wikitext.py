"""Wikitext to its paragraphs, by ``mwparserfromhell``."""

import html
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import mwparserfromhell
from mwparserfromhell import nodes

from bert_jax.errors import UserError, first_line

_LIST_MARKS: Final = frozenset("*#:;")
_DROPPED_TAGS: Final = frozenset(
    (
        *("ref", "table", "gallery", "math", "chem", "timeline", "imagemap", "score", "source"),
        *("syntaxhighlight", "references", "pre", "hiero", "graph", "templatestyles"),
    )
)
_EMPTY_BRACKETS: Final = re.compile(r"\s*[(（][\s,;:，；]*[)）]")
_SPACES: Final = re.compile(r"[ \t\xa0]+")
# Brackets by what ends them. Each that nothing ends costs a look at all that follows: of these
# characters the parser reads some ten million in a second.
_PAIRS: Final = {"}}": "{{", "]]": "[[", ">": "<"}
_BRACKETS: Final = re.compile(r"\{\{|\}\}|\[\[|\]\]|<|>")
_MOST_WORK: Final = 20_000_000
_MAGIC_WORD: Final = re.compile(r"__[A-Z]+__")


def wikitext_paragraphs(wikitext: str, *, dropped_namespaces: Collection[str]) -> list[str]:
    r"""Returns the paragraphs of a page: ``"'''A''' is [[b|B]].\n== C ==\n* d" -> ["A is B."]``.

    Left out: templates, tables, lists, headings, references, pictures with their captions, and
    categories, so that only text passages stay (BERT paper, section 3.1).

    Args:
        wikitext: the source of one page.
        dropped_namespaces: lower-case names of the namespaces of files and categories, in the
            wiki's language and in English; links to them go with all that they hold.

    Raises:
        UserError: it is nested too deep, or begins very much that it never ends.
    """
    _refuse_unended(wikitext)
    try:
        code = mwparserfromhell.parse(wikitext, skip_style_tags=False)
        text = "".join(_visible(code, dropped_namespaces))
    except (RecursionError, mwparserfromhell.parser.ParserError) as error:
        raise UserError(f"found wikitext that cannot be parsed ({first_line(error)})") from None
    text = _MAGIC_WORD.sub("", _EMPTY_BRACKETS.sub("", text))
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return [line for line in lines if any(map(str.isalnum, line))]


def _refuse_unended(wikitext: str) -> None:
    """Refuses what the parser would read again and again: once for each bracket without an end."""
    begun = sum(map(wikitext.count, _PAIRS.values()))
    if begun * len(wikitext) <= _MOST_WORK:
        return
    open_ones = dict.fromkeys(_PAIRS.values(), 0)
    for token in _BRACKETS.findall(wikitext):
        if token in open_ones:
            open_ones[token] += 1
        else:
            open_ones[_PAIRS[token]] = max(0, open_ones[_PAIRS[token]] - 1)
    if (unended := sum(open_ones.values())) * len(wikitext) > _MOST_WORK:
        raise UserError(
            f"found {unended:,} brackets without an end in {len(wikitext):,} characters of "
            "wikitext, allowed: few"
        )


def _visible(code: Any, dropped: Collection[str]) -> Iterator[str]:
    """Yields the visible text of the nodes, with its line ends."""
    in_list = False  # until the end of its line
    for node in code.nodes:
        if isinstance(node, nodes.Tag) and str(node.wiki_markup or "") in _LIST_MARKS:
            in_list = True
            continue
        for text in _node_text(node, dropped):
            if in_list:
                _, end, rest = text.partition("\n")
                if not end:
                    continue
                in_list = False
                yield end + rest
            else:
                yield text


def _node_text(node: Any, dropped: Collection[str]) -> Iterator[str]:
    if isinstance(node, nodes.Text):
        yield str(node)
    elif isinstance(node, nodes.HTMLEntity):
        yield html.unescape(str(node))  # half of a pair of characters is U+FFFD
    elif isinstance(node, nodes.Wikilink):
        space, colon, _ = str(node.title).partition(":")
        if not (colon and space.strip().lower() in dropped):
            yield from _visible(node.text if node.text is not None else node.title, dropped)
    elif isinstance(node, nodes.ExternalLink):
        if node.title is not None:
            yield from _visible(node.title, dropped)
    elif isinstance(node, nodes.Tag):
        name = str(node.tag).strip().lower()
        if name == "br":
            yield "\n"
        elif name not in _DROPPED_TAGS and node.contents is not None:
            yield from _visible(node.contents, dropped)
