"""BERT's TensorFlow checkpoints of 2018, as google-research/bert reads and writes them.

The names are the scopes of its `modeling.py`, `run_pretraining.py`, `run_classifier.py`,
`run_squad.py` and `optimization.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.encoders.bert.hugging_face import FORMAT as HUGGING_FACE
from bert_jax.encoders.bert.section import ACTIVATIONS, BertArchitecture, BertSection
from bert_jax.encoders.hf_format import NameRule, Rules
from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import TaskName

CHECKPOINT: Final = "bert_model.ckpt"
"""Prefix of the files that an export writes."""
CONFIG: Final = "bert_config.json"
GLOBAL_STEP: Final = "global_step"
OUTPUT_WEIGHTS: Final = "output_weights"
OUTPUT_BIAS: Final = "output_bias"

MU: Final = "/adam_m"
NU: Final = "/adam_v"
"""Suffixes of a variable's first and second moment, as `AdamWeightDecayOptimizer` names them."""

HEADS: Final = {
    "pooler": "bert/pooler/",
    "mlm": "cls/predictions/",
    "next_sentence": "cls/seq_relationship/",
}
"""Scopes of the pretraining heads, by the fields of `HeadsSection`."""
SQUAD: Final = "cls/squad/"
TASKS: Final[Mapping[TaskName, str]] = {"sequence_classification": "", "question_answering": SQUAD}
"""Scopes of the fine-tuned heads. `run_classifier.py` uses no scope."""

LAYER_NORM_EPS: Final = 1e-12
"""A constant in `modeling.py`; the configuration has no key for it."""

IGNORED: Final = {
    GLOBAL_STEP: "the number of steps, not a parameter",
    # The variables of LAMB in mlcommons/training, `lamb_optimizer_v1.py`.
    **dict.fromkeys(("*/LAMB", "*/LAMB_1"), "a moment of LAMB, which is not imported"),
    **dict.fromkeys(("beta1_power", "beta2_power"), "a bias correction, not a parameter"),
}
"""Patterns of names that are not parameters, with the reasons."""

USAGE: Final = """```sh
python run_classifier.py --init_checkpoint=bert_model.ckpt --bert_config_file=bert_config.json \\
  --vocab_file=vocab.txt …
```

Set `--do_lower_case` as in `tokenizer_config.json`."""


def names(task: TaskName | None) -> Rules:
    """Returns google-research/bert's names, including the names for a fine-tuned head."""
    transform = [rule for rule in HUGGING_FACE.heads if rule.ours.startswith(("mlm/t", "mlm/n"))]
    return (
        *(_renamed(rule, f"bert.{rule.theirs}") for rule in HUGGING_FACE.encoder),
        *(_renamed(rule, rule.theirs) for rule in transform),
        NameRule("mlm/bias", HEADS["mlm"] + OUTPUT_BIAS),
        *_output("next_sentence/classifier", HEADS["next_sentence"]),
        *(() if task is None else _output("task", TASKS[task])),
    )


def read_config(config: epath.Path, *, pieces: int) -> EncoderArchitecture:
    """Returns the architecture of a checkpoint.

    Args:
        config: path of the `bert_config.json` beside it.
        pieces: number of pieces of the tokenizer.

    Raises:
        UserError: the file is missing, or a setting is wrong.
    """
    if not config.exists():
        remedy = "no such file. Other encoders than BERT: import Hugging Face's files."
        raise UserError("import.no_google_config", remedy, place=config)
    rows = read_json_object(config).get("vocab_size")
    return BertSection(bert_config=str(config)).resolve(
        vocab_size=rows if isinstance(rows, int) and rows > pieces else pieces
    )


def config_of(architecture: BertArchitecture) -> Mapping[str, Any]:
    """Returns the content of `bert_config.json` for an architecture."""
    theirs = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    values = architecture.model_dump(exclude={*HUGGING_FACE.config.fixed, "layer_norm_eps"})
    return {**values, "hidden_act": theirs[architecture.hidden_act]}


def _renamed(rule: NameRule, theirs: str) -> NameRule:
    """Returns the rule for a variable with a Hugging Face name.

    ``bert.encoder.layer.{layer}.output.dense.weight`` →
    ``bert/encoder/layer_{layer}/output/dense/kernel``
    """
    scope = theirs.rpartition(".")[0].replace(".", "/").replace("layer/{", "layer_{")
    last = rule.ours.rpartition("/")[2]
    shift = "/beta" if scope.endswith("/LayerNorm") else "/bias"
    suffix = {"kernel": "/kernel", "scale": "/gamma", "bias": shift}.get(last, "")
    return rule._replace(theirs=scope + suffix, transposed=False)


def _output(ours: str, scope: str) -> Rules:
    """Returns the rules of a head's last layer, whose matrix is [outputs, inputs]."""
    return (
        NameRule(f"{ours}/kernel", scope + OUTPUT_WEIGHTS, matrix=True, transposed=True),
        NameRule(f"{ours}/bias", scope + OUTPUT_BIAS),
    )
