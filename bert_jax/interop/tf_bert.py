"""The 2018 release's checkpoints: ``bert_model.ckpt.*``, ``bert_config.json``, ``vocab.txt``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.interop import tf_names
from bert_jax.interop.mapping import Slot, Spec, expand, read_params, their_tensors
from bert_jax.interop.pretrained import model_shapes
from bert_jax.interop.tf_bundle import INDEX, TfSource, write_bundle
from bert_jax.model.config import (
    GOOGLE_BERT_ACTIVATIONS,
    Architecture,
    HeadsSection,
    ModelSection,
    resolve_architecture,
)
from bert_jax.optim.optimizer import MomentsState
from bert_jax.text import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

CHECKPOINT: Final = "bert_model.ckpt"
CONFIG: Final = "bert_config.json"

# What `modeling.py` computes whatever a configuration says: it has no key for it.
RELEASE_EPS: Final = 1e-12


class TfCheckpoint(NamedTuple):
    """A checkpoint of the release in our own terms."""

    architecture: Architecture
    heads: HeadsSection
    params: dict[str, Any]  # nested dict of float32 arrays, stacked and padded
    moments: MomentsState | None  # Adam's slots, laid out like the parameters
    global_step: int | None
    files: tuple[Path, ...]  # what it was read from, without the tokenizer's


def is_tf(path: epath.PathLike) -> bool:
    """Says whether a path is a TensorFlow checkpoint's, or a directory's that holds one."""
    given = epath.Path(path)
    beside = given if given.is_dir() else given.parent
    return any(beside.glob(f"*{INDEX}"))


def read_tf(
    path: epath.PathLike, *, vocab_size: int, labels: Sequence[str] | None = None
) -> TfCheckpoint:
    """Reads a checkpoint of the release, with the heads whose tensors it holds.

    ``read_tf("uncased_L-12_H-768_A-12/bert_model.ckpt", vocab_size=30522)``

    Args:
        path: prefix of the checkpoint's files, or a directory that holds one checkpoint; local or
            gs://. `bert_config.json` lies beside it.
        vocab_size: pieces of the tokenizer.
        labels: what the outputs of `run_classifier.py`'s head stand for, in their order. The
            checkpoint does not say it; None names them LABEL_0, LABEL_1, …, as Hugging Face does.

    Returns:
        The model; its moments and the global step where the checkpoint has them.

    Raises:
        UserError: TensorFlow is not installed, files are missing or damaged, the configuration
            contradicts the vocabulary or the tensors, or a tensor is missing, not known, of another
            shape or of another type.
    """
    source = TfSource(path)
    config = epath.Path(source.path).parent / CONFIG
    if not config.exists():
        raise UserError(f"{config}: no such file; the release keeps it beside the checkpoint")
    section = ModelSection(bert_config=str(config))
    architecture = resolve_architecture(section, vocab_size=vocab_size)
    heads = _find_heads(source, labels)
    shapes = model_shapes(architecture, heads)
    slots = expand(tf_names.names(heads.task), shapes, vocab_size=vocab_size)
    ignored = tf_names.IGNORED | _moment_names(slots)
    params = read_params(source, slots, shapes, ignored=ignored)
    return TfCheckpoint(
        architecture=architecture,
        heads=heads,
        params=params,
        moments=_read_moments(source, slots, shapes, heads),
        global_step=_read_global_step(source),
        files=(Path(config), *source.files),
    )


def write_tf(
    directory: epath.PathLike,
    *,
    architecture: Architecture,
    heads: HeadsSection,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    moments: MomentsState | None = None,
    global_step: int | None = None,
) -> None:
    """Writes a checkpoint as the release has it, for TensorFlow 1 and all that reads its models.

    The settings of the tokenizer lie beside `vocab.txt` in a file of their own: the release takes
    them from a flag.

    Args:
        directory: there already. Written in place: the caller writes aside.
        architecture: of the model.
        heads: of the model.
        params: nested dict of float32 arrays on the host; numpy or JAX. Not copied.
        tokenizer: a WordPiece one.
        moments: Adam's, laid out like `params`; `run_pretraining.py` goes on from them.
        global_step: optimizer steps done.

    Raises:
        UserError: the format has no word for something that decides what the model computes,
            TensorFlow is not installed, or the directory cannot be written to.
    """
    root = epath.Path(directory)
    release_tokenizer = _check_sayable(architecture, heads, tokenizer)
    shapes = model_shapes(architecture, heads)
    slots = expand(tf_names.names(heads.task), shapes, vocab_size=architecture.vocab_size)
    write_bundle(root / CHECKPOINT, _tensors(slots, params, heads, moments, global_step))
    release_tokenizer.save(root)
    write_whole(root / CONFIG, bert_config(architecture).encode("utf-8"))


def bert_config(architecture: Architecture) -> str:
    """Returns the release's `bert_config.json`: an activation by its name of 2018, no epsilon."""
    values = architecture.model_dump(exclude={"layer_norm_eps"})
    by_name = {ours: theirs for theirs, ours in GOOGLE_BERT_ACTIVATIONS.items()}
    values["hidden_act"] = by_name[architecture.hidden_act]
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _find_heads(source: TfSource, labels: Sequence[str] | None) -> HeadsSection:
    """A head is there if any of its tensors is; `read_params` then wants all of them."""
    specs = source.specs()

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in specs)

    outputs = [
        specs[name]
        for name in (tf_names.CLASSIFIER_WEIGHTS, tf_names.CLASSIFIER_BIAS)
        if name in specs
    ]
    squad, next_sentence = has(tf_names.SQUAD), has(tf_names.NEXT_SENTENCE)
    if outputs and squad:
        raise UserError(
            f"{source.path}: found a classifier's {tf_names.CLASSIFIER_BIAS} and "
            f"{tf_names.SQUAD}*, allowed: one fine-tuned head"
        )
    return HeadsSection(
        pooler=has(tf_names.POOLER) or next_sentence or bool(outputs),
        mlm=has(tf_names.MLM),
        next_sentence=next_sentence,
        task="sequence_classification" if outputs else "question_answering" if squad else None,
        labels=_labels(source, outputs[0], labels) if outputs else (),
        problem="single_label" if outputs else None,
    )


