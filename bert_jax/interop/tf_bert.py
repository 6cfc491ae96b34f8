"""google-research/bert checkpoints: ``bert_model.ckpt.*``, ``bert_config.json``, ``vocab.txt``."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.interop import names
from bert_jax.interop.mapping import (
    Params,
    Placement,
    Pretrained,
    expand,
    model_shapes,
    read_params,
    their_tensors,
)
from bert_jax.interop.tf_bundle import INDEX, TfBundle, write_bundle
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

# `modeling.py` has it as a constant; bert_config.json has no key for it.
LAYER_NORM_EPS: Final = 1e-12


def is_tf(path: epath.PathLike) -> bool:
    """Says whether a path is a TensorFlow checkpoint's, or a directory's that holds one."""
    given = epath.Path(path)
    beside = given if given.is_dir() else given.parent
    return any(beside.glob(f"*{INDEX}"))


def read_tf(
    path: epath.PathLike, *, tokenizer: Tokenizer, labels: Sequence[str] | None = None
) -> Pretrained:
    """Reads a google-research/bert checkpoint, with the heads whose tensors it holds.

    ``read_tf("uncased_L-12_H-768_A-12/bert_model.ckpt", tokenizer=tokenizer)``

    The path is the prefix of the checkpoint's files, or a directory that holds one checkpoint;
    local or gs://. `bert_config.json` lies beside it. `labels` name the outputs of
    `run_classifier.py`'s head, in order, which the checkpoint does not; None: LABEL_0, LABEL_1, …,
    as Hugging Face does. The model has Adam's moments and the global step where the checkpoint has
    them. Raises UserError: TensorFlow is not installed, files are missing or damaged, the
    configuration contradicts the vocabulary or the tensors, or a tensor is missing, unknown, of
    another shape or of another type.
    """
    source = TfBundle(path)
    config = epath.Path(source.path).parent / CONFIG
    if not config.exists():
        raise UserError(
            f"{config}: no such file; google-research/bert keeps it beside the checkpoint"
        )
    rows, pieces = read_json_object(config).get("vocab_size"), tokenizer.vocab_size
    architecture = resolve_architecture(
        ModelSection(bert_config=str(config)),
        vocab_size=rows if isinstance(rows, int) and rows > pieces else pieces,
    )
    heads = _find_heads(source, labels)
    shapes = model_shapes(architecture, heads)
    table = names.google_names(heads.task)
    placements = expand(table, shapes, vocab_size=architecture.vocab_size)
    ignored = names.GOOGLE_IGNORED | _moment_names(placements)
    return Pretrained(
        architecture,
        heads,
        read_params(source, placements, shapes, ignored=ignored),
        tokenizer,
        moments=_read_moments(source, _trained(placements, heads), shapes),
        step=_read_global_step(source),
        files=(Path(config), *source.files),
    )


def write_tf(directory: epath.PathLike, model: Pretrained) -> None:
    """Writes a checkpoint for google-research/bert and all that reads its models.

    The casing of the tokenizer lies beside `vocab.txt` in a file of its own; google-research/bert
    takes it from a flag. With moments, `run_pretraining.py` resumes from them. The directory
    exists and is written in place: the caller writes aside. The model's arrays are on the host,
    NumPy's or JAX's, and not copied. Raises UserError: the format cannot express something that
    decides what the model computes, TensorFlow is not installed, or the directory cannot be written
    to.
    """
    root = epath.Path(directory)
    architecture, heads = model.architecture, model.heads
    tokenizer = _check_expressible(architecture, heads, model.tokenizer)
    shapes = model_shapes(architecture, heads)
    table = names.google_names(heads.task)
    placements = expand(table, shapes, vocab_size=architecture.vocab_size)
    write_bundle(root / CHECKPOINT, _tensors(placements, model))
    tokenizer.save(root)
    write_whole(root / CONFIG, bert_config(architecture).encode("utf-8"))


def bert_config(architecture: Architecture) -> str:
    """Returns google-research/bert's `bert_config.json`."""
    values = architecture.model_dump(exclude={"layer_norm_eps"})
    by_name = {ours: theirs for theirs, ours in GOOGLE_BERT_ACTIVATIONS.items()}
    values["hidden_act"] = by_name[architecture.hidden_act]
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _find_heads(source: TfBundle, labels: Sequence[str] | None) -> HeadsSection:
    """A head is there if any of its tensors is; `read_params` then wants all of them."""

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in source.specs)

    classifier = (names.OUTPUT_WEIGHTS, names.OUTPUT_BIAS)
    outputs = [source.specs[name] for name in classifier if name in source.specs]
    squad, next_sentence = has(names.SQUAD), has(names.NEXT_SENTENCE)
    if outputs and squad:
        raise UserError(
            f"{source.path}: found a classifier's {names.OUTPUT_BIAS} and "
            f"{names.SQUAD}*, allowed: one fine-tuned head"
        )
    return HeadsSection(
        pooler=has(names.POOLER) or next_sentence or bool(outputs),
        mlm=has(names.MLM),
        next_sentence=next_sentence,
        task="sequence_classification" if outputs else "question_answering" if squad else None,
        labels=_labels(source.path, outputs[0].shape, labels) if outputs else (),
        problem="single_label" if outputs else None,
    )


