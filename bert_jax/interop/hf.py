"""Hugging Face checkpoints: read into our terms, written so that `from_pretrained` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.interop import torch_file
from bert_jax.interop.hf_config import (
    BARE,
    CLASSES,
    LABELLED,
    classes_for,
    heads_of,
    read_architecture,
    read_class,
    read_labels,
    read_problem,
    read_task_dropout,
    write_config,
)
from bert_jax.interop.hf_names import IGNORED, TASK_NAMES, TIED, WORDS, modern, names
from bert_jax.interop.hf_tokenizer import read_hf_tokenizer, write_hf_tokenizer
from bert_jax.interop.mapping import (
    Spec,
    TensorSource,
    expand,
    read_params,
    reason_to_ignore,
    their_tensors,
)
from bert_jax.interop.pretrained import Pretrained, model_shapes
from bert_jax.interop.safetensors_file import INDEX, WEIGHTS, SafetensorsSource, write_safetensors
from bert_jax.interop.torch_file import TorchSource
from bert_jax.model.config import Architecture, HeadsSection
from bert_jax.text import Tokenizer

CONFIG: Final = "config.json"
PREFIX: Final = "bert."


def is_hf(directory: Path) -> bool:
    """Says whether a directory is laid out as Hugging Face's are."""
    return (directory / CONFIG).exists()


def read_hf(directory: Path, *, tokenizer: Tokenizer | None = None) -> Pretrained:
    """Reads a Hugging Face checkpoint, with every head that is in it.

    Args:
        directory: with config.json, weights, and vocab.txt or tokenizer.json.
        tokenizer: for a checkpoint that brings none.

    Raises:
        UserError: another kind of model, damaged files, a tensor too many, too few, of another
            shape or type, a vocabulary of another size.
    """
    source_file = directory / CONFIG
    config = read_json_object(epath.Path(source_file))
    architecture = read_architecture(config, source_file)
    kind = read_class(config, source_file)
    tokenizer = tokenizer or read_hf_tokenizer(directory)
    if tokenizer.vocab_size != architecture.vocab_size:
        raise UserError(
            f"{source_file}: vocab_size found {architecture.vocab_size}, but the tokenizer has "
            f"{tokenizer.vocab_size} pieces"
        )
    weights = _open_weights(directory)
    specs = weights.specs()
    prefix = PREFIX if any(name.startswith(PREFIX) for name in specs) else ""
    heads = _heads_found(specs, prefix, kind, config, source_file)
    shapes = model_shapes(architecture, heads)
    slots = expand(names(prefix, heads.task), shapes, vocab_size=architecture.vocab_size)
    params = read_params(weights, slots, shapes, ignored=IGNORED)
    _check_tied(weights, specs, prefix)
    files = (source_file, *weights.files)
    return Pretrained(architecture, heads, params, tokenizer, dict(_ignored(specs)), files)


def write_hf(
    directory: Path,
    *,
    architecture: Architecture,
    heads: HeadsSection,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    kind: str | None = None,
) -> str:
    """Writes a checkpoint for `from_pretrained`, tensor by tensor.

    Args:
        directory: made by the caller, who renames it when it is whole.
        architecture: of the model.
        heads: of the model.
        params: nested dict of float32 arrays.
        tokenizer: saved beside it.
        kind: a class of Hugging Face's to write the model as; None for the fullest that its heads
            allow. Heads that a class does not have are left out.

    Returns:
        The class.

    Raises:
        UserError: the model lacks a head of that class, or the disk is full.
    """
    allowed = classes_for(heads)
    kind = kind or allowed[0]
    if kind not in allowed:
        near = did_you_mean(kind, allowed)
        raise UserError(
            f'--as: found "{kind}", allowed with these heads: {", ".join(allowed)}{near}'
        )
    wanted = heads_of(kind, heads, pooler=heads.pooler)
    shapes = model_shapes(architecture, wanted)
    prefix = "" if kind == BARE else PREFIX
    slots = expand(names(prefix, wanted.task), shapes, vocab_size=architecture.vocab_size)
    specs = {slot.name: Spec(slot.shape, np.dtype(np.float32)) for slot in slots}
    write_safetensors(directory / WEIGHTS, specs, their_tensors(params, slots))
    config = write_config(architecture, heads, kind=kind, pad_token_id=tokenizer.special.pad)
    write_whole(epath.Path(directory / CONFIG), (json.dumps(config, indent=2) + "\n").encode())
    write_hf_tokenizer(directory, tokenizer, max_length=architecture.max_position_embeddings)
    return kind


def _open_weights(directory: Path) -> TensorSource:
    openers = {
        WEIGHTS: SafetensorsSource,
        INDEX: SafetensorsSource,
        torch_file.WEIGHTS: TorchSource,
    }
    for name, opener in openers.items():
        if (directory / name).exists():
            return opener(directory / name, rename=modern)
    raise UserError(f"{directory}: found no weights, allowed: {', '.join(openers)}")


def _heads_found(
    specs: Mapping[str, Spec], prefix: str, kind: str, config: Mapping[str, Any], source: Path
) -> HeadsSection:
    """Returns the heads that the class promises and those that the file has besides.

    The best-known checkpoints say BertForMaskedLM and hold the pooler and the next-sentence head
    as well. What is promised and not there is found missing later, by name.
    """
    promised_pooler, promised_mlm, promised_next, task = CLASSES[kind]
    if task is None and (stray := _stray_task(specs)):
        raise UserError(
            f"{source}: architectures found {kind}, but the weights hold {stray}; allowed: the "
            f"class that was fine-tuned, one of "
            f"{', '.join(name for name, parts in CLASSES.items() if parts[3])}"
        )
    labels = read_labels(config, source) if task in LABELLED else ()
    problem = read_problem(config, source) if task == "sequence_classification" else None
    return HeadsSection(
        pooler=promised_pooler or f"{prefix}pooler.dense.weight" in specs,
        mlm=promised_mlm or "cls.predictions.transform.dense.weight" in specs,
        next_sentence=promised_next or "cls.seq_relationship.weight" in specs,
        task=task,
        labels=labels,
        problem=problem,
        task_dropout=read_task_dropout(config, source) if task is not None else None,
    )


def _stray_task(specs: Mapping[str, Spec]) -> str | None:
    for stem in sorted(set(TASK_NAMES.values())):
        if f"{stem}.weight" in specs:
            return f"{stem}.weight"
    return None


def _check_tied(weights: TensorSource, specs: Mapping[str, Spec], prefix: str) -> None:
    """A decoder of its own would be lost without a word."""
    for name, original in TIED.items():
        twin = prefix + original if original == WORDS else original
        if name in specs and not np.array_equal(weights.read(name), weights.read(twin)):
            raise UserError(
                f"{weights.path}: tensor {name} differs from {twin}, which it is tied to in BERT"
            )


def _ignored(specs: Mapping[str, Spec]) -> list[tuple[str, str]]:
    found = [(name, reason_to_ignore(name, IGNORED)) for name in specs]
    return [(name, reason) for name, reason in found if reason is not None]
