"""Reads and writes checkpoints of google-research/bert.

The files are ``bert_model.ckpt.*``, ``bert_config.json`` and ``vocab.txt``.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from etils import epath

from bert_jax.encoders.bert import google_bert
from bert_jax.encoders.bert.section import GOOGLE_BERT_ACTIVATIONS, BertArchitecture, BertSection
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.interop.tensor_conversion import (
    Params,
    Placement,
    Pretrained,
    definition_of,
    expand,
    read_params,
    their_tensors,
)
from bert_jax.interop.tf_bundle import INDEX, TfBundle, write_bundle
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.optim.optimizer import MomentsState
from bert_jax.text import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

CHECKPOINT: Final = "bert_model.ckpt"
CONFIG: Final = "bert_config.json"

# A constant in `modeling.py`; bert_config.json has no key for it.
LAYER_NORM_EPS: Final = 1e-12


def is_tf(path: epath.PathLike) -> bool:
    """Returns whether a directory, or the directory of a prefix, has a TensorFlow checkpoint."""
    given = epath.Path(path)
    beside = given if given.is_dir() else given.parent
    return any(beside.glob(f"*{INDEX}"))


def read_tf(path: epath.PathLike, *, tokenizer: Tokenizer, with_moments: bool = True) -> Pretrained:
    """Reads a google-research/bert checkpoint with all of its heads.

    ``read_tf("uncased_L-12_H-768_A-12/bert_model.ckpt", tokenizer=tokenizer)``

    The path is the prefix of the checkpoint's files, or a directory with one checkpoint.
    `bert_config.json` must be in the checkpoint's directory. A checkpoint of `run_classifier.py`
    does not name its outputs, so they are called LABEL_0, LABEL_1, …, as in Hugging Face
    transformers. If the checkpoint has Adam's moments and the global step, the model has them too;
    `with_moments` determines whether the moments are read.

    Raises:
        UserError: if a file is missing or damaged, the configuration contradicts the vocabulary or
            the tensors, or a tensor is missing, unknown, of another shape or of another type.
    """
    source = TfBundle(path)
    config = epath.Path(source.path).parent / CONFIG
    if not config.exists():
        raise UserError(
            "import.no_bert_config",
            "no such file, expected: the configuration of the checkpoint in its directory",
            place=config,
        )
    rows, pieces = read_json_object(config).get("vocab_size"), tokenizer.vocab_size
    architecture = BertSection(bert_config=str(config)).resolve(
        vocab_size=rows if isinstance(rows, int) and rows > pieces else pieces,
    )
    heads = _find_heads(source)
    shapes, placements = _placements(require_bert(architecture), heads)
    ignored = google_bert.IGNORED | {
        each.name + suffix: "one of Adam's moments, which are read after the parameters"
        for each in placements
        for suffix in (google_bert.MU, google_bert.NU)
    }
    return Pretrained(
        architecture,
        heads,
        read_params(source, placements, shapes, ignored=ignored),
        tokenizer,
        moments=_read_moments(source, _trained(placements, heads), shapes)
        if with_moments
        else None,
        step=_read_global_step(source),
        files=(Path(config), *source.files),
    )


def write_tf(directory: epath.PathLike, model: Pretrained) -> None:
    """Writes a checkpoint for google-research/bert and every program that reads its models.

    The tokenizer's casing is stored in tokenizer_config.json; google-research/bert has a flag for
    it. If the model has moments, `run_pretraining.py` resumes with them.

    Args:
        directory: existing directory.
        model: model with NumPy arrays, or JAX arrays on the host. Contiguous arrays are not copied.

    Raises:
        UserError: if the format cannot express a setting that changes the model's results,
            TensorFlow is not installed, or the directory cannot be written to.
    """
    root = epath.Path(directory)
    architecture = require_bert(model.architecture)
    tokenizer = _check_expressible(architecture, model.heads, model.tokenizer)
    _, placements = _placements(architecture, model.heads)
    write_bundle(root / CHECKPOINT, _tensors(placements, model))
    tokenizer.save(root)
    values = architecture.model_dump(exclude={"layer_norm_eps", "position_embedding"})
    by_name = {ours: theirs for theirs, ours in GOOGLE_BERT_ACTIVATIONS.items()}
    values["hidden_act"] = by_name[architecture.hidden_act]
    write_whole(root / CONFIG, (json.dumps(values, indent=2, sort_keys=True) + "\n").encode())


def require_bert(architecture: EncoderArchitecture) -> BertArchitecture:
    """Returns BERT's architecture. Raises UserError for another encoder."""
    if isinstance(architecture, BertArchitecture):
        return architecture
    raise UserError(
        "export.encoder",
        "found {found}, but google-research/bert has only bert. Use --to hf.",
        place="model.kind",
        found=architecture.kind,
    )


def _placements(
    architecture: BertArchitecture, heads: HeadsSection
) -> tuple[Params, Sequence[Placement]]:
    """Returns the shapes of our parameters, and a placement for each TensorFlow variable."""
    definition = definition_of(architecture, heads)
    names = google_bert.google_names(heads.task)
    return definition.params, expand(names, definition, vocab_size=architecture.vocab_size)


