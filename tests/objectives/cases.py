"""Pairs of an objective and an encoder."""

from collections.abc import Collection
from typing import Any

import pytest

from bert_jax.encoders.registry import SECTIONS
from bert_jax.objectives.registry import OBJECTIVES

# ALBERT, RoBERTa and ELECTRA have BERT's layers, EuroBERT and NeoBERT have ModernBERT's, DeBERTa's
# differ in attention, and all encoders have the same heads: these objectives are enough for them.
OF_BERTS_LAYERS = {
    "bert": ["bert", "sop", "roberta", "causal"],
    "albert": ["causal"],
    "roberta": ["roberta", "causal"],
    "electra": ["roberta", "causal", "electra"],
    "deberta": ["roberta"],
    "eurobert": ["roberta", "causal", "electra"],
    "neobert": ["roberta"],
    "distilbert": ["distill"],  # as a student, it has two of BERT's losses
}
OF_OTHERS = ["bert", "roberta", "causal", "electra"]
CASES = [
    (objective, encoder)
    for objective in OBJECTIVES
    for encoder in SECTIONS
    if objective in OF_BERTS_LAYERS.get(encoder, OF_OTHERS)
] + [("electra with a mask decoder", "deberta")]
# Other encoders than BERT train as usual: the other objectives are tested on one or two of them.
RUNS = [
    case
    for case in CASES
    if case[0] in ("roberta", "distill")
    or case[1] == "bert"
    or (case[0] == "electra" and case[1] in ("electra", "modernbert"))
    or case[0] == "electra with a mask decoder"
    or case == ("bert", "modernbert")
]
# RoBERTa and ELECTRA have BERT's network: only their positions and heads have code of their own.
# `sop` has the loss of `bert`, and `roberta`, which trains ModernBERT, a part of it.
OF_SAME_NETWORK = [
    ("sop", "bert"),
    ("roberta", "bert"),
    ("roberta", "roberta"),
    ("roberta", "electra"),
]
NETWORKS = [case for case in RUNS if case not in OF_SAME_NETWORK] + [
    ("causal", "modernbert"),
    ("electra", "bert"),
]
OF_VARIANTS = [
    ("disentangled electra", "electra"),
    ("shared attention", "albert"),
]
TRAINED = [case for case in RUNS if case in NETWORKS]
# Only `make chaos` takes these through every verb. The others have each encoder and each loss.
RARELY = [("sop", "bert"), ("roberta", "electra"), ("disentangled electra", "electra")]


def on_encoders(cases: list[tuple[str, str]], *, rarely: Collection[tuple[str, str]] = ()) -> Any:
    """Returns the mark for a test of each case. `make chaos` runs those in `rarely`."""
    marked = [
        pytest.param(*case, id=" on ".join(case), marks=[pytest.mark.chaos] * (case in rarely))
        for case in cases
    ]
    return pytest.mark.parametrize(("objective", "encoder"), marked)
