"""The documents of some parts of the corpus, read and cleaned, ready to be tokenised."""

from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.pipelines.cleaning.rules import DocumentRules
from bert_jax.pipelines.cleaning.settings import CleaningSection
from bert_jax.pipelines.cleaning.tally import Tally
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.sources.documents import Document, document_id
from bert_jax.pipelines.sources.files import FilePart
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.sources import read_documents

_OFF = CleaningSection()


class CorpusJob(NamedTuple):
    """Some parts of the corpus and how to read them."""

    parts: tuple[FilePart, ...]
    section: ExamplesSection
    overlap_index: str | None
    """Directory of the evaluation sets' n-grams, if overlaps are looked for."""

    @property
    def size(self) -> int:
        """Bytes of its parts on disk."""
        return sum(part.size for part in self.parts)


def corpus_documents(job: CorpusJob, tally: Tally) -> Iterator[tuple[str, Document]]:
    """Yields the id and the document of everything that passes the rules on single documents.

    Raises:
        UserError: bad input that is not to be skipped.
    """
    section = job.section
    problems = Problems(section.on_error)
    rules = None
    if section.cleaning != _OFF:
        rules = DocumentRules(section.cleaning, overlap_index=job.overlap_index)
    for part in job.parts:
        for document in read_documents(part, section, problems):
            tally.documents["read"] += 1
            tally.lines["read"] += len(document.lines)
            identity = document_id(part.name, document.offset, document.id)
            if rules is not None:
                lines = rules.apply(document.lines, identity=identity, tally=tally)
                if not lines:
                    continue
                document = document._replace(lines=lines)
            yield identity, document
    tally.take(problems)
