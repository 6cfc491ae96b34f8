"""Whether a fine-tuned model learnt anything."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bert_jax.tasks.family import Family, Record

# Answers that scatter less than this, by the labels' own deviation, are one answer: a collapsed
# regression answers the mean and some noise.
FLAT: Final = 0.01

OUTSIDE: Final = "O"  # the tag of a token that is no part of an entity


def degenerate(family: Family, records: Sequence[Record]) -> str | None:
    """Returns why a run counts as failed, None for one that does not.

    Fine-tuning on little data fails with some seeds: the model ends no better than one that gives
    the most frequent label (arXiv 2006.04884, section 3). So a run is degenerate if, on its dev
    set,

    1. all predictions are the same (of numbers: scatter less than a hundredth of what the labels
       do), or
    2. its score is not above that of the best answer that reads nothing: the most frequent label
       or set of labels, the labels' mean, no entity (without "O" among the tags the most frequent
       one for every token), no answer to any question. Entity F1 and a correlation are 0 then.

    Nothing can be said, and None is returned, where all labels are the same too.

    ``["yes", "yes", "yes"]`` predicted for yes, no, yes → ``"predicts nothing but yes"``

    The records are those of the first dev split, all labelled.
    """
    labels = [record["label"] for record in records]
    predictions = [record["prediction"] for record in records]
    numbers = isinstance(labels[0], float)
    if np.std(labels) == 0 if numbers else len(set(map(_key, _parts(labels, records)))) < 2:
        return None
    if numbers and np.std(predictions) < FLAT * np.std(labels):
        return f"predicts nothing but {np.mean(predictions):.3g}"
    if not numbers:
        found = {_key(part): part for part in _parts(predictions, records)}
        if len(found) == 1:
            (only,) = found.values()
            return f"predicts nothing but {_spelled(only)}"
    metric = family.best_metric
    blind = [record | {"prediction": answer} for record, answer in _blind(labels, records)]
    own, reached = family.score(records)[metric], family.score(blind)[metric]
    if own <= reached:
        return f"{metric} {own:.3f}, and {reached:.3f} without reading"
    return None


def _blind(labels: list[Any], records: Sequence[Record]) -> list[tuple[Record, Any]]:
    """Returns every record with the best answer that reads nothing."""
    if isinstance(labels[0], float):
        return [(record, float(np.mean(labels))) for record in records]
    if "nbest" in records[0]:
        return [(record, "") for record in records]
    parts = _parts(labels, records)
    counts = Counter(map(_key, parts))
    usual = json.loads(max(sorted(counts), key=counts.__getitem__))
    if "tokens" in records[0]:
        tag = OUTSIDE if OUTSIDE in parts else usual
        return [(record, [tag] * len(record["tokens"])) for record in records]
    return [(record, usual) for record in records]


def _parts(answers: list[Any], records: Sequence[Record]) -> list[Any]:
    """Returns the single answers: one a record, or one a token."""
    return [tag for tags in answers for tag in tags] if "tokens" in records[0] else answers


def _key(answer: Any) -> str:
    return json.dumps(answer, sort_keys=True)


def _spelled(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer)) or "no label"
    return str(answer) or "no answer"
