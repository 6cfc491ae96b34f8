"""Reads and writes Hugging Face checkpoints in the format of `from_pretrained`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.atomic import write_whole
from bert_jax.interop import hf_config, tensor_conversion
from bert_jax.interop.bert_only import require_bert
from bert_jax.interop.hf_tokenizer import read_hf_tokenizer, write_hf_tokenizer
from bert_jax.interop.hf_weights import PREFIX, HfWeights
from bert_jax.interop.safetensors_file import WEIGHTS, write_safetensors
from bert_jax.interop.tensor_names import HF_IGNORED, HF_TASKS, hf_names
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.text import Tokenizer

CONFIG: Final = "config.json"


def is_hf(directory: Path) -> bool:
    """Returns whether a directory has the config.json of a Hugging Face checkpoint."""
    return (directory / CONFIG).exists()


def read_hf(directory: Path, *, tokenizer: Tokenizer | None = None) -> tensor_conversion.Pretrained:
    """Reads a Hugging Face checkpoint with all of its heads.

    The embedding may have more rows than the tokenizer has pieces. Hugging Face's softmax includes
    the additional rows, so the returned model has them too.

    Args:
        directory: a directory with config.json, weights, and vocab.txt or tokenizer.json.
        tokenizer: tokenizer for a checkpoint that has none.

    Raises:
        UserError: if the model is not BERT, a file is damaged, a tensor is missing, unknown or of
            another shape or type, or the tokenizer has more pieces than the embedding has rows.
    """
    source = directory / CONFIG
    config = hf_config.read_config(source)
    tokenizer = tokenizer or read_hf_tokenizer(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            "import.vocab_size",
            "found {found}, but the tokenizer has {pieces} pieces",
            place=f"{source}: vocab_size",
            found=config.vocab_size,
            pieces=tokenizer.vocab_size,
        )
    weights = HfWeights(directory)
    heads = _heads_found(weights, config, source)
    shapes, placements = _placements(weights.prefix, config.architecture, heads)
    reasons = {name: tensor_conversion.reason_to_ignore(name, HF_IGNORED) for name in weights.specs}
    return tensor_conversion.Pretrained(
        config.architecture,
        heads,
        tensor_conversion.read_params(weights, placements, shapes, ignored=HF_IGNORED),
        tokenizer,
        files=(source, *weights.files),
        ignored={name: reason for name, reason in reasons.items() if reason is not None},
    )


def write_hf(
    directory: Path, model: tensor_conversion.Pretrained, *, kind: str | None = None
) -> str:
    """Writes a checkpoint for `from_pretrained`, tensor by tensor. Returns the name of its class.

    Args:
        directory: an existing directory.
        model: the model to write.
        kind: name of a class in Hugging Face transformers. The default is the class of the model's
            task or, without a task, the class with most of its heads. Heads that the class lacks
            are not written.

    Raises:
        UserError: if the model lacks a head of the class, or the disk is full.
    """
    architecture = require_bert(model.architecture)
    chosen = _choose(kind, model.heads)
    heads = hf_config.heads_of(chosen, model.heads)
    prefix = "" if chosen == hf_config.BARE else PREFIX
    _, placements = _placements(prefix, architecture, heads)
    specs = {
        each.name: tensor_conversion.TensorSpec(each.shape, np.dtype(np.float32))
        for each in placements
    }
    write_safetensors(
        directory / WEIGHTS, specs, tensor_conversion.their_tensors(model.params, placements)
    )
    pad = model.tokenizer.special.pad
    config = hf_config.write_config(architecture, heads, kind=chosen, pad_token_id=pad)
    write_whole(epath.Path(directory / CONFIG), (json.dumps(config, indent=2) + "\n").encode())
    write_hf_tokenizer(
        directory,
        model.tokenizer,
        max_length=architecture.max_position_embeddings,
        token_types=architecture.type_vocab_size > 1,
    )
    return chosen


def _placements(
    prefix: str, architecture: EncoderArchitecture, heads: HeadsSection
) -> tuple[tensor_conversion.Params, Sequence[tensor_conversion.Placement]]:
    """Returns the shapes of our parameters, and a placement for each Hugging Face tensor."""
    shapes = tensor_conversion.model_shapes(architecture, heads)
    rules = hf_names(prefix, heads.task)
    return shapes, tensor_conversion.expand(rules, shapes, vocab_size=architecture.vocab_size)


def _choose(kind: str | None, heads: HeadsSection) -> hf_config.ClassName:
    allowed = hf_config.classes_for(heads)
    for name in allowed:
        if kind in (None, name):
            return name
    raise UserError(
        "export.class_unknown",
        'found "{found}", allowed with these heads: {allowed}{hint}',
        place="--as",
        found=kind,
        allowed=allowed,
        hint=did_you_mean(str(kind), allowed),
    )


def _heads_found(weights: HfWeights, config: hf_config.HfConfig, source: Path) -> HeadsSection:
    """Returns the heads of the configured class, and other heads whose tensors are in the file.

    Well-known checkpoints of class BertForMaskedLM also contain the pooler and the next-sentence
    head. If a head of the class is missing, `read_params` reports its tensors.
    """
    promised = hf_config.CLASSES[config.kind]
    task_weights = {f"{stem}.weight" for stem in HF_TASKS.values()}
    if promised.task is None and (stray := sorted(task_weights & weights.specs.keys())):
        raise UserError(
            "import.class_without_head",
            "found {found}, but the weights have {tensor}. Name the class that was fine-tuned: "
            "{allowed:or}.",
            place=f"{source}: architectures",
            found=config.kind,
            tensor=stray[0],
            allowed=[name for name, heads in hf_config.CLASSES.items() if heads.task],
        )
    return HeadsSection(
        pooler=promised.pooler or f"{weights.prefix}pooler.dense.weight" in weights.specs,
        mlm=promised.mlm or "cls.predictions.transform.dense.weight" in weights.specs,
        next_sentence=promised.next_sentence or "cls.seq_relationship.weight" in weights.specs,
        task=promised.task,
        labels=config.labels if promised.task in hf_config.LABELLED else (),
        problem=config.problem if promised.task == "sequence_classification" else None,
        task_dropout=config.classifier_dropout if promised.task is not None else None,
    )
