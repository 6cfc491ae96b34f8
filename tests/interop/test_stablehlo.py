"""An exported program against the model it was made of."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.interop.mapping import flatten
from bert_jax.interop.stablehlo import USAGE, default_outputs, export_stablehlo
from bert_jax.model.bert import Bert
from bert_jax.model.config import Architecture, Execution, HeadsSection
from tests.support import small_architecture

READER = Path(__file__).with_name("run_stablehlo.py")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "stablehlo.md"
COMPILER = Path(__file__).with_name("compile_stablehlo.py")
FLOAT32 = Execution(dtype="float32")
LABELS = ("LOC", "PER", "other")

HEADS = {
    "encoder alone": HeadsSection(pooler=False, mlm=False, next_sentence=False),
    "masked words alone": HeadsSection(pooler=False, next_sentence=False),
    "pretraining": HeadsSection(),
    "sequences": HeadsSection(
        mlm=False, next_sentence=False, task="sequence_classification", labels=LABELS
    ),
    "tokens": HeadsSection(
        pooler=False, mlm=False, next_sentence=False, task="token_classification", labels=LABELS
    ),
    "answers": HeadsSection(
        pooler=False, mlm=False, next_sentence=False, task="question_answering"
    ),
    "choices": HeadsSection(mlm=False, next_sentence=False, task="multiple_choice"),
}


def model(
    heads: HeadsSection, *, execution: Execution = FLOAT32, **changes: Any
) -> tuple[Architecture, Bert, dict[str, Any]]:
    """A model with random tensors everywhere: a bias of zero would hide a bias that is lost."""
    architecture = small_architecture(**changes)
    bert = Bert(architecture=architecture, execution=execution, heads=heads)
    graphdef, state = nnx.split(bert)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), nnx.to_pure_dict(state)
    )
    params["encoder"]["embeddings"]["word"][architecture.vocab_size :] = 0.0
    return architecture, nnx.merge(graphdef, jax.tree.map(jnp.asarray, params)), params


def make_batch(*, rows: int, length: int) -> dict[str, np.ndarray]:
    """Rows of unequal length in the integers that other libraries' tokenizers give."""
    rng = np.random.default_rng(rows)
    lengths = rng.integers(3, length + 1, rows)
    inside = np.arange(length)[None] < lengths[:, None]
    return {
        "input_ids": np.where(inside, rng.integers(5, 250, inside.shape), 0).astype(np.int64),
        "attention_mask": inside.astype(np.int64),
        "token_type_ids": (inside & (np.arange(length) > length // 2)).astype(np.int64),
    }


def expected(bert: Bert, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by the model's own methods, as evaluation calls them."""
    rows, length = inputs["input_ids"].shape

    @jax.jit
    def compute(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        hidden = bert.hidden(batch, dropout_key=None)
        found = {"last_hidden_state": hidden}
        if bert.heads.pooler:
            found["pooled"] = bert.pooler(hidden[:, :1])[:, 0]
        if bert.heads.mlm:
            everywhere = jnp.broadcast_to(jnp.arange(length), (rows, length))
            found["mlm_logits"] = bert.mlm_logits(hidden, everywhere)[..., :250]
        if bert.heads.next_sentence:
            found["next_sentence_logits"] = bert.next_sentence(found["pooled"][:, None])[:, 0]
        if bert.heads.task is not None:
            found["task_logits"] = bert.task_logits(hidden)
        return found

    batch = {
        "input_ids": inputs["input_ids"].astype(np.int32),
        "token_type_ids": inputs["token_type_ids"].astype(np.int32),
        "segment_ids": inputs["attention_mask"].astype(np.int32),
    }
    return jax.device_get(compute(batch))


def write(directory: Path, heads: HeadsSection, **options: Any) -> Bert:
    """Exports a model into the directory and returns it."""
    execution = options.pop("execution", FLOAT32)
    outputs = options.pop("outputs", None)
    architecture, bert, params = model(heads, execution=execution, **options)
    export_stablehlo(
        directory,
        architecture=architecture,
        execution=execution,
        heads=heads,
        params=params,
        outputs=outputs,
    )
    return bert


def load(directory: Path) -> export.Exported:
    """Returns the program in a directory."""
    return export.deserialize(bytearray((directory / "model.stablehlo").read_bytes()))


def signature_of(directory: Path) -> dict[str, Any]:
    """The signature in a directory."""
    return json.loads((directory / "signature.json").read_text(encoding="utf-8"))


def call(directory: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the program in a directory."""
    weights = load_file(directory / "model.safetensors")
    return jax.device_get(load(directory).call(weights, *inputs.values()))


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Shape, type and every number within 1e-6 of the largest."""
    for name, array in found.items():
        assert (array.shape, array.dtype) == (wanted[name].shape, np.float32), name
        error = np.abs(array - wanted[name]).max()
        assert error <= 1e-6 * max(1.0, np.abs(wanted[name]).max()), (name, error)


def test_a_program_without_bert_jax_runs_batches_of_two_sizes(tmp_path: Path) -> None:
    heads = HEADS["pretraining"]
    everything = ["last_hidden_state", "pooled", "mlm_logits", "next_sentence_logits"]
    bert = write(tmp_path, heads, outputs=everything)
    batches = [make_batch(rows=2, length=16), make_batch(rows=5, length=33)]
    named: dict[str, Any] = {
        f"{i}/{name}": array for i, each in enumerate(batches) for name, array in each.items()
    }
    np.savez(tmp_path / "batches.npz", **named)
    command = [sys.executable, READER, tmp_path, tmp_path / "batches.npz", tmp_path / "results.npz"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "results.npz") as results:
        assert len(results) == 2 * len(everything)
        for number, batch in enumerate(batches):
            assert_same(
                {name: results[f"{number}/{name}"] for name in everything}, expected(bert, batch)
            )


def test_the_documented_example_runs_as_it_stands(tmp_path: Path) -> None:
    assert USAGE in DOCUMENTATION.read_text(encoding="utf-8")
    write(tmp_path, HEADS["pretraining"])
    code = USAGE.removeprefix("```python\n").removesuffix("```")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == {
        "last_hidden_state": (2, 4, 64),
        "pooled": (2, 64),
        "next_sentence_logits": (2, 2),
    }


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_every_head_gives_the_models_numbers(tmp_path: Path, heads: HeadsSection) -> None:
    bert = write(tmp_path, heads)
    batch = make_batch(rows=3, length=20)
    found = call(tmp_path, batch)
    assert sorted(found) == sorted(default_outputs(heads))
    assert_same(found, expected(bert, batch))


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_one_program_serves_three_platforms_with_standard_operations_alone(
    tmp_path: Path, activation: str
) -> None:
    write(tmp_path, HEADS["pretraining"], outputs=["mlm_logits", "pooled"], hidden_act=activation)
    program = load(tmp_path)
    text = program.mlir_module()
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert program.nr_devices == 1
    # XLA itself takes these out again, once the sizes of the batch are known.
    assert set(re.findall(r"custom_call @([\w.$]+)", text)) == {"shape_assertion"}
    dialects = re.findall(r'^\s*(?:%[\w:, %]+ = )?"?(\w+)\.\w+', text, re.MULTILINE)
    assert set(dialects) == {"stablehlo", "func"}
    assert "sharding" not in text.lower()


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu exists for Linux x86-64 alone"
)
def test_the_program_compiles_for_a_tpu(tmp_path: Path) -> None:
    everything = ["last_hidden_state", "pooled", "mlm_logits", "next_sentence_logits"]
    directories = [tmp_path / dtype for dtype in ("float32", "bfloat16")]
    for directory in directories:
        directory.mkdir()
        execution = Execution.model_validate({"dtype": directory.name})
        write(directory, HEADS["pretraining"], execution=execution, outputs=everything)
    environment = {
        **os.environ,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
        "XLA_FLAGS": "",  # libtpu refuses those of the CPU compiler
    }
    command = [sys.executable, COMPILER, "v5e:2x2", *directories]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-2:] == [f"TPU v5 lite {each}" for each in directories]


def test_the_vocabularys_padding_stays_at_home(tmp_path: Path) -> None:
    write(tmp_path, HEADS["masked words alone"])
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["encoder/embeddings/word"].shape == (250, 64)
    assert weights["mlm/bias"].shape == (250,)
    assert call(tmp_path, make_batch(rows=2, length=8))["mlm_logits"].shape == (2, 8, 250)


def test_the_weights_are_the_checkpoints_bytes(tmp_path: Path) -> None:
    heads = HEADS["sequences"]
    _, _, params = model(heads)
    write(tmp_path, heads)
    weights = load_file(tmp_path / "model.safetensors")
    ours = flatten(params)
    ours["encoder/embeddings/word"] = ours["encoder/embeddings/word"][:250]
    assert weights.keys() == ours.keys()
    for name, array in weights.items():
        assert array.tobytes() == ours[name].tobytes(), name


def test_the_signature_names_what_the_program_takes_and_gives(tmp_path: Path) -> None:
    write(tmp_path, HEADS["tokens"])
    program, signature = load(tmp_path), signature_of(tmp_path)
    described = signature["weights"] + signature["inputs"]
    assert [(tuple(each["shape"]), each["dtype"]) for each in described] == [
        (tuple(s if isinstance(s, int) else str(s) for s in aval.shape), str(aval.dtype))
        for aval in program.in_avals
    ]
    (args, _) = jax.tree.unflatten(program.in_tree, [each["name"] for each in described])
    weights, *inputs = args
    assert all(path == name for path, name in weights.items())
    assert inputs == ["input_ids", "attention_mask", "token_type_ids"]
    outputs = {each["name"]: (each["shape"], each["dtype"]) for each in signature["outputs"]}
    assert outputs == {
        "last_hidden_state": (["b", "l", 64], "float32"),
        "task_logits": (["b", "l", 3], "float32"),
    }
    assert signature["task"] == {
        "name": "token_classification",
        "labels": list(LABELS),
        "problem": None,
    }
    assert signature["versions"]["jax"] == jax.__version__
    assert signature["calling_convention_version"] == program.calling_convention_version


def test_bfloat16_is_computed_in_bfloat16_and_given_in_float32(tmp_path: Path) -> None:
    execution = Execution(dtype="bfloat16")
    bert = write(tmp_path, HEADS["pretraining"], execution=execution)
    assert "xbf16>" in load(tmp_path).mlir_module()
    batch = make_batch(rows=3, length=20)
    found = call(tmp_path, batch)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    wanted = expected(bert, batch)["last_hidden_state"].astype(np.float32)
    assert np.abs(found["last_hidden_state"] - wanted).max() <= 2**-6 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("outputs", "line"),
    [
        (
            ["last_hidden_state", "poold"],
            'outputs: found "poold", allowed for this model: last_hidden_state, pooled, '
            'task_logits; did you mean "pooled"?',
        ),
        (
            ["mlm_logits"],
            'outputs: found "mlm_logits", allowed for this model: last_hidden_state, pooled, '
            "task_logits",
        ),
        ([], "outputs: found none, allowed: last_hidden_state, pooled, task_logits"),
    ],
)
def test_an_output_that_is_not_there_is_refused_in_one_line(
    tmp_path: Path, outputs: list[str], line: str
) -> None:
    with pytest.raises(UserError) as refusal:
        write(tmp_path, HEADS["sequences"], outputs=outputs)
    assert str(refusal.value) == line
    assert not list(tmp_path.iterdir())
