"""The rules that look at one document at a time."""

from __future__ import annotations

import unicodedata

from bert_jax.pipelines.cleaning.boilerplate import prose_lines
from bert_jax.pipelines.cleaning.contamination import load_index
from bert_jax.pipelines.cleaning.language import KEY, keeps
from bert_jax.pipelines.cleaning.settings import CleaningSection
from bert_jax.pipelines.cleaning.tally import Tally
from bert_jax.user_function import load_function


class DocumentRules:
    """Applies the rules that are on, in the order of the settings."""

    def __init__(self, section: CleaningSection, *, overlap_index: str | None) -> None:
        """Prepares the rules.

        Args:
            section: the settings.
            overlap_index: directory that ``contamination.build_index`` has made, if that is on.

        Raises:
            UserError: the language filter cannot be imported.
        """
        self._section = section
        filter_name = section.language_filter
        self._filter = None if filter_name is None else load_function(filter_name, key=KEY)
        self._index = None if overlap_index is None else load_index(overlap_index)

    def apply(self, lines: list[str], *, identity: str, tally: Tally) -> list[str]:
        """Returns what is left of a document's lines; nothing if the document is dropped.

        Args:
            lines: its lines; none is blank.
            identity: its id, for messages and lists.
            tally: counts what is dropped.
        """
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
        if self._filter is not None and not keeps(
            self._filter, "\n".join(lines), languages=section.languages, identity=identity
        ):
            tally.documents["language_filter"] += 1
            return []
        if self._index is not None and section.contamination is not None:
            contaminated = self._index.check("\n".join(lines), identity=identity, tally=tally)
            if contaminated and section.contamination.on_contaminated == "drop":
                tally.documents["contamination"] += 1
                return []
        return lines
