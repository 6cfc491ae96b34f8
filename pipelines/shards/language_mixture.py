"""Computes how often the text of each language is used in a split.

The shares are smoothed as in multilingual BERT (google-research/bert, ``multilingual.md``): each
language's share of the corpus is raised to the power S = 0.7, then the shares are normalised. The
vocabulary and the examples use the same shares.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.errors import UserError
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.shards.write_shard import ShardSummary
from bert_jax.pipelines.tokenised.corpus import LanguageCorpus
from bert_jax.pipelines.workspace import UnusableText


def check_languages(section: ExamplesSection, languages: Mapping[str, LanguageCorpus]) -> None:
    """Raises UserError if a language of the settings has too few documents for training."""
    if not isinstance(section.input, dict):
        return
    least = section.min_documents
    for name, language in languages.items():
        held = language.tally.held
        if not held.total():
            raise UnusableText(
                "text.language_empty",
                f"found no document in the files of {name}, allowed: at least 2",
                place="input",
            )
        if held["train"] < least:
            raise UserError(
                "text.language_small",
                f"found {held['train']} training documents in {name}, allowed: at least {least}",
                place="input",
            )


@dataclasses.dataclass(frozen=True)
class SplitLanguages:
    """Languages of one split of the dataset."""

    section: ExamplesSection
    split: str
    languages: Mapping[str, LanguageCorpus]  # by code, sorted

    @property
    def paired(self) -> dict[str, LanguageCorpus]:
        """Languages with enough documents for examples."""
        least = self.section.min_documents
        return {n: h for n, h in self.languages.items() if h.tally.held[self.split] >= least}

    @property
    def boosts(self) -> dict[str, float]:
        """Factor by which each paired language's number of passes is multiplied.

        Without a mixture, the factor is 1. In the split ``validation``, it is always 1, so that
        runs with different mixtures can be compared.
        """
        return boosts(self.tokens(self.paired), smoothing=self._smoothing)

    def tokens(self, languages: Mapping[str, LanguageCorpus]) -> dict[str, int]:
        """Returns the number of tokens of each language in the split."""
        return {name: language.tally.tokens[self.split] for name, language in languages.items()}

    def records(self, shards: Iterable[ShardSummary]) -> dict[str, LanguageRecord] | None:
        """Returns statistics of each language. If the settings name no languages, returns None."""
        if not isinstance(self.section.input, dict):
            return None
        held = list(shards)
        wanted = mixed_shares(self.tokens(self.paired), smoothing=self._smoothing)
        boost, tokens = self.boosts, self.tokens(self.languages)
        return {
            name: LanguageRecord(
                documents=language.tally.held[self.split],
                tokens=tokens[name],
                share=tokens[name] / sum(tokens.values()),
                mixture_share=wanted.get(name, 0.0),
                passes=self.section.dupe_factor * boost.get(name, 0.0),
                examples=sum(shard.examples.get(name, 0) for shard in held),
                example_tokens=sum(shard.tokens.get(name, 0) for shard in held),
            )
            for name, language in self.languages.items()
        }

    @property
    def _smoothing(self) -> float:
        mixture = self.section.mixture
        return mixture.smoothing if mixture is not None and self.split == "train" else 1.0


def mixed_shares(sizes: Mapping[str, int], *, smoothing: float) -> dict[str, float]:
    """Returns each language's smoothed share: ``{"en": 90, "is": 10}`` at 0.7 → 0.823 and 0.177."""
    weights = _weights(sizes, smoothing)
    total = sum(weights.values())
    return {language: weight / total for language, weight in weights.items()}


def boosts(sizes: Mapping[str, int], *, smoothing: float) -> dict[str, float]:
    """Returns each language's smoothed share divided by its share in the corpus.

    ``{"en": 90, "is": 10}`` at 0.7 → 0.915 and 1.769. This is how often a language's text is used,
    relative to the mean over all text. A smoothing of 1 gives exactly 1.
    """
    weights = _weights(sizes, smoothing)
    # The order of operations matters: a smoothing of 1 must give exactly 1.
    level = sum(sizes.values()) / sum(weights.values())
    return {language: weights[language] / size * level for language, size in sizes.items()}


def _weights(sizes: Mapping[str, int], smoothing: float) -> dict[str, float]:
    return {language: float(size) ** smoothing for language, size in sizes.items()}