def _labels(source: TfSource, output: Spec, labels: Sequence[str] | None) -> tuple[str, ...]:
    count = output.shape[0] if output.shape else 0
    if count == 0:
        raise UserError(f"{source.path}: found a classifier with no outputs, allowed: one or more")
    if labels is None:
        return tuple(f"LABEL_{index}" for index in range(count))
    if len(labels) != count:
        raise UserError(
            f"{source.path}: labels found {len(labels)} names, but the classifier has {count} "
            f"outputs"
        )
    return tuple(labels)


def _moment_names(slots: Sequence[Slot]) -> dict[str, str]:
    """Exact names, not patterns: moments of no known variable stay unknown."""
    reason = "a moment of Adam's, read beside the parameters"
    return {slot.name + suffix: reason for slot in slots for suffix in (tf_names.MU, tf_names.NU)}


def _trained(slots: Sequence[Slot], heads: HeadsSection) -> list[Slot]:
    """Returns the variables that have moments.

    `run_squad.py` builds the pooler and leaves it without a gradient, and `optimization.py` makes
    no slots for such a variable.
    """
    if heads.task != "question_answering":
        return list(slots)
    return [slot for slot in slots if not slot.name.startswith(tf_names.POOLER)]


def _moment_slots(slots: Sequence[Slot], heads: HeadsSection, suffix: str) -> list[Slot]:
    return [slot._replace(name=slot.name + suffix) for slot in _trained(slots, heads)]


def _read_moments(
    source: TfSource, slots: Sequence[Slot], shapes: dict[str, Any], heads: HeadsSection
) -> MomentsState | None:
    """None where there are none at all; some without the others is an error."""
    if not any(name.endswith((tf_names.MU, tf_names.NU)) for name in source.specs()):
        return None

    def read(suffix: str) -> dict[str, Any]:
        wanted = _moment_slots(slots, heads, suffix)
        others = {name: "read for itself" for name in source.specs() if not name.endswith(suffix)}
        return read_params(source, wanted, shapes, ignored=others)

    return MomentsState(mu=read(tf_names.MU), nu=read(tf_names.NU))


def _read_global_step(source: TfSource) -> int | None:
    spec = source.specs().get(tf_names.GLOBAL_STEP)
    if spec is None:
        return None
    if spec.shape != () or spec.dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
        raise UserError(
            f"{source.path}: tensor {tf_names.GLOBAL_STEP} found {spec.dtype}{list(spec.shape)}, "
            f"allowed: int64[]"
        )
    return int(source.read(tf_names.GLOBAL_STEP))


def _tensors(
    slots: Sequence[Slot],
    params: Mapping[str, Any],
    heads: HeadsSection,
    moments: MomentsState | None,
    global_step: int | None,
) -> Iterator[tuple[str, np.ndarray]]:
    yield from their_tensors(params, slots)
    if moments is not None:
        yield from their_tensors(moments.mu, _moment_slots(slots, heads, tf_names.MU))
        yield from their_tensors(moments.nu, _moment_slots(slots, heads, tf_names.NU))
    if global_step is not None:
        yield tf_names.GLOBAL_STEP, np.asarray(global_step, np.int64)


def _check_sayable(
    architecture: Architecture, heads: HeadsSection, tokenizer: Tokenizer
) -> WordPieceTokenizer:
    """Refuses what the release's programs would compute otherwise, without a word."""
    format_ = "the 2018 TensorFlow format"
    if architecture.hidden_act not in GOOGLE_BERT_ACTIVATIONS.values():
        raise UserError(
            f"model.architecture.hidden_act: found {architecture.hidden_act}, allowed in "
            f"{format_}: {', '.join(GOOGLE_BERT_ACTIVATIONS.values())} (its gelu is the tanh form)"
        )
    if architecture.layer_norm_eps != RELEASE_EPS:
        raise UserError(
            f"model.architecture.layer_norm_eps: found {architecture.layer_norm_eps}, "
            f"allowed in {format_}: {RELEASE_EPS}, which its programs fix"
        )
    if heads.task is not None and heads.task not in tf_names.TASK_TABLES:
        raise UserError(
            f"model.heads.task: found {heads.task}, allowed in {format_}: "
            f"{', '.join(tf_names.TASK_TABLES)}"
        )
    if heads.problem not in (None, "single_label"):
        raise UserError(
            f"model.heads.problem: found {heads.problem}, allowed in {format_}: single_label"
        )
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(
            f"tokenizer: found a {type(tokenizer).__name__}, allowed in {format_}: WordPiece, the "
            f"only one its vocab.txt can hold"
        )
    if not tokenizer.chinese or tokenizer.strip_accents not in (None, tokenizer.lower_case):
        raise UserError(
            f"tokenizer: found strip_accents {tokenizer.strip_accents} and chinese "
            f"{tokenizer.chinese}, allowed in {format_}: accents stripped where letters are "
            f"lowered, ideographs set apart"
        )
    return tokenizer
