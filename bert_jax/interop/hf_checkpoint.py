"""Reads and writes Hugging Face checkpoints in the format of `from_pretrained`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.encoders.hf_format import ClassHeads, HfFormat
from bert_jax.errors import UserError, commas, one_of
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, shown
from bert_jax.interop import hf_config
from bert_jax.interop import tensor_conversion as tensors
from bert_jax.interop.hf_tokenizer import write_hf_tokenizer
from bert_jax.interop.hf_weights import HfWeights
from bert_jax.interop.safetensors_file import WEIGHTS, write_params
from bert_jax.interop.sources import ADAPTER, GENERATOR_CONFIG
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import PRETRAINED_HEADS, SIZES, HeadsSection
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.train.state import ModelDefinition

CONFIG: Final = "config.json"
_GENERATOR_WEIGHTS: Final = "pytorch_model.generator.bin"


def is_hf(directory: Path) -> bool:
    """Returns whether a directory has the configuration of a Hugging Face model or adapter."""
    return any((directory / name).exists() for name in (CONFIG, ADAPTER))


def read_hf(directory: Path, *, tokenizer: Tokenizer | None = None) -> tensors.Pretrained:
    """Reads a Hugging Face checkpoint with all of its heads.

    The embedding may have more rows than the tokenizer has pieces. Hugging Face's softmax includes
    the additional rows, so the returned model has them too.

    Args:
        directory: a directory with config.json, weights, and vocab.txt or tokenizer.json.
        tokenizer: tokenizer for a checkpoint that has none.

    Raises:
        UserError: if the directory has an adapter, the type of the model is unknown, a file is
            damaged, a tensor is missing, unknown or of another shape or type, or the tokenizer has
            more pieces than the embedding has rows.
    """
    _refuse_adapter(directory)
    source = directory / CONFIG
    found = hf_config.read_config(source)
    architecture, ignored = found.architecture, found.format.ignored
    tokenizer = tokenizer or load_tokenizer(directory)
    if tokenizer.vocab_size > architecture.vocab_size:
        allowed = f"the tokenizer's {tokenizer.vocab_size} pieces, or more"
        place = f"{source}: vocab_size"
        raise UserError.wrong("import.vocab_size", architecture.vocab_size, allowed, place=place)
    weights = HfWeights(directory, found.format)
    heads = _heads_found(weights, found, source)
    _check_tied(weights, found, heads, source)
    _check_labels(weights, found.format, heads, source)
    params, names = _read_params(weights, found.format, architecture, heads)
    unread = sorted(weights.specs.keys() - names)
    reasons = {name: tensors.reason_to_ignore(name, ignored) for name in unread}
    generator = read_generator(directory, architecture)
    return tensors.Pretrained(
        architecture,
        heads,
        params,
        tokenizer,
        files=(source, *weights.files, *generator.files),
        ignored={name: reason for name, reason in reasons.items() if reason is not None},
        notes=(*_notes(found, heads), *generator.notes),
        generator=generator.params,
        generator_settings=generator.settings,
        model_type=found.config.model_type,
    )


def write_hf(directory: Path, model: tensors.Pretrained, *, kind: str | None = None) -> str:
    """Writes a checkpoint for `from_pretrained`, tensor by tensor. Returns the name of its class.

    Args:
        directory: an existing directory.
        model: the model to write.
        kind: name of a class in Hugging Face transformers. The default is the class of the model's
            task or, without a task, the class with most of its heads. It is a class of the
            checkpoint that the model was imported from: ``CamembertForMaskedLM``. Heads that the
            class lacks are not written.

    Raises:
        UserError: if the model lacks a head of the class, or the disk is full.
    """
    architecture = model.architecture
    format = hf_config.format_of(architecture.kind)
    name, wanted = _choose(format, kind, model)
    heads = hf_config.heads_of(format, wanted, model.heads)
    prefix = "" if wanted == ClassHeads() else format.prefix
    definition = tensors.definition_of(architecture, heads)
    placements = _placements(format, prefix, definition, architecture, heads)
    write_params(directory / WEIGHTS, model.params, placements)
    config = hf_config.write_config(architecture, heads, name=name, special=model.tokenizer.special)
    write_whole(epath.Path(directory / CONFIG), (json.dumps(config, indent=2) + "\n").encode())
    write_hf_tokenizer(
        directory,
        model.tokenizer,
        max_length=architecture.max_position_embeddings,
        token_types=getattr(architecture, "type_vocab_size", 1) > 1,
    )
    return name


class Generator(NamedTuple):
    """The generator beside a model, or no files and parameters."""

    params: tensors.Params | None = None
    settings: Mapping[str, Any] = {}  # of `objective.generator`
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def read_generator(directory: Path, model: EncoderArchitecture) -> Generator:
    """Reads the generator of pretraining, with its MLM head, if a directory has its files.

    Raises UserError like `read_hf`, or if the generator differs from the model in more than sizes.
    """
    source = directory / GENERATOR_CONFIG
    if not source.exists() or not (directory / _GENERATOR_WEIGHTS).exists():
        return Generator()
    found = hf_config.read_config(source)
    architecture = found.config.generator
    sizes = {name: getattr(architecture, name) for name in SIZES}
    if model.with_changes(sizes) != found.architecture:
        raise UserError(
            "import.generator",
            f"differs from {CONFIG} in more than {commas(SIZES)}. Remove it.",
            place=source,
        )
    weights = HfWeights(directory, found.format, file=_GENERATOR_WEIGHTS)
    heads = HeadsSection(pooler=False, next_sentence=False)
    params, _ = _read_params(weights, found.format, architecture, heads)
    others = {name: each for name, each in architecture if name not in type(model).model_fields}
    layers, width = architecture.num_hidden_layers, architecture.hidden_size
    note = f"with the generator of its pretraining ({layers} layers, hidden size {width})"
    settings = {**sizes, "architecture": others}
    return Generator(params, settings, (source, *weights.files), (note,))


def _read_params(
    weights: HfWeights, format: HfFormat, architecture: EncoderArchitecture, heads: HeadsSection
) -> tuple[tensors.Params, set[str]]:
    """Returns the parameters of a model with heads, and the names of the tensors that they read."""
    definition = tensors.definition_of(architecture, heads)
    placements = _placements(format, weights.prefix, definition, architecture, heads)
    params = tensors.read_params(weights, placements, definition.params, ignored=format.ignored)
    return params, {each.name for each in placements}


def _placements(
    format: HfFormat,
    prefix: str,
    definition: ModelDefinition,
    architecture: EncoderArchitecture,
    heads: HeadsSection,
) -> list[tensors.Placement]:
    """Returns a placement for each Hugging Face tensor."""
    rules = format.names(prefix, heads.task)
    return tensors.expand(rules, definition, architecture=architecture)


def _choose(
    format: HfFormat, name: str | None, model: tensors.Pretrained
) -> tuple[str, ClassHeads]:
    allowed = hf_config.classes_for(format, model.heads, model_type=model.model_type)
    for each, wanted in allowed.items():
        if name in (None, each):
            return each, wanted
    raise UserError.unknown("export.class_unknown", str(name), allowed, place="--as")


def _refuse_adapter(directory: Path) -> None:
    """Raises UserError for an adapter. transformers reads its base model, even beside weights."""
    path = directory / ADAPTER
    if path.exists():
        base = read_json_object(epath.Path(path)).get("base_model_name_or_path")
        raise UserError(
            "import.adapter",
            f"an adapter of {shown(base)}. Import the result of PEFT's merge_and_unload().",
            place=path,
        )


def _check_tied(
    weights: HfWeights, found: hf_config.HfModelConfig, heads: HeadsSection, source: Path
) -> None:
    """Raises UserError if a decoder is not tied to the embedding and the weights lack its tensors.

    `HfWeights` compares the tensors that are there.
    """
    missing = sorted(found.format.tied.keys() - weights.specs.keys())
    if heads.mlm and missing and not found.config.tie_word_embeddings:
        raise UserError(
            "import.untied_decoder",
            f"found false, but {missing[0]} is missing. Set true if the decoder is the embedding.",
            place=f"{source}: tie_word_embeddings",
        )


def _check_labels(weights: HfWeights, format: HfFormat, heads: HeadsSection, source: Path) -> None:
    """Raises UserError if the weights of a classifier have another number of outputs."""
    if heads.task is None or not heads.labels:
        return
    last = [rule.theirs for rule in format.tasks[heads.task] if rule.matrix][-1]
    shape = weights.specs[last].shape if last in weights.specs else ()
    if shape and shape[0] != len(heads.labels):
        allowed = f"{shape[0]}, the outputs of {last}, or num_labels: {shape[0]}"
        raise UserError.wrong(
            "import.label_count", len(heads.labels), allowed, place=f"{source}: id2label"
        )


def _notes(found: hf_config.HfModelConfig, heads: HeadsSection) -> tuple[str, ...]:
    config = found.config
    if not (heads.labels and config.names_replaced):
        return ()
    return (
        f"num_labels is {config.num_labels}, but id2label has {len(config.id2label or ())} names: "
        f"the labels are {heads.labels[0]} to {heads.labels[-1]}, as in transformers",
    )


def _heads_found(weights: HfWeights, found: hf_config.HfModelConfig, source: Path) -> HeadsSection:
    """Returns the heads of the configured class, and other heads whose tensors are in the file.

    Well-known checkpoints of class BertForMaskedLM also contain the pooler and the next-sentence
    head. If a head of the class is missing, `read_params` reports its tensors.
    """
    promised, config, format = found.heads, found.config, found.format
    task_weights = {rule.theirs for rules in format.tasks.values() for rule in rules if rule.matrix}
    if promised.task is None and (stray := sorted(task_weights & weights.specs.keys())):
        names = format.class_names(config.model_type)
        allowed = one_of([name for name, (_, heads) in names.items() if heads.task])
        raise UserError(
            "import.class_without_head",
            f"found {found.name}, but the weights have {stray[0]}. Use {allowed}.",
            place=f"{source}: architectures",
        )
    rules = format.names(weights.prefix, None)

    def has(head: str) -> bool:
        names = {rule.theirs for rule in rules if rule.ours.startswith(f"{head}/")}
        return not names.isdisjoint(weights.specs)

    kept = {head: getattr(promised, head) or has(head) for head in PRETRAINED_HEADS}
    return promised._replace(**kept).of_model(
        labels=config.labels, problem=config.problem, task_dropout=config.classifier_dropout
    )
