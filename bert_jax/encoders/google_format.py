"""The description of an encoder's TensorFlow checkpoints in google-research's repositories.

Encoders with such checkpoints have a `GoogleFormat` in their `google.py`. `bert_jax.interop` reads
and writes the files of every encoder with it. Needs no JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.encoders.hf_format import NameRule, Rules
from bert_jax.errors import UserError
from bert_jax.model.architecture import Activation, EncoderArchitecture
from bert_jax.model.section import TaskName
from bert_jax.text.tokenizer import Tokenizer

KINDS: Final = ("bert", "albert", "electra")
"""The encoders that have a `google.py`. A checkpoint is of the last one that recognises it."""

GLOBAL_STEP: Final = "global_step"
OUTPUT_WEIGHTS: Final = "output_weights"
OUTPUT_BIAS: Final = "output_bias"

MU: Final = "/adam_m"
NU: Final = "/adam_v"
"""Suffixes of a variable's first and second moment, as `AdamWeightDecayOptimizer` names them."""

SCOPES: Final = {
    "pooler": "bert/pooler/",
    "mlm": "cls/predictions/",
    "next_sentence": "cls/seq_relationship/",
}
"""Scopes of the heads of BERT and ALBERT."""
SQUAD: Final = "cls/squad/"
TASKS: Final[Mapping[TaskName, str]] = {"sequence_classification": "", "question_answering": SQUAD}
"""Scopes of the fine-tuned heads of BERT and ALBERT. `run_classifier.py` uses no scope."""

ACTIVATIONS: Final[Mapping[str, Activation]] = {"gelu": "gelu_tanh", "relu": "relu"}
"""Activations of BERT and ALBERT, whose "gelu" is the tanh approximation."""

# A constant in every `modeling.py`; the configurations have no key for it.
LAYER_NORM_EPS: Final = 1e-12

Shapes = Mapping[str, tuple[int, ...]]


class Limit(NamedTuple):
    """A setting for which the repository has only some values."""

    key: str
    found: object
    allowed: Sequence[object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoogleFormat:
    """Configuration and variables of an encoder in a repository of google-research."""

    repository: str
    """Name of the repository: ``google-research/bert``."""
    checkpoint: str
    """Prefix of the files that an export writes: ``bert_model.ckpt``."""
    config: str
    """Name of the configuration beside the checkpoint."""
    recognise: Callable[[str], bool]
    """Whether a variable's name proves that a checkpoint is of this encoder."""
    names: Callable[[TaskName | None], Rules]
    """Returns the rules of all variables, including the variables of a fine-tuned head."""
    heads: Mapping[str, str]
    """Scopes of the pretraining heads, by the fields of `HeadsSection`."""
    tasks: Mapping[TaskName, str]
    """Scopes of the fine-tuned heads."""
    ignored: Mapping[str, str]
    """Patterns of names that are not parameters, with the reasons."""
    activations: Mapping[str, Activation]
    """Our names of the activations, by the values of `hidden_act` in the configuration."""
    has_moments: bool
    """Whether Adam's moments are read and written."""
    read: Callable[[epath.Path, Shapes, int], EncoderArchitecture]
    """Returns the architecture from the path of the configuration, the shapes of the variables and
    the number of pieces. Raises UserError if the file is missing, or a setting is wrong."""
    write: Callable[[Any], Mapping[str, Any]]
    """Returns the content of the configuration for an architecture, except for `hidden_act`."""
    tokenizers: tuple[type[Tokenizer], ...]
    """Tokenizers whose files the repository reads."""
    usage: str
    """Markdown for the model card: how the repository's programs use an export."""
    more_limits: Callable[[Any], Sequence[Limit]] = lambda architecture: ()
    """Returns the limits that only this repository has."""

    def limits(self, architecture: Any) -> Sequence[Limit]:
        """Returns the limits of an architecture's settings, see `Limit`."""
        return (
            Limit("hidden_act", architecture.hidden_act, list(self.activations.values())),
            Limit("layer_norm_eps", architecture.layer_norm_eps, [LAYER_NORM_EPS]),
            *self.more_limits(architecture),
        )

    def configuration(self, architecture: Any) -> Mapping[str, Any]:
        """Returns the content of the configuration for an architecture."""
        theirs = {ours: theirs for theirs, ours in self.activations.items()}
        return {**self.write(architecture), "hidden_act": theirs[architecture.hidden_act]}


def renamed(rule: NameRule, theirs: str) -> NameRule:
    """Returns the rule for a variable with a Hugging Face name.

    ``bert.encoder.layer.{layer}.output.dense.weight`` →
    ``bert/encoder/layer_{layer}/output/dense/kernel``
    """
    scope = theirs.rpartition(".")[0].replace(".", "/").replace("layer/{", "layer_{")
    last = rule.ours.rpartition("/")[2]
    shift = "/beta" if scope.endswith("/LayerNorm") else "/bias"
    suffix = {"kernel": "/kernel", "scale": "/gamma", "bias": shift}.get(last, "")
    return rule._replace(theirs=scope + suffix, transposed=False)


def output(ours: str, scope: str) -> Rules:
    """Returns the rules of a head's last layer, whose matrix is [outputs, inputs]."""
    return (
        NameRule(f"{ours}/kernel", scope + OUTPUT_WEIGHTS, matrix=True, transposed=True),
        NameRule(f"{ours}/bias", scope + OUTPUT_BIAS),
    )


def require_config(config: epath.Path) -> epath.Path:
    """Returns the path of a configuration. Raises UserError if there is no file."""
    if not config.exists():
        raise UserError(
            "import.no_google_config",
            "no such file, expected: the configuration of the checkpoint in its directory",
            place=config,
        )
    return config


def rename_activation(values: Mapping[str, Any], names: Mapping[str, str], *, place: str) -> str:
    """Returns the new name of a configuration's `hidden_act`. Raises UserError for another one."""
    found = str(values.get("hidden_act", "gelu"))
    if found not in names:
        raise UserError(
            "model.activation",
            'hidden_act is "{found}", allowed: {allowed}',
            place=place,
            found=f"{found:.60}",
            allowed=list(names),
        )
    return names[found]
