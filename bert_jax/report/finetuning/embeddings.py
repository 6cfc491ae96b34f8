"""Sentence embeddings: nearest neighbours, distributions of cosines, and a map of the vectors."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.report.charts import STYLES, Chart, distributions, point_map
from bert_jax.report.rendering import View

NEIGHBOURS: Final = 5  # neighbours shown of a text
TEXTS: Final = 15  # texts whose neighbours are shown
LINKS: Final = 25  # pairs that are linked in the map


class SamplePair(NamedTuple):
    """Two texts of a sample that belong together."""

    first: int  # index of the text
    second: int
    score: float | None  # scaled score, 0 to 1 or −1 to 1; None: the texts fit


class VectorSample(NamedTuple):
    """Texts of a split and their vectors."""

    texts: Sequence[str]
    vectors: np.ndarray  # float32 [texts, width]
    pairs: Sequence[SamplePair]
    total: int  # number of texts of the split


def embeddings(sample: VectorSample) -> View:
    """Returns the neighbours of some texts, and charts of the cosines and of the vectors."""
    lengths = np.linalg.norm(sample.vectors, axis=1, keepdims=True)
    units = sample.vectors / np.maximum(lengths, 1e-12)
    shown, total = len(sample.texts), sample.total
    return {
        "template": "finetuning/embeddings.html",
        "sampled": "" if shown == total else f"A sample of {shown:,} of {total:,} texts.",
        "scored": any(pair.score is not None for pair in sample.pairs),
        "neighbours": _neighbours(sample, units),
        "cosines": distributions("Cosines", _cosines(sample, units), x_label="cosine"),
        "map": _map(sample, units),
    }


def _neighbours(sample: VectorSample, units: np.ndarray) -> list[View]:
    """Returns texts at equal distances in the sample, and their nearest other texts."""
    first_places = {text: at for at, text in reversed(list(enumerate(sample.texts)))}
    distinct = np.asarray(sorted(first_places.values()), np.int64)  # equal texts are shown once
    fitting: dict[str, dict[str, float | None]] = {}
    for first, second, score in sample.pairs:
        fitting.setdefault(sample.texts[first], {})[sample.texts[second]] = score
    anchors = list(fitting)
    found = []
    for anchor in anchors[:: -(-len(anchors) // TEXTS)]:
        cosines = units[distinct] @ units[first_places[anchor]]
        cosines[distinct == first_places[anchor]] = -np.inf
        order = np.argsort(-cosines, kind="stable")[: min(NEIGHBOURS, len(distinct) - 1)]
        nearest = [
            {
                "text": (text := sample.texts[int(distinct[at])]),
                "cosine": float(cosines[at]),
                "fits": text in fitting[anchor],
                "score": fitting[anchor].get(text),
            }
            for at in order
        ]
        found.append({"text": anchor, "nearest": nearest})
    return found


def _cosines(sample: VectorSample, units: np.ndarray) -> Mapping[str, np.ndarray]:
    """Returns the cosines of scored pairs by ranges of the score, or of pairs and random texts."""
    firsts, seconds = (
        np.asarray([pair[place] for pair in sample.pairs], np.int64) for place in (0, 1)
    )
    cosines = (units[firsts] * units[seconds]).sum(axis=1)
    scores = [pair.score for pair in sample.pairs]
    if any(score is None for score in scores):
        others = np.roll(seconds, 1 + len(seconds) // 3)
        known = {(sample.texts[pair.first], sample.texts[pair.second]) for pair in sample.pairs}
        kept = [
            (sample.texts[first], sample.texts[other]) not in known
            for first, other in zip(firsts, others, strict=True)
        ]
        beside = (units[firsts] * units[others]).sum(axis=1)[kept]
        return {"texts that fit": cosines} | ({"random texts": beside} if len(beside) else {})
    values = np.asarray(scores, np.float32)
    edges = np.linspace(min(0.0, float(values.min())), 1.0, STYLES + 1)
    inside = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, STYLES - 1)
    return {
        f"score {low:.2g} to {high:.2g}": cosines[inside == at]
        for at, (low, high) in enumerate(itertools.pairwise(edges))
        if (inside == at).any()
    }


def _map(sample: VectorSample, units: np.ndarray) -> Chart:
    """Returns the vectors' first two principal components. Lines link some pairs."""
    centred = units - units.mean(axis=0)
    u, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(units), 2), np.float32)
    used = min(2, len(sizes))
    places[:, :used] = u[:, :used] * sizes[:used]
    share = float(np.square(sizes[:used]).sum() / max(float(np.square(sizes).sum()), 1e-12))
    roles = ["second texts"] * len(units)
    for pair in sample.pairs:
        roles[pair.first] = "first texts"
    best = sorted(sample.pairs, key=lambda pair: -(1.0 if pair.score is None else pair.score))
    return point_map(
        "Map of the vectors",
        places,
        names=sample.texts,
        groups=roles,
        links=[(pair.first, pair.second) for pair in best[:: -(-len(best) // (2 * LINKS))][:LINKS]],
        remark=f"First two principal components: {share:.0%} of the variance.",
    )
