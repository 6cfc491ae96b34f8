"""Every registered objective on every encoder that can have its heads."""

from collections.abc import Collection
from typing import Any

import pytest

from bert_jax.encoders.registry import SECTIONS
from bert_jax.objectives.registry import OBJECTIVES

CASES = [
    (objective, encoder)
    for objective, section in OBJECTIVES.items()
    for encoder in SECTIONS
    if section.heads.of_pretraining <= SECTIONS[encoder].pretraining_heads().of_pretraining
    # DistilBERT has BERT's network and BERT's loss: train it only as the student of a distillation.
    and (objective == "distill") == (encoder == "distilbert")
    # ALBERT has BERT's heads and layers: the tests of the mesh are enough for its shared layers.
    and encoder != "albert"
] + [("causal", "albert")]
# RoBERTa and ELECTRA have BERT's network: only their positions and heads have code of their own.
# `sop` has the loss of `bert`, and `roberta`, which trains ModernBERT, a part of it.
NETWORKS = [
    (objective, encoder)
    for objective, encoder in CASES
    if (encoder == "bert" and objective not in ("sop", "roberta"))
    or encoder == "modernbert"
    or objective in ("electra", "distill")
]
# Of other encoders than BERT, `causal` changes only the attention. They train as usual.
RUNS = [case for case in CASES if case[0] != "causal" or case[1] == "bert"]
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