def _find_heads(source: TfBundle) -> HeadsSection:
    """Returns every head with at least one tensor. `read_params` then requires all its tensors."""

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in source.specs)

    classifier = (google_bert.OUTPUT_WEIGHTS, google_bert.OUTPUT_BIAS)
    outputs = [source.specs[name].shape for name in classifier if name in source.specs]
    squad, next_sentence = has(google_bert.SQUAD), has(google_bert.NEXT_SENTENCE)
    if outputs and squad:
        raise UserError(
            "import.two_task_heads",
            "found a classifier's {found:and}*, allowed: one fine-tuned head",
            place=source.path,
            found=[google_bert.OUTPUT_BIAS, google_bert.SQUAD],
        )
    if outputs and not sum(outputs[0][:1]):
        raise UserError(
            "import.no_outputs",
            "found a classifier without outputs, allowed: one or more",
            place=source.path,
        )
    return HeadsSection(
        pooler=has(google_bert.POOLER) or next_sentence or bool(outputs),
        mlm=has(google_bert.MLM),
        next_sentence=next_sentence,
        task="sequence_classification" if outputs else "question_answering" if squad else None,
        labels=tuple(f"LABEL_{index}" for index in range(outputs[0][0])) if outputs else (),
        problem="single_label" if outputs else None,
    )


def _trained(placements: Sequence[Placement], heads: HeadsSection) -> list[Placement]:
    """Returns the placements of variables that have moments.

    The pooler of `run_squad.py` has no gradient, and `optimization.py` makes no moments for a
    variable without a gradient.
    """
    squad = heads.task == "question_answering"
    return [each for each in placements if not (squad and each.name.startswith(google_bert.POOLER))]


def _suffixed(placements: Sequence[Placement], suffix: str) -> list[Placement]:
    return [each._replace(name=each.name + suffix) for each in placements]


def _read_moments(
    source: TfBundle, trained: Sequence[Placement], shapes: Params
) -> MomentsState | None:
    """Returns the moments, or None if the checkpoint has none.

    Raises UserError if some moments are missing.
    """
    if not any(name.endswith((google_bert.MU, google_bert.NU)) for name in source.specs):
        return None

    def read(suffix: str) -> Params:
        others = {name: "not this moment" for name in source.specs if not name.endswith(suffix)}
        return read_params(source, _suffixed(trained, suffix), shapes, ignored=others)

    return MomentsState(mu=read(google_bert.MU), nu=read(google_bert.NU))


def _read_global_step(source: TfBundle) -> int | None:
    spec = source.specs.get(google_bert.GLOBAL_STEP)
    if spec is None:
        return None
    if spec.shape != () or spec.dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
        raise UserError(
            "tensor.global_step",
            "tensor {name} is {found}, allowed: int64[]",
            place=source.path,
            name=google_bert.GLOBAL_STEP,
            found=f"{spec.dtype}{list(spec.shape)}",
        )
    return int(source.read(google_bert.GLOBAL_STEP))


def _tensors(
    placements: Sequence[Placement], model: Pretrained
) -> Iterator[tuple[str, np.ndarray]]:
    yield from their_tensors(model.params, placements)
    if model.moments is not None:
        trained = _trained(placements, model.heads)
        yield from their_tensors(model.moments.mu, _suffixed(trained, google_bert.MU))
        yield from their_tensors(model.moments.nu, _suffixed(trained, google_bert.NU))
    if model.step is not None:
        yield google_bert.GLOBAL_STEP, np.asarray(model.step, np.int64)


def _check_expressible(
    architecture: BertArchitecture, heads: HeadsSection, tokenizer: Tokenizer
) -> WordPieceTokenizer:
    """Raises UserError for settings that google-research/bert would silently ignore."""

    def refuse(key: str, found: object, allowed: Sequence[object]) -> UserError:
        return UserError(
            "export.not_in_google_bert",
            "found {found}, allowed in google-research/bert: {allowed}",
            place=key,
            found=found,
            allowed=allowed,
        )

    if architecture.hidden_act not in (allowed := list(GOOGLE_BERT_ACTIVATIONS.values())):
        raise refuse("model.architecture.hidden_act", architecture.hidden_act, allowed)
    if (found := architecture.layer_norm_eps) != LAYER_NORM_EPS:
        raise refuse("model.architecture.layer_norm_eps", found, [LAYER_NORM_EPS])
    if heads.task is not None and heads.task not in google_bert.TASKS:
        raise refuse("model.heads.task", heads.task, list(google_bert.TASKS))
    if heads.problem not in (None, "single_label"):
        raise refuse("model.heads.problem", heads.problem, ["single_label"])
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise refuse("tokenizer", type(tokenizer).__name__, ["WordPieceTokenizer"])
    if not tokenizer.chinese:
        raise refuse("tokenizer.chinese", False, [True])
    if tokenizer.strip_accents not in (None, tokenizer.lower_case):
        raise refuse(
            "tokenizer.strip_accents", tokenizer.strip_accents, [None, tokenizer.lower_case]
        )
    return tokenizer
