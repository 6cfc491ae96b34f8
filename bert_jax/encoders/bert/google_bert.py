"""BERT's tensors in google-research/bert.

The names are the variable scopes of its `modeling.py`, `run_pretraining.py`, `run_classifier.py`,
`run_squad.py` and `optimization.py`.
"""

from typing import Final

from bert_jax.encoders.bert.hugging_face import FORMAT
from bert_jax.encoders.hf_format import NameRule, Rules
from bert_jax.model.section import TaskName

GLOBAL_STEP: Final = "global_step"

# Suffixes of a variable's first and second moment, as `AdamWeightDecayOptimizer` names its slots.
MU: Final = "/adam_m"
NU: Final = "/adam_v"

# Scopes of the heads' variables.
POOLER: Final = "bert/pooler/"
MLM: Final = "cls/predictions/"
NEXT_SENTENCE: Final = "cls/seq_relationship/"
SQUAD: Final = "cls/squad/"

# Scopes of fine-tuned heads: the variables of run_classifier.py have no scope.
TASKS: Final[dict[TaskName, str]] = {"sequence_classification": "", "question_answering": SQUAD}
OUTPUT_WEIGHTS: Final = "output_weights"
OUTPUT_BIAS: Final = "output_bias"

# Tensors that are not parameters. Adam's moments are not listed, since they are read too.
IGNORED: Final[dict[str, str]] = {
    GLOBAL_STEP: "the number of steps, not a parameter",
    # The variables of LAMB in mlcommons/training, `lamb_optimizer_v1.py`.
    **dict.fromkeys(("*/LAMB", "*/LAMB_1"), "a moment of LAMB, which is not imported"),
    **dict.fromkeys(("beta1_power", "beta2_power"), "a bias correction, not a parameter"),
}


def google_names(task: TaskName | None) -> list[NameRule]:
    """Returns google-research/bert's names, including the names for a fine-tuned head."""
    transform = [rule for rule in FORMAT.heads if rule.ours.startswith(("mlm/t", "mlm/n"))]
    rules = [_renamed(rule, f"bert.{rule.theirs}") for rule in FORMAT.encoder]
    rules += [_renamed(rule, rule.theirs) for rule in transform]
    rules.append(NameRule("mlm/bias", MLM + OUTPUT_BIAS))
    rules += _output("next_sentence/classifier", NEXT_SENTENCE)
    return rules if task is None else [*rules, *_output("task", TASKS[task])]


def _renamed(rule: NameRule, theirs: str) -> NameRule:
    """Returns the rule for a tensor with a Hugging Face name.

    ``bert.encoder.layer.{layer}.output.dense.weight`` →
    ``bert/encoder/layer_{layer}/output/dense/kernel``
    """
    layer = theirs.rpartition(".")[0].replace(".", "/").replace("layer/{", "layer_{")
    last = rule.ours.rpartition("/")[2]
    shift = "/beta" if layer.endswith("/LayerNorm") else "/bias"
    suffix = {"kernel": "/kernel", "scale": "/gamma", "bias": shift}.get(last, "")
    return rule._replace(theirs=layer + suffix, transposed=False)


def _output(ours: str, scope: str) -> Rules:
    # The last layer of a head is a variable of shape [outputs, inputs].
    return (
        NameRule(f"{ours}/kernel", scope + OUTPUT_WEIGHTS, matrix=True, transposed=True),
        NameRule(f"{ours}/bias", scope + OUTPUT_BIAS),
    )
