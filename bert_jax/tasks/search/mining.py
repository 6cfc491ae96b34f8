"""Hard negatives: texts that are similar to an anchor although they do not fit."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from bert_jax.data import rng
from bert_jax.tasks.search.tuples import TextTuple


class MiningTexts(NamedTuple):
    """Distinct texts, and which of them fit."""

    anchors: list[str]
    texts: list[str]  # the corpus
    pairs: np.ndarray  # int [pairs, 2]: an anchor and its positive, in the order of the table
    own: np.ndarray  # int [n, 2]: an anchor and its own text, if the corpus has it


def mining_texts(rows: Iterable[TextTuple], corpus: Iterable[str]) -> MiningTexts:
    """Returns the texts of a table of pairs and of a corpus. Positives are added to the corpus.

    Texts that differ in blanks alone are equal: otherwise a positive with another blank would
    become its anchor's best negative.
    """
    anchors: dict[str, tuple[int, str]] = {}  # index and first spelling by the words of the text
    texts: dict[str, tuple[int, str]] = {}

    def add(text: str, found: dict[str, tuple[int, str]]) -> int:
        return found.setdefault(" ".join(text.split()), (len(found), text))[0]

    for text in corpus:
        add(text, texts)
    pairs = {(add(row.texts[0], anchors), add(row.texts[1], texts)): None for row in rows}
    own = [(at, texts[words][0]) for words, (at, _) in anchors.items() if words in texts]
    found = [np.asarray(each, np.int64).reshape(-1, 2) for each in ([*pairs], own)]
    spelled = [[text for _, text in each.values()] for each in (anchors, texts)]
    return MiningTexts(spelled[0], spelled[1], *found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiningRule:
    """Which texts become negatives.

    None is no limit. Margins are below the lowest score of the anchor's positives.
    """

    negatives: int
    ranks: tuple[int, int]  # among the texts that no limit excludes; the second is exclusive
    margin: float | None = None  # absolute
    relative_margin: float | None = None  # share of the positive's score
    min_score: float | None = None
    max_score: float | None = None
    sample: Literal["top", "random"] = "top"
    seed: int = 0

    @property
    def pool(self) -> int:
        """Number of most similar texts that the limits are applied to."""
        return self.ranks[1]

    def choose(self, anchor: str, scores: np.ndarray, positive: float) -> np.ndarray:
        """Returns at most `negatives` indices of candidates, best first.

        `scores` has the candidates' scores, [pool], and -inf in free places. `positive` is the
        lowest score of the anchor's positives. Equal to `mine_hard_negatives` in
        sentence-transformers.
        """
        kept = scores > -np.inf
        if self.margin is not None:
            kept &= scores + self.margin <= positive
        if self.relative_margin is not None:
            kept &= scores <= positive - abs(positive) * self.relative_margin
        if self.min_score is not None:
            kept &= scores >= self.min_score
        if self.max_score is not None:
            kept &= scores <= self.max_score
        order = np.argsort(-scores, kind="stable")
        order = order[kept[order]][slice(*self.ranks)]
        if self.sample == "random" and len(order) > self.negatives:
            draw = rng.stream(self.seed, "negatives", anchor)
            order = order[np.sort(draw.choice(len(order), self.negatives, replace=False))]
        return order[: self.negatives]


class Mined(NamedTuple):
    """The negatives of a pair, best first."""

    pair: int  # index in `MiningTexts.pairs`
    positive: float  # score
    texts: np.ndarray  # int: indices in `MiningTexts.texts`
    scores: np.ndarray  # float32


def mined(
    rule: MiningRule,
    found: MiningTexts,
    *,
    scores: np.ndarray,
    texts: np.ndarray,
    positives: np.ndarray,
) -> Sequence[Mined]:
    """Returns the negatives of every pair.

    Args:
        rule: which texts become negatives.
        found: anchors, corpus and pairs.
        scores: scores of the candidates of each anchor, float32 [anchors, pool].
        texts: the candidates, int [anchors, pool].
        positives: score of each pair, float32 [pairs].
    """
    of_pair = found.pairs[:, 0]
    lowest = np.full(len(found.anchors), np.inf, np.float32)
    np.minimum.at(lowest, of_pair, positives)
    chosen = [
        rule.choose(anchor, scores[at], float(lowest[at]))
        for at, anchor in enumerate(found.anchors)
    ]
    return [
        Mined(pair, float(positives[pair]), texts[at][chosen[at]], scores[at][chosen[at]])
        for pair, at in enumerate(of_pair.tolist())
    ]