def _labels(path: str, shape: tuple[int, ...], labels: Sequence[str] | None) -> tuple[str, ...]:
    count = shape[0] if shape else 0
    if count == 0:
        raise UserError(f"{path}: found a classifier with no outputs, allowed: one or more")
    if labels is None:
        return tuple(f"LABEL_{index}" for index in range(count))
    if len(labels) != count:
        raise UserError(
            f"{path}: labels found {len(labels)} names, but the classifier has {count} outputs"
        )
    return tuple(labels)


def _moment_names(placements: Sequence[Placement]) -> dict[str, str]:
    """Exact names, not patterns: moments of no known variable stay unknown."""
    reason = "a moment of Adam's, read beside the parameters"
    suffixes = (names.MU, names.NU)
    return {each.name + suffix: reason for each in placements for suffix in suffixes}


def _trained(placements: Sequence[Placement], heads: HeadsSection) -> list[Placement]:
    """Returns the variables that have moments.

    `run_squad.py` builds the pooler and leaves it without a gradient, and `optimization.py` makes
    no slots for such a variable.
    """
    squad = heads.task == "question_answering"
    return [each for each in placements if not (squad and each.name.startswith(names.POOLER))]


def _suffixed(placements: Sequence[Placement], suffix: str) -> list[Placement]:
    return [each._replace(name=each.name + suffix) for each in placements]


def _read_moments(
    source: TfBundle, trained: Sequence[Placement], shapes: Params
) -> MomentsState | None:
    """None where there are none at all; some without the others is an error."""
    if not any(name.endswith((names.MU, names.NU)) for name in source.specs):
        return None

    def read(suffix: str) -> Params:
        others = {name: "not this moment" for name in source.specs if not name.endswith(suffix)}
        return read_params(source, _suffixed(trained, suffix), shapes, ignored=others)

    return MomentsState(mu=read(names.MU), nu=read(names.NU))


def _read_global_step(source: TfBundle) -> int | None:
    spec = source.specs.get(names.GLOBAL_STEP)
    if spec is None:
        return None
    if spec.shape != () or spec.dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
        raise UserError(
            f"{source.path}: tensor {names.GLOBAL_STEP} found {spec.dtype}{list(spec.shape)}, "
            f"allowed: int64[]"
        )
    return int(source.read(names.GLOBAL_STEP))


def _tensors(
    placements: Sequence[Placement], model: Pretrained
) -> Iterator[tuple[str, np.ndarray]]:
    yield from their_tensors(model.params, placements)
    if model.moments is not None:
        trained = _trained(placements, model.heads)
        yield from their_tensors(model.moments.mu, _suffixed(trained, names.MU))
        yield from their_tensors(model.moments.nu, _suffixed(trained, names.NU))
    if model.step is not None:
        yield names.GLOBAL_STEP, np.asarray(model.step, np.int64)


def _check_expressible(
    architecture: Architecture, heads: HeadsSection, tokenizer: Tokenizer
) -> WordPieceTokenizer:
    """Refuses what google-research/bert would silently compute differently."""

    def refuse(key: str, found: object, allowed: str) -> UserError:
        return UserError(f"{key}: found {found}, allowed in google-research/bert: {allowed}")

    if architecture.hidden_act not in GOOGLE_BERT_ACTIVATIONS.values():
        allowed = f"{', '.join(GOOGLE_BERT_ACTIVATIONS.values())} (its gelu is the tanh form)"
        raise refuse("model.architecture.hidden_act", architecture.hidden_act, allowed)
    if architecture.layer_norm_eps != LAYER_NORM_EPS:
        allowed = f"{LAYER_NORM_EPS}, a constant of modeling.py"
        raise refuse("model.architecture.layer_norm_eps", architecture.layer_norm_eps, allowed)
    if heads.task is not None and heads.task not in names.GOOGLE_TASKS:
        raise refuse("model.heads.task", heads.task, ", ".join(names.GOOGLE_TASKS))
    if heads.problem not in (None, "single_label"):
        raise refuse("model.heads.problem", heads.problem, "single_label")
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise refuse("tokenizer", f"a {type(tokenizer).__name__}", "WordPiece, as vocab.txt has it")
    if not tokenizer.chinese or tokenizer.strip_accents not in (None, tokenizer.lower_case):
        raise refuse(
            "tokenizer",
            f"strip_accents {tokenizer.strip_accents} and chinese {tokenizer.chinese}",
            "accents stripped where text is lower-cased, CJK ideographs split",
        )
    return tokenizer
