"""Writes checkpoints as google-research/bert does: with a TF1 graph, variables and a Saver."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.interop.reference_modeling import Config
from tests.tensorflow_alone import tf


def write_tf1(
    directory: Path, variables: Mapping[str, np.ndarray], *, global_step: int | None = None
) -> Path:
    """Saves variables with a TF1 session.

    Returns:
        The prefix of the checkpoint's files.
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in variables.items():
            v1.get_variable(name, initializer=tf.constant(value), use_resource=False)
        if global_step is not None:
            step = v1.train.get_or_create_global_step()
            session.run(step.assign(global_step))
        held = [variable for variable in v1.global_variables() if variable.name != "global_step:0"]
        session.run(v1.variables_initializer(held))
        path = str(directory / "bert_model.ckpt")
        prefix = v1.train.Saver().save(session, path, write_meta_graph=False)
    return Path(prefix)


def write_config(directory: Path, config: Config, **others: object) -> None:
    """Writes `bert_config.json` with google-research/bert's keys."""
    values = {
        **config._asdict(),
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
        **others,
    }
    (directory / "bert_config.json").write_text(json.dumps(values), encoding="utf-8")


def read_tf1(prefix: Path) -> dict[str, np.ndarray]:
    """Reads every tensor of a checkpoint with TensorFlow."""
    reader = tf.compat.v1.train.NewCheckpointReader(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


SMALL = Config(
    vocab_size=261,  # not a multiple of 128
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=40,
    type_vocab_size=2,
)
LABELLED = {"output_weights": (3, SMALL.hidden_size), "output_bias": (3,)}
SQUAD = {"cls/squad/output_weights": (2, SMALL.hidden_size), "cls/squad/output_bias": (2,)}


def with_slots(variables: dict[str, np.ndarray], *, without: str = "-") -> dict[str, np.ndarray]:
    """Adds random moments for all variables except those whose names start with `without`."""
    trained = {name: v for name, v in variables.items() if not name.startswith(without)}
    rng = np.random.default_rng(5)
    first = {f"{n}/adam_m": rng.standard_normal(v.shape, np.float32) for n, v in trained.items()}
    second = {f"{n}/adam_v": rng.random(v.shape, np.float32) for n, v in trained.items()}
    return variables | first | second


def saved(
    directory: Path, variables: dict[str, np.ndarray], *, global_step: int | None = None
) -> Path:
    write_config(directory, SMALL)
    return write_tf1(directory, variables, global_step=global_step)


def wordpiece(*, vocab_size: int = SMALL.vocab_size, **settings: Any) -> WordPieceTokenizer:
    pieces = [*SPECIAL_PIECES, *(f"w{i}" for i in range(vocab_size - len(SPECIAL_PIECES)))]
    return WordPieceTokenizer(pieces, lower_case=True, **settings)
