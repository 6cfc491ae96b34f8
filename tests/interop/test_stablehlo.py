"""An exported program computes the same numbers as the original model."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export
from safetensors.numpy import load_file

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.registry import SECTIONS
from bert_jax.interop.stablehlo import USAGE, export_stablehlo
from bert_jax.interop.tensor_conversion import flatten
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.model.text_head import Pool, PoolingSection, TokenVectorsSection
from bert_jax.train.state import define_model
from tests.compiler_pair import compiles_for_tpus
from tests.project import refuses
from tests.support import small_encoder

pytestmark = pytest.mark.slow

READER = Path(__file__).with_name("run_stablehlo.py")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "stablehlo.md"
COMPILER = Path(__file__).with_name("compile_stablehlo.py")
LABELS = ("LOC", "PER", "other")
EVERYTHING = ["last_hidden_state", "pooled", "mlm_logits", "next_sentence_logits"]

BARE: dict[str, Any] = {"mlm": False, "next_sentence": False}
HEADS = {
    "encoder alone": HeadsSection(pooler=False, **BARE),
    "masked words alone": HeadsSection(pooler=False, next_sentence=False),
    "pretraining": HeadsSection(),
    "sequences": HeadsSection(task="sequence_classification", labels=LABELS, **BARE),
    "tokens": HeadsSection(pooler=False, task="token_classification", labels=LABELS, **BARE),
    "answers": HeadsSection(pooler=False, task="question_answering", **BARE),
    "choices": HeadsSection(task="multiple_choice", **BARE),
    **{
        f"{pool} vectors": HeadsSection(
            pooler=False,
            embedding=PoolingSection(pool=pool, projection=24, temperature=0.1, query_prefix="q: "),
            **BARE,
        )
        for pool in get_args(Pool)
    },
    "token vectors": HeadsSection(pooler=False, late_interaction=TokenVectorsSection(), **BARE),
}


def model(
    encoder: str, heads: HeadsSection, dtype: Any
) -> tuple[EncoderArchitecture, EncoderModel, dict[str, Any]]:
    """Returns a model whose tensors are all random. Zero biases would hide a lost bias."""
    changes = (
        {"window": 8, "num_hidden_layers": 5, "global_every": 2} if encoder == "modernbert" else {}
    )
    architecture = small_encoder(encoder, hidden_act="gelu_erf", **changes)
    definition = define_model(encoder_builder(architecture, Execution(dtype=dtype), heads))
    rng = np.random.default_rng(0)

    def draw(leaf: Any, axes: tuple[str | None, ...]) -> np.ndarray:
        drawn = rng.normal(0, 0.2, leaf.shape).astype(np.float32)
        if axes[0] == "vocab" and len(axes) == 2:
            drawn[architecture.vocab_size :] = 0.0
        return drawn

    params = jax.tree.map(draw, definition.params, definition.axes)
    merged = nnx.merge(definition.graphdef, jax.tree.map(jnp.asarray, params))
    return architecture, merged, params


def make_batch(*, rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns rows of unequal length, as int64 like the tokenizers of other libraries."""
    rng = np.random.default_rng(rows)
    lengths = rng.integers(3, length + 1, rows)
    inside = np.arange(length)[None] < lengths[:, None]
    return {
        "input_ids": np.where(inside, rng.integers(5, 250, inside.shape), 0).astype(np.int64),
        "attention_mask": inside.astype(np.int64),
        "token_type_ids": (inside & (np.arange(length) > length // 2)).astype(np.int64),
    }


def expected(bert: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs that the model's methods compute in evaluation."""
    rows, length = inputs["input_ids"].shape

    @jax.jit
    def compute(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        hidden = bert.hidden(batch, dropout_key=None)
        found = {"last_hidden_state": hidden}
        if hasattr(bert, "pooler"):
            found["pooled"] = bert.pooler(hidden[:, :1])[:, 0]
        if bert.heads.mlm:
            everywhere = jnp.broadcast_to(jnp.arange(length), (rows, length))
            found["mlm_logits"] = bert.mlm_logits(hidden, everywhere)[..., :250]
        if bert.heads.next_sentence:
            found["next_sentence_logits"] = bert.next_sentence(found["pooled"][:, None])[:, 0]
        if bert.heads.vectors is not None:
            found["embedding"] = bert.embedded(batch, dropout_key=None)
        if bert.heads.task is not None:
            found["task_logits"] = bert.task_logits(hidden, batch["segment_ids"])
        return found

    batch = {
        "input_ids": inputs["input_ids"].astype(np.int32),
        "token_type_ids": inputs["token_type_ids"].astype(np.int32),
        "segment_ids": inputs["attention_mask"].astype(np.int32),
    }
    return jax.device_get(compute(batch))


class Written:
    """A model and the directory of its export."""

    def __init__(
        self,
        directory: Path,
        heads: str,
        *,
        encoder: str = "bert",
        dtype: str = "float32",
        outputs: Any = None,
    ) -> None:
        architecture, self.bert, self.params = model(encoder, HEADS[heads], dtype)
        self.directory = directory
        export_stablehlo(
            directory,
            architecture=architecture,
            execution=Execution.model_validate({"dtype": dtype}),
            heads=HEADS[heads],
            params=self.params,
            outputs=outputs,
        )
        program = (directory / "model.stablehlo").read_bytes()
        self.program = export.deserialize(bytearray(program))
        self.weights = load_file(directory / "model.safetensors")
        self.signature = json.loads((directory / "signature.json").read_text(encoding="utf-8"))

    def call(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return jax.device_get(self.program.call(self.weights, *inputs.values()))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a cached export function. It exports "pretraining" with all outputs."""

    @cache
    def make(heads: str) -> Written:
        outputs = EVERYTHING if heads == "pretraining" else None
        return Written(tmp_path_factory.mktemp("exported"), heads, outputs=outputs)

    return make


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Asserts equal shapes and dtypes, and errors of at most 1e-6 of the largest value."""
    for name, array in found.items():
        assert (array.shape, array.dtype) == (wanted[name].shape, np.float32), name
        error = np.abs(array - wanted[name]).max()
        assert error <= 1e-6 * max(1.0, np.abs(wanted[name]).max()), (name, error)


def test_an_export_runs_without_bert_jax(tmp_path: Path, written: Any) -> None:
    assert USAGE in DOCUMENTATION.read_text(encoding="utf-8")
    example = USAGE.removeprefix("```python\n").removesuffix("```")
    batches = [make_batch(rows=2, length=16), make_batch(rows=5, length=33)]
    named: dict[str, Any] = {
        f"{i}/{name}": array for i, each in enumerate(batches) for name, array in each.items()
    }
    np.savez(tmp_path / "batches.npz", **named)
    exported = written("pretraining")
    done = subprocess.run(
        [
            *(sys.executable, "-c", f"{example}\n{READER.read_text(encoding='utf-8')}"),
            *(exported.directory, tmp_path / "batches.npz", tmp_path / "results.npz"),
        ],
        capture_output=True,
        text=True,
        cwd=exported.directory,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shapes = {"last_hidden_state": (2, 4, 64), "pooled": (2, 64), "mlm_logits": (2, 4, 250)}
    assert ast.literal_eval(done.stdout) == shapes | {"next_sentence_logits": (2, 2)}
    with np.load(tmp_path / "results.npz") as results:
        assert len(results) == 2 * len(EVERYTHING)
        for number, batch in enumerate(batches):
            assert_same(
                {name: results[f"{number}/{name}"] for name in EVERYTHING},
                expected(exported.bert, batch),
            )


@pytest.mark.parametrize("name", [name for name in HEADS if name != "pretraining"])
def test_every_head_gives_the_models_numbers(written: Any, name: str) -> None:
    exported, batch = written(name), make_batch(rows=3, length=20)
    if name == "token vectors":
        batch["attention_mask"][:, 2] = -1  # no token attends to this one
    found = exported.call(batch)
    wanted = expected(exported.bert, batch)
    assert sorted(found) == sorted(wanted)
    assert_same(found, wanted)
    signature, is_embedding = exported.signature, HEADS[name].embedding is not None
    texts = {"default_prefix": "", "query_prefix": "q: ", "passage_prefix": "", "max_length": 64}
    if name == "token vectors":
        assert found["embedding"].shape == (3, 20, 128)
        lengths = {"query_length": 32, "query_expansion": None, "skipped": []}
        assert signature["embedding"] == {**texts, "query_prefix": "", **lengths}
    else:
        assert signature["embedding"] == (texts if is_embedding else None)
    weights = {each["name"] for each in signature["weights"]}
    assert "embedding/scale" not in weights
    assert ("mlm_logits" in found) == (name == "masked words alone")


@pytest.mark.parametrize("encoder", [kind for kind in SECTIONS if kind != "bert"])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [("masked words alone", [(1, 3), (5, 33)]), ("sequences", [(2, 16)])],  # the window has 8
    ids=["masked words alone", "sequences"],
)
def test_every_encoder_gives_the_models_numbers_at_every_length(
    tmp_path: Path, encoder: str, name: str, shapes: list[tuple[int, int]]
) -> None:
    exported = Written(tmp_path, name, encoder=encoder)
    for rows, length in shapes:
        batch = make_batch(rows=rows, length=length)
        found = exported.call(batch)
        assert ("mlm_logits" in found) == (name == "masked words alone")
        assert_same(found, expected(exported.bert, batch))


def test_one_standard_program_serves_three_platforms(written: Any) -> None:
    program = written("pretraining").program
    text = program.mlir_module()
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert program.nr_devices == 1
    # XLA removes the shape assertions when the batch has concrete sizes.
    assert set(re.findall(r"custom_call @([\w.$]+)", text)) == {"shape_assertion"}
    dialects = re.findall(r'^\s*(?:%[\w:, %]+ = )?"?(\w+)\.\w+', text, re.MULTILINE)
    assert set(dialects) == {"stablehlo", "func"}
    assert "sharding" not in text.lower()


@compiles_for_tpus
def test_bfloat16_export_compiles_and_returns_float32(
    tmp_path: Path,
) -> None:
    exported = Written(tmp_path, "pretraining", dtype="bfloat16")
    assert "xbf16>" in exported.program.mlir_module()
    batch = make_batch(rows=3, length=20)
    found = exported.call(batch)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    wanted = expected(exported.bert, batch)["last_hidden_state"].astype(np.float32)
    assert np.abs(found["last_hidden_state"] - wanted).max() <= 2**-6 * np.abs(wanted).max()
    environment = {
        **os.environ,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
        "XLA_FLAGS": "",  # libtpu rejects flags of the CPU compiler
    }
    done = subprocess.run(
        [sys.executable, COMPILER, "v5e:2x2", tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == f"TPU v5 lite {tmp_path}"


@pytest.mark.parametrize("name", ["masked words alone", "sequences"])
def test_weights_are_the_checkpoints_bytes_without_padding(written: Any, name: str) -> None:
    exported = written(name)
    ours = flatten(exported.params)
    assert exported.weights.keys() == ours.keys()
    for path, array in exported.weights.items():
        padded = path in ("encoder/embeddings/word", "mlm/bias")
        assert array.tobytes() == (ours[path][:250] if padded else ours[path]).tobytes(), path


def test_the_signature_names_inputs_and_outputs(written: Any) -> None:
    program, signature = written("tokens").program, written("tokens").signature
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


@pytest.mark.parametrize(
    ("outputs", "key", "values"),
    [
        (["poold"], "export.output_unknown", {"hint": '; did you mean "pooled"?'}),
        (["mlm_logits"], "export.output_unknown", {"found": "mlm_logits", "hint": ""}),
        ([], "export.no_outputs", {}),
    ],
)
def test_an_unknown_output_is_refused(
    tmp_path: Path, outputs: list[str], key: str, values: dict[str, Any]
) -> None:
    allowed = ["last_hidden_state", "pooled", "task_logits"]
    with refuses(key, place="outputs", allowed=allowed, **values):
        Written(tmp_path, "sequences", outputs=outputs)
    assert not list(tmp_path.iterdir())
