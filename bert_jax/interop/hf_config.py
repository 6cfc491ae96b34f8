"""Translates between Hugging Face's config.json and our architecture and heads."""

from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from bert_jax.encoders.hf_format import PROBLEMS, ClassHeads, HfConfig, HfFormat
from bert_jax.encoders.registry import SECTIONS, encoder_module
from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.validation import validate


def format_of(kind: str) -> HfFormat:
    """Returns the format of an encoder: ``format_of("bert")``."""
    return encoder_module(kind, "hugging_face").FORMAT


class HfModelConfig(NamedTuple):
    """The content of a config.json."""

    format: HfFormat
    name: str  # class of the checkpoint in Hugging Face transformers
    heads: ClassHeads  # heads of this class
    config: HfConfig

    @property
    def architecture(self) -> Any:
        """The architecture, of the encoder's own class."""
        return self.config.architecture


def read_config(path: Path) -> HfModelConfig:
    """Reads a config.json.

    Raises UserError if the file is not JSON, a size is wrong or missing, or the model is of an
    unknown type or class.
    """
    values = read_json_object(epath.Path(path))
    # Early files of BERT have no model_type.
    found = str(values.get("model_type", "bert"))
    formats = {name: each for each in map(format_of, SECTIONS) for name in each.model_types}
    if found not in formats:
        raise UserError.unknown("import.model_type", found, formats, place=f"{path}: model_type")
    chosen = formats[found]
    config = validate(chosen.config, values, source=str(path))
    classes = chosen.class_names(found)
    bare = chosen.model_types[found] + chosen.bare
    name = config.architectures[0] if config.architectures else bare
    if name not in classes:
        raise UserError.unknown(
            "import.class_unknown", name, classes, place=f"{path}: architectures"
        )
    heads = classes[name][1]
    if config.is_decoder != heads.causal:
        allowed, place = f"{heads.causal} for {name}", f"{path}: is_decoder"
        raise UserError.wrong("import.is_decoder", config.is_decoder, allowed, place=place)
    return HfModelConfig(chosen, name, heads, config)


def write_config(
    architecture: EncoderArchitecture, heads: HeadsSection, *, name: str, special: SpecialIds
) -> dict[str, Any]:
    """Returns the config.json of an exported model of class `name`."""
    chosen = format_of(architecture.kind)
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": chosen.class_names()[name][0],
        **chosen.config.written(architecture, special),
        "dtype": "float32",
    }
    if heads.causal:
        config["is_decoder"] = True
    if heads.labels:
        config["id2label"] = {str(index): label for index, label in enumerate(heads.labels)}
        config["label2id"] = {label: index for index, label in enumerate(heads.labels)}
    if heads.task_dropout is not None:
        key = "classifier_dropout"
        config[chosen.config.keys.get(key, key)] = heads.task_dropout
    if heads.problem is not None:
        config["problem_type"] = next(
            theirs for theirs, ours in PROBLEMS.items() if ours == heads.problem
        )
    return config


def heads_of(format: HfFormat, wanted: ClassHeads, heads: HeadsSection) -> HeadsSection:
    """Returns those heads of the model that a class has.

    A class without heads keeps the pooler, if the encoder has one in Hugging Face transformers.
    """
    if wanted == ClassHeads():
        known = any(rule.ours.startswith("pooler/") for rule in format.encoder)
        wanted = wanted._replace(pooler=heads.pooler and known)
    return wanted.of_model(
        labels=heads.labels, problem=heads.problem, task_dropout=heads.task_dropout
    )


def classes_for(
    format: HfFormat, heads: HeadsSection, *, model_type: str | None
) -> dict[str, ClassHeads]:
    """Returns the classes that a model can be exported as. The default is first.

    The default is a class of `model_type` or, if it is None, of the format's first type.
    """
    first = {} if model_type is None else format.class_names(model_type)
    fitting = {
        name: wanted
        for name, (_, wanted) in (first | format.class_names()).items()
        if heads.pooler >= wanted.pooler
        and heads.mlm >= wanted.mlm
        and heads.next_sentence >= wanted.next_sentence
        and heads.replaced_tokens >= wanted.replaced_tokens
        and heads.causal == wanted.causal
        and wanted.task in (None, heads.task)
    }
    # By default, a fine-tuned model is exported as the class of its task.
    return dict(sorted(fitting.items(), key=lambda each: each[1].task is None))
