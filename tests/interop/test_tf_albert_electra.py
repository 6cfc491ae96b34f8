"""Checkpoints of google-research/albert and electra, compared with a transcription to NumPy.

The variables have the names and shapes of `modeling.py` and `run_pretraining.py` of each
repository. To compute their outputs, they are renamed to BERT's variables.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.encoders.build import encoder_builder
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.interop.tf_checkpoint import read_tf, write_tf
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.text import load_tokenizer
from tests.interop.hf_checkpoints import bind, read_run
from tests.interop.reference_modeling import PROJECTION, draw, forward, gelu_erf, hidden_states
from tests.interop.tf1_writer import read_tf1, wordpiece, write_tf1
from tests.project import ok, refuses

Shapes = dict[str, tuple[int, ...]]
ROWS, PIECES = 261, 259  # a checkpoint may have more rows than the tokenizer has pieces
NARROW, WIDTH, INNER, POSITIONS = 24, 64, 80, 40
ALBERT_CONFIG = {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "embedding_size": NARROW,
    "hidden_size": WIDTH,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_hidden_groups": 2,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": ROWS,
}
GROUPS = (0, 0, 1)  # the group of each layer: int(layer / 3 * 2)


def dense(scope: str, inputs: int, outputs: int) -> Shapes:
    return {f"{scope}/kernel": (inputs, outputs), f"{scope}/bias": (outputs,)}


def norm(scope: str, width: int) -> Shapes:
    return {f"{scope}/beta": (width,), f"{scope}/gamma": (width,)}


def embeddings(scope: str, pieces: int = ROWS) -> Shapes:
    return {
        f"{scope}/word_embeddings": (pieces, NARROW),
        f"{scope}/token_type_embeddings": (2, NARROW),
        f"{scope}/position_embeddings": (POSITIONS, NARROW),
        **norm(f"{scope}/LayerNorm", NARROW),
    }


def albert_shapes(pieces: int = ROWS) -> Shapes:
    shapes = {**embeddings("bert/embeddings", pieces), **dense(PROJECTION, NARROW, WIDTH)}
    for group in sorted(set(GROUPS)):
        scope = f"bert/encoder/transformer/group_{group}/inner_group_0"
        for name in ("query", "key", "value"):
            shapes |= dense(f"{scope}/attention_1/self/{name}", WIDTH, WIDTH)
        shapes |= dense(f"{scope}/attention_1/output/dense", WIDTH, WIDTH)
        shapes |= dense(f"{scope}/ffn_1/intermediate/dense", WIDTH, INNER)
        shapes |= dense(f"{scope}/ffn_1/intermediate/output/dense", INNER, WIDTH)
        shapes |= norm(f"{scope}/LayerNorm", WIDTH) | norm(f"{scope}/LayerNorm_1", WIDTH)
    return {
        **shapes,
        **dense("bert/pooler/dense", WIDTH, WIDTH),
        **dense("cls/predictions/transform/dense", WIDTH, NARROW),
        **norm("cls/predictions/transform/LayerNorm", NARROW),
        "cls/predictions/output_bias": (pieces,),
        "cls/seq_relationship/output_weights": (2, WIDTH),
        "cls/seq_relationship/output_bias": (2,),
    }


def albert_as_bert(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the variables of a BERT whose layers are copies of ALBERT's shared layers."""
    others = {name: value for name, value in variables.items() if "/inner_group_" not in name}
    places = {
        "attention_1/": "attention/",
        "ffn_1/intermediate/output/": "output/",
        "ffn_1/": "",
        "LayerNorm_1/": "output/LayerNorm/",
        "LayerNorm/": "attention/output/LayerNorm/",
    }
    for layer, group in enumerate(GROUPS):
        scope = f"bert/encoder/transformer/group_{group}/inner_group_0/"
        for name, value in variables.items():
            if name.startswith(scope):
                inner = name.removeprefix(scope)
                old, new = next(each for each in places.items() if inner.startswith(each[0]))
                others[f"bert/encoder/layer_{layer}/{new}{inner.removeprefix(old)}"] = value
    return others


