"""Reads and writes TensorFlow checkpoints of google-research/bert.

The files are ``NAME.index``, ``NAME.data-*``, a configuration and a vocabulary.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from etils import epath

from bert_jax.encoders.bert import google
from bert_jax.encoders.bert.section import ACTIVATIONS, BertArchitecture
from bert_jax.errors import UserError, commas
from bert_jax.files.atomic import write_whole
from bert_jax.interop import tensor_conversion as tensors
from bert_jax.interop.tf_bundle import INDEX, TfBundle, write_bundle
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import HeadsSection
from bert_jax.optim.optimizer import MomentsState
from bert_jax.text import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

# File in which TensorFlow looks up the newest checkpoint of a directory.
_STATE: Final = "checkpoint"
_POOLER: Final = google.HEADS["pooler"]


def is_tf(path: epath.PathLike) -> bool:
    """Returns whether a directory, or the directory of a prefix, has a TensorFlow checkpoint."""
    given = epath.Path(path)
    beside = given if given.is_dir() else given.parent
    return any(beside.glob(f"*{INDEX}"))


def read_tf(
    path: epath.PathLike, *, tokenizer: Tokenizer, with_moments: bool = True
) -> tensors.Pretrained:
    """Reads a checkpoint of google-research/bert with all of its heads.

    ``read_tf("uncased_L-12_H-768_A-12/bert_model.ckpt", tokenizer=tokenizer)``

    The path is the prefix of the checkpoint's files, or a directory with one checkpoint. Its
    `bert_config.json` must be in the same directory. A checkpoint of `run_classifier.py` does not
    name its outputs, so they are called LABEL_0, LABEL_1, …, as in Hugging Face transformers. If
    the checkpoint has Adam's moments and the global step, the model has them too; `with_moments`
    determines whether the moments are read.

    Raises:
        UserError: if a file is missing or damaged, the configuration contradicts the vocabulary or
            the tensors, or a tensor is missing, unknown, of another shape or of another type.
    """
    source = TfBundle(path)
    config = epath.Path(source.path).parent / google.CONFIG
    architecture = google.read_config(config, pieces=tokenizer.vocab_size)
    heads = _find_heads(source)
    ours, placements = _placements(architecture, heads)
    moments = {
        each.name + suffix: "one of Adam's moments, which are read after the parameters"
        for each in placements
        for suffix in (google.MU, google.NU)
    }
    reasons = {name: tensors.reason_to_ignore(name, google.IGNORED) for name in source.specs}
    return tensors.Pretrained(
        architecture,
        heads,
        tensors.read_params(source, placements, ours, ignored=google.IGNORED | moments),
        tokenizer,
        moments=_read_moments(source, _trained(placements, heads), ours) if with_moments else None,
        step=_read_global_step(source),
        files=(Path(config), *source.files),
        ignored={name: reason for name, reason in reasons.items() if reason is not None},
    )


def write_tf(directory: epath.PathLike, model: tensors.Pretrained) -> None:
    """Writes a checkpoint for google-research/bert.

    The tokenizer's casing is stored in tokenizer_config.json; google-research/bert has a flag for
    it. If the model has moments, `run_pretraining.py` resumes with them. Heads that
    google-research/bert lacks are not written.

    Args:
        directory: existing directory.
        model: model with NumPy arrays, or JAX arrays on the host. Contiguous arrays are not copied.

    Raises:
        UserError: if the format cannot express a setting that changes the model's results,
            TensorFlow is not installed, or the directory cannot be written to.
    """
    root = epath.Path(directory)
    architecture = _check_expressible(model)
    unknown = dict.fromkeys(model.heads.of_pretraining - google.HEADS.keys(), False)
    _, placements = _placements(architecture, model.heads.model_copy(update=unknown))
    write_bundle(root / google.CHECKPOINT, _tensors(placements, model))
    write_whole(root / _STATE, f'model_checkpoint_path: "{google.CHECKPOINT}"\n'.encode())
    model.tokenizer.save(root)
    text = json.dumps(google.config_of(architecture), indent=2, sort_keys=True) + "\n"
    write_whole(root / google.CONFIG, text.encode())


def _placements(
    architecture: EncoderArchitecture, heads: HeadsSection
) -> tuple[tensors.Params, Sequence[tensors.Placement]]:
    """Returns the shapes of our parameters, and a placement for each TensorFlow variable."""
    definition = tensors.definition_of(architecture, heads)
    return definition.params, tensors.expand(
        google.names(heads.task), definition, architecture=architecture
    )


def _find_heads(source: TfBundle) -> HeadsSection:
    """Returns every head with at least one tensor. `read_params` then requires all its tensors."""

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in source.specs)

    found = {head: has(scope) for head, scope in google.HEADS.items()}
    outputs = [
        source.specs[name].shape
        for name in (google.OUTPUT_WEIGHTS, google.OUTPUT_BIAS)
        if name in source.specs
    ]
    squad = has(google.SQUAD)
    if outputs and squad:
        both = f"a classifier's {google.OUTPUT_BIAS} and {google.SQUAD}*"
        raise UserError.wrong("import.two_task_heads", both, "one of them", place=source.path)
    if outputs and not sum(outputs[0][:1]):
        raise UserError.wrong(
            "import.no_outputs", "a classifier without outputs", "one or more", place=source.path
        )
    return HeadsSection(
        pooler=found["pooler"] or found["next_sentence"] or bool(outputs),
        mlm=found["mlm"],
        next_sentence=found["next_sentence"],
        task="sequence_classification" if outputs else "question_answering" if squad else None,
        labels=tuple(f"LABEL_{index}" for index in range(outputs[0][0])) if outputs else (),
        problem="single_label" if outputs else None,
    )


def _trained(
    placements: Sequence[tensors.Placement], heads: HeadsSection
) -> list[tensors.Placement]:
    """Returns the placements of variables that have moments.

    The pooler of `run_squad.py` has no gradient, and `optimization.py` makes no moments for a
    variable without a gradient.
    """
    squad = heads.task == "question_answering"
    return [each for each in placements if not (squad and each.name.startswith(_POOLER))]


def _suffixed(placements: Sequence[tensors.Placement], suffix: str) -> list[tensors.Placement]:
    return [each._replace(name=each.name + suffix) for each in placements]


def _read_moments(
    source: TfBundle, trained: Sequence[tensors.Placement], shapes: tensors.Params
) -> MomentsState | None:
    """Returns the moments, or None if the checkpoint has none.

    Raises UserError if some moments are missing.
    """
    if not any(name.endswith((google.MU, google.NU)) for name in source.specs):
        return None

    def read(suffix: str) -> tensors.Params:
        others = {name: "not this moment" for name in source.specs if not name.endswith(suffix)}
        return tensors.read_params(source, _suffixed(trained, suffix), shapes, ignored=others)

    return MomentsState(mu=read(google.MU), nu=read(google.NU))


def _read_global_step(source: TfBundle) -> int | None:
    spec = source.specs.get(google.GLOBAL_STEP)
    if spec is None:
        return None
    if spec.shape != () or spec.dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
        what = f"is {spec.dtype}{list(spec.shape)}, allowed: int64[]"
        raise tensors.tensor_error("tensor.global_step", source.path, google.GLOBAL_STEP, what)
    return int(source.read(google.GLOBAL_STEP))


def _tensors(
    placements: Sequence[tensors.Placement], model: tensors.Pretrained
) -> Iterator[tuple[str, np.ndarray]]:
    yield from tensors.their_tensors(model.params, placements)
    if model.moments is not None:
        trained = _trained(placements, model.heads)
        yield from tensors.their_tensors(model.moments.mu, _suffixed(trained, google.MU))
        yield from tensors.their_tensors(model.moments.nu, _suffixed(trained, google.NU))
    if model.step is not None:
        yield google.GLOBAL_STEP, np.asarray(model.step, np.int64)


def _check_expressible(model: tensors.Pretrained) -> BertArchitecture:
    """Raises UserError for settings that google-research/bert would silently ignore."""
    architecture, heads, tokenizer = model.architecture, model.heads, model.tokenizer
    if not isinstance(architecture, BertArchitecture):
        allowed = "bert with --to tf. Use --to hf."
        raise UserError.wrong("export.encoder", architecture.kind, allowed, place="model.kind")

    def refuse(key: str, found: object, allowed: Sequence[object]) -> UserError:
        only = f"{commas(allowed)}, in google-research/bert"
        return UserError.wrong("export.not_in_google", found, only, place=key)

    for setting, allowed in (
        ("hidden_act", list(ACTIVATIONS.values())),
        ("layer_norm_eps", [google.LAYER_NORM_EPS]),
    ):
        if (found := getattr(architecture, setting)) not in allowed:
            raise refuse(f"model.architecture.{setting}", found, allowed)
    if heads.task is not None and heads.task not in google.TASKS:
        raise refuse("model.heads.task", heads.task, list(google.TASKS))
    if heads.problem not in (None, "single_label"):
        raise refuse("model.heads.problem", heads.problem, ["single_label"])
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise refuse("tokenizer", type(tokenizer).__name__, [WordPieceTokenizer.__name__])
    if not tokenizer.chinese:
        raise refuse("tokenizer.chinese", False, [True])
    if tokenizer.strip_accents not in (None, tokenizer.lower_case):
        raise refuse(
            "tokenizer.strip_accents", tokenizer.strip_accents, [None, tokenizer.lower_case]
        )
    return architecture
