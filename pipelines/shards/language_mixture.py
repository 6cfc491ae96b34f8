"""The languages of a corpus on disk: how much there is of each, and how often it is used."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from etils import epath

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.errors import UserError
from bert_jax.files.remote import each
from bert_jax.pipelines.pairing.language_sampling import boosts, mixed_shares
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards.write_shard import ShardSummary
from bert_jax.pipelines.tokenised.tokenise import SPLITS, read_summary
from bert_jax.pipelines.unusable_text import UnusableText


class LanguageCorpus(NamedTuple):
    """One language's tokenised documents."""

    parts: tuple[epath.Path, ...]  # directories of its tokenised parts
    documents: dict[str, int]  # by split
    tokens: dict[str, int]  # by split


def read_languages(
    section: ExamplesSection, parts: Sequence[epath.Path]
) -> dict[str, LanguageCorpus]:
    """Returns the languages of a corpus, sorted by code; a single one if the settings name none.

    Raises UserError: a language that the settings name has too few documents for training.
    """
    summaries = dict(zip(parts, each(read_summary, parts), strict=True))
    found = {}
    for name in (language or section.language for language in section.by_language):
        held = {part: made for part, made in summaries.items() if made.language == name}
        found[name] = LanguageCorpus(
            parts=tuple(held),
            documents={s: sum(made.documents[s] for made in held.values()) for s in SPLITS},
            tokens={s: sum(made.tokens[s] for made in held.values()) for s in SPLITS},
        )
        if isinstance(section.input, dict):
            _check(section, name, found[name])
    return found


@dataclasses.dataclass(frozen=True)
class SplitLanguages:
    """The languages of one split of the dataset."""

    section: ExamplesSection
    split: str
    languages: Mapping[str, LanguageCorpus]  # by code, sorted

    @property
    def paired(self) -> dict[str, LanguageCorpus]:
        """Those with enough documents for examples."""
        least = self.section.min_documents
        return {
            n: held for n, held in self.languages.items() if held.documents[self.split] >= least
        }

    @property
    def boosts(self) -> dict[str, float]:
        """The factor of the passes of each language that is paired.

        1 in the split ``validation``, so that runs on other mixtures compare, or without one.
        """
        return boosts(self._tokens(self.paired), smoothing=self._smoothing)

    def records(self, shards: Iterable[ShardSummary]) -> dict[str, LanguageRecord] | None:
        """Returns each language's figures; ``None``: the settings tell no languages apart."""
        if not isinstance(self.section.input, dict):
            return None
        held = list(shards)
        wanted = mixed_shares(self._tokens(self.paired), smoothing=self._smoothing)
        boost = self.boosts
        tokens = self._tokens(self.languages)
        records = {}
        for name, language in self.languages.items():
            counts = [shard.languages.get(name, (0, 0)) for shard in held]
            records[name] = LanguageRecord(
                documents=language.documents[self.split],
                tokens=tokens[name],
                share=tokens[name] / sum(tokens.values()),
                mixture_share=wanted.get(name, 0.0),
                passes=self.section.dupe_factor * boost.get(name, 0.0),
                examples=sum(examples for examples, _ in counts),
                example_tokens=sum(tokens for _, tokens in counts),
            )
        return records

    @property
    def _smoothing(self) -> float:
        mixture = self.section.mixture
        return mixture.smoothing if mixture is not None and self.split == "train" else 1.0

    def _tokens(self, languages: Mapping[str, LanguageCorpus]) -> dict[str, int]:
        return {name: language.tokens[self.split] for name, language in languages.items()}


def _check(section: ExamplesSection, name: str, language: LanguageCorpus) -> None:
    if not sum(language.documents.values()):
        raise UnusableText(
            f"input: no document in the files of {name}, allowed: at least 2 documents"
        )
    found, least = language.documents["train"], section.min_documents
    if found < least:
        raise UserError(
            f"input: {name} has {found} document(s) for training, kind: {section.kind} needs at "
            f"least {least} of each language"
        )