def electra_shapes(layers: int = 3) -> Shapes:
    def encoder(scope: str, width: int, inner: int) -> Shapes:
        shapes = dense(f"{scope}/embeddings_project", NARROW, width)
        for layer in range(layers):
            at = f"{scope}/encoder/layer_{layer}"
            for name in ("query", "key", "value"):
                shapes |= dense(f"{at}/attention/self/{name}", width, width)
            shapes |= dense(f"{at}/attention/output/dense", width, width)
            shapes |= norm(f"{at}/attention/output/LayerNorm", width)
            shapes |= dense(f"{at}/intermediate/dense", width, inner)
            shapes |= dense(f"{at}/output/dense", inner, width)
            shapes |= norm(f"{at}/output/LayerNorm", width)
        return shapes

    return {
        **embeddings("electra/embeddings"),
        **encoder("electra", WIDTH, INNER),
        **encoder("generator", WIDTH // 4, WIDTH),
        **dense("generator_predictions/dense", WIDTH // 4, NARROW),
        **norm("generator_predictions/LayerNorm", NARROW),
        "generator_predictions/output_bias": (ROWS,),
        **dense("discriminator_predictions/dense", WIDTH, WIDTH),
        **dense("discriminator_predictions/dense_1", WIDTH, 1),
    }


def electra_as_bert(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.replace("electra/embeddings_project", PROJECTION).replace("electra/", "bert/"): value
        for name, value in variables.items()
        if not name.startswith("generator")
    }


def made(directory: Path, kind: str, *, slots: bool = False) -> dict[str, np.ndarray]:
    """Writes a checkpoint of random values, and returns its variables."""
    directory.mkdir(parents=True, exist_ok=True)
    variables = draw(albert_shapes() if kind == "albert" else electra_shapes(), seed=3)
    rng = np.random.default_rng(4)
    both = ("adam_m", "adam_v") if slots else ()
    extra = {
        f"{name}/{slot}": rng.random(value.shape, np.float32)
        for name, value in variables.items()
        for slot in both
    }
    if kind == "albert":
        (directory / "albert_config.json").write_text(json.dumps(ALBERT_CONFIG), encoding="utf-8")
    name = "model.ckpt-best" if kind == "albert" else "electra_small"
    write_tf1(directory, variables | extra, global_step=77, prefix_name=name)
    return variables | extra


def rows() -> dict[str, np.ndarray]:
    rng, lengths = np.random.default_rng(1), np.array([POSITIONS, 23, 6])
    mask = (np.arange(POSITIONS) < lengths[:, None]).astype(np.int32)
    ids = rng.integers(0, ROWS, mask.shape).astype(np.int32) * mask
    types = (np.arange(POSITIONS) >= lengths[:, None] // 2).astype(np.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "token_type_ids": types}


def states(found: Pretrained, inputs: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """Returns the model with the imported parameters, and its states after the last layer."""
    model = bind(
        encoder_builder(found.architecture, Execution(dtype="float32"), found.heads), found.params
    )
    renamed = {"input_ids": "input_ids", "token_type_ids": "token_type_ids"}
    batch = {ours: jnp.asarray(inputs[theirs]) for ours, theirs in renamed.items()}
    batch["segment_ids"] = jnp.asarray(inputs["input_mask"])
    return model, model.hidden(batch, dropout_key=None)


def assert_close(ours: Any, theirs: np.ndarray, real: Any = Ellipsis) -> None:
    np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], rtol=0, atol=1e-5)


def test_albert_gives_google_researchs_logits(tmp_path: Path) -> None:
    variables, inputs = made(tmp_path, "albert"), rows()
    found = read_tf(tmp_path, tokenizer=wordpiece(vocab_size=PIECES))
    positions = np.array([[3, 0, 21], [22, 1, 5], [0, 5, 2]], np.int32)
    theirs = forward(
        albert_as_bert(variables), num_attention_heads=4, masked_lm_positions=positions, **inputs
    )
    model, hidden = states(found, inputs)
    real = inputs["input_mask"].astype(bool)
    assert_close(hidden, theirs.hidden, real)
    assert_close(model.mlm_logits(hidden, jnp.asarray(positions))[..., :ROWS], theirs.mlm)
    assert_close(model.next_sentence_logits(hidden[:, :1])[:, 0], theirs.next_sentence)
    assert np.abs(theirs.mlm).max() > 0.5  # smaller logits would make the comparison meaningless
    assert (found.step, found.heads) == (77, HeadsSection())
    assert found.architecture.sharing == (2, 1)


def test_electra_gives_google_researchs_logits(tmp_path: Path) -> None:
    variables, inputs = made(tmp_path, "electra", slots=True), rows()
    found = read_tf(tmp_path, tokenizer=wordpiece(vocab_size=PIECES))
    theirs = hidden_states(
        electra_as_bert(variables), num_attention_heads=1, activation=gelu_erf, **inputs
    )
    model, hidden = states(found, inputs)
    real = inputs["input_mask"].astype(bool)
    assert_close(hidden, theirs, real)

    def head(layer: str, x: np.ndarray) -> np.ndarray:
        scope = f"discriminator_predictions/{layer}"
        return x @ variables[f"{scope}/kernel"] + variables[f"{scope}/bias"]

    logits = head("dense_1", gelu_erf(head("dense", theirs)))[..., 0]
    assert_close(model.replaced_token_logits(hidden), logits, real)
    assert np.abs(logits[real]).max() > 0.2
    assert found.moments is None
    used = {name for name in found.ignored if not name.endswith(("adam_m", "adam_v"))}
    generators = {name for name in variables if name.startswith("generator") and "adam" not in name}
    assert used == generators | {"global_step"}


def test_electras_heads_come_from_a_configuration_if_there_is_one(tmp_path: Path) -> None:
    variables, inputs = made(tmp_path, "electra"), rows()
    config = {"model_type": "electra", "num_attention_heads": 8, "hidden_size": WIDTH}
    config |= {"embedding_size": NARROW, "intermediate_size": INNER, "num_hidden_layers": 3}
    config |= {"vocab_size": ROWS, "max_position_embeddings": POSITIONS}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = read_tf(tmp_path, tokenizer=wordpiece(vocab_size=PIECES))
    theirs = hidden_states(
        electra_as_bert(variables), num_attention_heads=8, activation=gelu_erf, **inputs
    )
    assert_close(states(found, inputs)[1], theirs, inputs["input_mask"].astype(bool))


@pytest.mark.parametrize("kind", ["albert", "electra"])
def test_import_and_export_keep_every_byte(tmp_path: Path, kind: str) -> None:
    variables = made(tmp_path / "theirs", kind, slots=kind == "albert")
    wordpiece(vocab_size=PIECES).save(tmp_path / "theirs")
    notes = ok("import", tmp_path / "theirs", tmp_path / "run")
    assert ("attention heads" in notes) == (kind == "electra")
    shown = ok("export", tmp_path / "run", tmp_path / "again", "--to", "tf")
    assert "differ by at most 0" in shown
    name = {"albert": "model.ckpt-best", "electra": "electra.ckpt"}[kind]
    assert (tmp_path / "again" / "checkpoint").read_text() == f'model_checkpoint_path: "{name}"\n'
    tensors = read_tf1(tmp_path / "again" / name)
    assert tensors.pop("global_step") == 77
    expected = {n: v for n, v in variables.items() if not n.startswith("generator")}
    assert tensors.keys() == expected.keys()
    assert all(tensors[name].tobytes() == expected[name].tobytes() for name in expected)
    again = read_tf(tmp_path / "again", tokenizer=load_tokenizer(tmp_path / "again"))
    assert again.architecture == read_run(tmp_path / "run").run.architecture
    if kind == "albert":
        config = json.loads((tmp_path / "again" / "albert_config.json").read_text())
        assert config.items() <= ALBERT_CONFIG.items()


@pytest.mark.parametrize(
    ("kind", "changes", "place"),
    [
        ("electra", {"hidden_act": "gelu_tanh"}, "hidden_act"),
        ("electra", {"layer_norm_eps": 1e-5}, "layer_norm_eps"),
        ("albert", {"hidden_act": "gelu_erf"}, "hidden_act"),
        ("albert", {"embedding_size": WIDTH}, "embedding_size"),
    ],
)
def test_other_settings_are_refused_before_writing(
    tmp_path: Path, kind: str, changes: dict[str, Any], place: str
) -> None:
    made(tmp_path / "theirs", kind)
    found = read_tf(tmp_path / "theirs", tokenizer=wordpiece(vocab_size=PIECES))
    changed = found.architecture.with_changes(changes)
    (tmp_path / "again").mkdir()
    with refuses("export.not_in_google", place=f"model.architecture.{place}"):
        write_tf(tmp_path / "again", found._replace(architecture=changed))
    assert list((tmp_path / "again").iterdir()) == []


def test_wrong_checkpoints_are_named(tmp_path: Path) -> None:
    pieces = wordpiece(vocab_size=PIECES)
    made(tmp_path / "albert", "albert")
    config = tmp_path / "albert" / "albert_config.json"
    wrong: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
        ({"inner_group_num": 2}, "albert.inner_groups", {"found": 2}),
        ({"hidden_act": "swish"}, "model.activation", {"found": "swish"}),
        ({"num_hidden_groups": 1}, "tensor.unknown", {}),
        ({"vocab_size": 200}, "model.vocab_size_of_file", {"found": 200, "pieces": PIECES}),
    ]
    for changes, key, values in wrong:
        config.write_text(json.dumps(ALBERT_CONFIG | changes), encoding="utf-8")
        with refuses(key, **values):
            read_tf(tmp_path / "albert", tokenizer=pieces)
    config.unlink()
    with refuses("import.no_google_config", place=config):
        read_tf(tmp_path / "albert", tokenizer=pieces)
    variables = made(tmp_path / "electra", "electra")
    with refuses("import.vocab_size", found=ROWS, pieces=ROWS + 1):
        read_tf(tmp_path / "electra", tokenizer=wordpiece(vocab_size=ROWS + 1))
    del variables["electra/embeddings/position_embeddings"]
    write_tf1(tmp_path / "electra", variables, prefix_name="electra_small")
    with refuses("import.electra_sizes", name="electra/embeddings/position_embeddings"):
        read_tf(tmp_path / "electra", tokenizer=pieces)
