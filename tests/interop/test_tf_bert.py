"""Import and export of google-research/bert checkpoints, compared with TensorFlow and NumPy."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_jax.encoders.bert.google import names
from bert_jax.encoders.bert.model import Bert
from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.encoders.build import encoder_builder
from bert_jax.interop.tensor_conversion import Pretrained, definition_of, expand
from bert_jax.interop.tf_checkpoint import read_tf, write_tf
from bert_jax.model.section import Execution, HeadsSection
from tests.interop.hf_checkpoints import bind
from tests.interop.reference_modeling import (
    draw,
    encoder_shapes,
    forward,
    pretraining_shapes,
)
from tests.interop.tf1_writer import (
    LABELLED,
    SMALL,
    SQUAD,
    read_tf1,
    saved,
    with_slots,
    wordpiece,
)


def written(directory: Path, found: Pretrained, **changes: Any) -> Path:
    """Exports an imported model with changes, and returns the prefix of the files."""
    directory.mkdir()
    write_tf(directory, found._replace(**changes))
    return directory / "bert_model.ckpt"


def assert_same_bytes(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


def test_a_tf1_checkpoint_gives_google_researchs_logits(tmp_path: Path) -> None:
    variables = with_slots(draw(pretraining_shapes(SMALL), seed=0))
    found = read_tf(saved(tmp_path, variables, global_step=1234), tokenizer=wordpiece())
    rows, length, predictions = 5, SMALL.max_position_embeddings, 6
    rng = np.random.default_rng(1)
    lengths = np.linspace(predictions, length, rows).astype(int)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    positions = np.stack([rng.permutation(n)[:predictions] for n in lengths]).astype(np.int32)
    ids = rng.integers(0, SMALL.vocab_size, (rows, length)).astype(np.int32) * mask
    types = (np.arange(length) >= lengths[:, None] // 2).astype(np.int32) * mask
    theirs = forward(
        variables,
        num_attention_heads=SMALL.num_attention_heads,
        input_ids=ids,
        input_mask=mask,
        token_type_ids=types,
        masked_lm_positions=positions,
    )

    model = loaded(found)
    numbers = {"input_ids": ids, "token_type_ids": types, "segment_ids": mask}
    batch = {name: jnp.asarray(value) for name, value in numbers.items()}
    hidden = model.hidden(batch, dropout_key=None)
    pooled = model.pooler(hidden[:, :1])
    mlm = np.asarray(model.mlm_logits(hidden, jnp.asarray(positions)))[..., : SMALL.vocab_size]
    real = mask.astype(bool)
    for ours, expected in (
        (np.asarray(hidden)[real], theirs.hidden[real]),
        (pooled[:, 0], theirs.pooled),
        (mlm, theirs.mlm),
        (model.next_sentence(pooled)[:, 0], theirs.next_sentence),
    ):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    assert np.abs(theirs.mlm).max() > 1  # smaller logits would make the comparison meaningless
    assert found.step == 1234
    assert found.architecture.model_dump()["hidden_act"] == "gelu_tanh"


def loaded(found: Pretrained) -> Bert:
    """Returns a float32 model with the imported parameters."""
    build = encoder_builder(found.architecture, Execution(dtype="float32"), found.heads)
    return bind(build, found.params)


def test_a_checkpoint_of_mlperf_is_read_without_lambs_variables(tmp_path: Path) -> None:
    """`LAMBOptimizer` of mlcommons/training makes these variables."""
    variables = draw(pretraining_shapes(SMALL), seed=0)
    slots = {f"{name}/LAMB{end}": v for name, v in variables.items() for end in ("", "_1")}
    powers = {"beta1_power": np.float32(0.5), "beta2_power": np.float32(0.9)}
    path = saved(tmp_path, variables | slots | powers, global_step=28252)
    found = read_tf(path, tokenizer=wordpiece())
    assert (found.moments, found.step) == (None, 28252)
    heads = found.heads.model_copy(update={"replaced_tokens": True})  # which the format lacks
    path = written(tmp_path / "again", found, heads=heads)
    assert_same_bytes(read_tf1(path), variables | {"global_step": np.asarray(28252, np.int64)})


def test_round_trip_keeps_slots_and_step_byte_for_byte(tmp_path: Path) -> None:
    variables = with_slots(draw(pretraining_shapes(SMALL), seed=2))
    found = read_tf(saved(tmp_path, variables, global_step=900_000), tokenizer=wordpiece())
    assert found.moments is not None
    for slot, tree in (("adam_m", found.moments.mu), ("adam_v", found.moments.nu)):
        expected = variables[f"bert/embeddings/word_embeddings/{slot}"]
        words = tree["encoder"]["embeddings"]["word"]
        np.testing.assert_array_equal(words[: len(expected)], expected)
    prefix = written(tmp_path / "again", found)
    assert_same_bytes(read_tf1(prefix), variables | {"global_step": np.array(900_000, np.int64)})
    assert sorted(path.name for path in prefix.parent.iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "checkpoint",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    again = json.loads((prefix.parent / "bert_config.json").read_text())
    assert again == json.loads((tmp_path / "bert_config.json").read_text())


@pytest.mark.parametrize(
    ("shapes", "heads", "untrained"),
    [
        (pretraining_shapes(SMALL), HeadsSection(), "-"),
        (encoder_shapes(SMALL), HeadsSection(mlm=False, next_sentence=False), "-"),
        (
            encoder_shapes(SMALL) | LABELLED,
            HeadsSection(
                mlm=False,
                next_sentence=False,
                task="sequence_classification",
                labels=("LABEL_0", "LABEL_1", "LABEL_2"),
                problem="single_label",
            ),
            "-",
        ),
        (
            encoder_shapes(SMALL) | SQUAD,
            HeadsSection(mlm=False, next_sentence=False, task="question_answering"),
            "bert/pooler",
        ),
    ],
    ids=["run_pretraining", "BertModel", "run_classifier", "run_squad"],
)
def test_round_trip_keeps_heads_byte_for_byte(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], heads: HeadsSection, untrained: str
) -> None:
    variables = with_slots(draw(shapes, seed=4), without=untrained)
    found = read_tf(saved(tmp_path, variables), tokenizer=wordpiece())
    assert found.heads == heads
    assert_same_bytes(read_tf1(written(tmp_path / "again", found)), variables)


@pytest.mark.parametrize("head", [LABELLED, SQUAD], ids=["classification", "squad"])
def test_a_fine_tuned_head_equals_google_researchs(
    tmp_path: Path, head: dict[str, tuple[int, ...]]
) -> None:
    variables = draw(encoder_shapes(SMALL) | head, seed=6)
    model = loaded(read_tf(saved(tmp_path, variables), tokenizer=wordpiece()))
    hidden = np.random.default_rng(7).standard_normal((2, 9, SMALL.hidden_size), np.float32)
    ours = model.task_logits(jnp.asarray(hidden), jnp.ones(hidden.shape[:2], jnp.int32))
    if head is LABELLED:
        dense = variables["bert/pooler/dense/kernel"], variables["bert/pooler/dense/bias"]
        hidden = np.tanh(hidden[:, 0] @ dense[0] + dense[1])
    weights, bias = (variables[name] for name in head)
    np.testing.assert_allclose(ours, hidden @ weights.T + bias, rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    columns=st.integers(1, 8),
    vocab_size=st.integers(1, 400),
    task=st.sampled_from([None, "sequence_classification", "question_answering"]),
)
def test_the_table_names_exactly_google_researchs_variables(
    layers: int, heads: int, columns: int, vocab_size: int, task: Any
) -> None:
    config = SMALL._replace(
        vocab_size=vocab_size,
        hidden_size=heads * columns,
        num_hidden_layers=layers,
        num_attention_heads=heads,
    )
    labels = ("a", "b", "c") if task == "sequence_classification" else ()
    architecture = BertArchitecture(**config._asdict())
    model = definition_of(architecture, HeadsSection(task=task, labels=labels))
    placements = expand(names(task), model, architecture=architecture)
    theirs = pretraining_shapes(config)
    if task == "sequence_classification":
        theirs |= {"output_weights": (3, config.hidden_size), "output_bias": (3,)}
    if task == "question_answering":
        theirs |= {"cls/squad/output_weights": (2, config.hidden_size)}
        theirs |= {"cls/squad/output_bias": (2,)}
    assert {each.name: each.shape for each in placements} == theirs
    assert len(placements) == len(theirs)
