"""Late-interaction models go to sentence-transformers and come back; PyLate's are read."""

import json
import re
import shutil
import string
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder import losses
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

import bert_jax
from bert_jax.feature_extraction.extractor import Prompt
from bert_jax.inference.comparison import comparison_of
from bert_jax.model.section import Execution
from bert_jax.runs.run_directory import open_run
from bert_jax.task import Rngs
from bert_jax.tasks.batches import collate
from bert_jax.tasks.late_interaction.section import LateInteractionLossSection
from bert_jax.tasks.late_interaction.task import LateInteractionTask
from bert_jax.tasks.search.tuples import TextTuple, TupleSplit
from bert_jax.train.state import define_model
from tests.feature_extraction.runs import texts
from tests.interop.hf_checkpoints import under_their_names
from tests.interop.test_sentence_transformers import encoder, tensors
from tests.project import ok, refused

pytestmark = pytest.mark.slow

TEXTS = [f"{text} , w3 !" for text in texts(500, longest=30)]
PUNCTUATION = [*string.punctuation]
# Class of Hugging Face's, width, settings of Transformer, and words without a vector.
MODELS: dict[str, tuple[str, int | None, dict[str, Any], list[str]]] = {
    "bert": (
        "BertModel",
        24,
        {"query_expansion": {"strategy": "fixed", "length": 12}, "document_length": 20},
        [*PUNCTUATION, "w3", "w9"],
    ),
    "modernbert": (
        "ModernBertModel",
        16,
        {"query_expansion": {"strategy": "fixed", "length": 14, "attend": True}},
        ["w3"],
    ),
    "roberta": ("RobertaModel", None, {"query_length": 9, "document_length": 18}, []),
}


def theirs(directory: Path) -> Any:
    return MultiVectorEncoder(str(directory), device="cpu").eval()


def written_by_them(directory: Path, name: str) -> Path:
    """Returns a directory that sentence-transformers saved."""
    kind, width, settings, words = MODELS[name]
    source = encoder(kind, directory / "encoder")
    modules: list[Any] = [Transformer(str(source), **settings)]
    features = {"module_input_name": "token_embeddings"}
    if width is not None:
        linear = torch.nn.Identity()
        modules.append(Dense(32, width, bias=False, activation_function=linear, **features))
    modules += [MultiVectorMask(words), Normalize(**features)]
    made = MultiVectorEncoder(
        modules=modules, prompts={"query": "w1 w2 ", "document": "w4 : "}, device="cpu"
    )
    made.save(str(directory / "saved"), create_model_card=False)
    return directory / "saved"


def assert_equal_models(ours: Any, reference: Any) -> None:
    """Compares the vectors of all tokens of 500 queries and passages, and their scores."""
    found = [ours.encode(TEXTS, prompt=prompt) for prompt in ("query", "passage")]
    numpy: dict[str, Any] = {"convert_to_numpy": True}
    wanted = [reference.encode_query(TEXTS, **numpy), reference.encode_document(TEXTS, **numpy)]
    for one, other in zip(found, wanted, strict=True):
        assert [len(each) for each in one] == [len(each) for each in other]
        np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), atol=1e-5)
    comparison = comparison_of(ours.heads.vectors)
    scores = comparison.scores(*map(comparison.collect, found))
    np.testing.assert_allclose(scores, reference.similarity(*wanted).numpy(), atol=5e-5)


@pytest.mark.parametrize("name", MODELS)
def test_token_vectors_equal_sentence_transformers_both_ways(name: str, tmp_path: Path) -> None:
    source = written_by_them(tmp_path, name)
    run, exported, back = (tmp_path / each for each in ("run", "exported", "back"))
    ok("import", source, run)
    model, reference = bert_jax.load(run), theirs(source)
    assert_equal_models(model, reference)
    assert "differ by at most 0" in ok("export", run, exported)
    assert tensors(exported) == tensors(source)
    again = theirs(exported)
    for encode in ("encode_query", "encode_document"):
        one, other = (getattr(each, encode)(TEXTS[:50]) for each in (again, reference))
        assert all(torch.equal(*each) for each in zip(one, other, strict=True))
    ok("import", exported, back)
    assert open_run(back).heads == open_run(run).heads
    best = model.rank(TEXTS[0], TEXTS[1:5])[0]
    scores = reference.similarity(
        reference.encode_query(TEXTS[:1]), reference.encode_document(TEXTS[1:5])
    )
    assert best.document == int(scores.argmax())
    assert best.score == pytest.approx(float(scores.max()), abs=1e-5)


PROMPTS: tuple[Prompt, ...] = ("query", "passage")
MARKERS = {"pieces": ("[unused1] ", "[unused2] "), "added": ("[Q] ", "[D] ")}


@pytest.mark.parametrize("layout", MARKERS)
def test_pylates_files_are_read(layout: str, tmp_path: Path) -> None:
    """PyLate 1.0 lists two modules, and inserts the tokens of the markers."""
    source = encoder("BertModel", tmp_path / "model")
    query, document = MARKERS[layout]
    for file in ("vocab.txt", "tokenizer.json"):  # two pieces get the names of markers
        text = (source / file).read_text()
        for piece, marker in (("w7", query), ("w8", document)):
            text = re.sub(rf"\b{piece}\b", marker.strip(), text)
        (source / file).write_text(text)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    del settings["hash"]
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    if layout == "added":
        spec = json.loads((source / "tokenizer.json").read_text())
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
        spec["added_tokens"].append({"id": 12, "content": query.strip(), **flags, "special": False})
        (source / "tokenizer.json").write_text(json.dumps(spec))
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    settings = {
        "similarity_fn_name": "MaxSim",
        "query_prefix": query,
        "document_prefix": document,
        "query_length": 12,
        "document_length": 25,
        "attend_to_expansion_tokens": False,
        "skiplist_words": PUNCTUATION,
    }
    dense = Dense(32, 8, bias=False, activation_function=torch.nn.Identity())
    (source / "1_Dense").mkdir()
    dense.save(str(source / "1_Dense"))
    config = json.loads((source / "1_Dense/config.json").read_text())
    kept = {key: value for key, value in config.items() if "module" not in key}
    (source / "1_Dense/config.json").write_text(json.dumps(kept))
    for name, content in {
        "modules.json": listed,
        "config_sentence_transformers.json": settings,
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
    }.items():
        (source / name).write_text(json.dumps(content))
    ok("import", source, tmp_path / "run")
    model = bert_jax.load(tmp_path / "run")
    tokens = model.tokenizer
    assert tokens.encode(f"{query}w1") == list(tokens.ids_of([query.strip(), "w1"]))[::-1]
    assert_equal_models(model, theirs(source))
    ok("export", tmp_path / "run", tmp_path / "exported")
    assert_equal_models(model, theirs(tmp_path / "exported"))
    theirs(source).save(str(tmp_path / "saved"), create_model_card=False)  # in their new layout
    again = bert_jax.load(tmp_path / "saved")
    for prompt in PROMPTS:
        one, other = (np.concatenate(each.encode(TEXTS, prompt=prompt)) for each in (again, model))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("file", "change", "setting"),
    [
        ("1_Dense/config.json", {"bias": True}, "bias"),
        ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "module_input_name"),
        ("3_Normalize/config.json", {"module_output_name": "x"}, "module_output_name"),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, "skiplist_tasks.0"),
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [7]}, "keep_only_token_ids"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "meanmaxsim"}, "similarity"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "min"}}, "query_expansion"),
    ],
)
def test_other_modules_are_refused(
    file: str, change: dict[str, Any], setting: str, bert: Path, tmp_path: Path
) -> None:
    source = tmp_path / "changed"
    shutil.copytree(bert, source)
    values = json.loads((source / file).read_text())
    (source / file).write_text(json.dumps(values | change))
    assert setting in refused("import", source, tmp_path / "run")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_by_them(tmp_path_factory.mktemp("bert"), "bert")


SCORES = np.random.default_rng(5).normal(size=(6, 3)).astype(np.float32)
# Kind: number of texts in a row, our settings, and the peer's loss of a model.
LOSSES: dict[str, tuple[int, dict[str, Any], Any]] = {
    "pairs": (2, {}, losses.MultiVectorMultipleNegativesRankingLoss),
    "hard negatives": (3, {}, losses.MultiVectorMultipleNegativesRankingLoss),
    "margin_mse": (4, {"kind": "margin_mse"}, losses.MultiVectorMarginMSELoss),
    "kl": (
        4,
        {"kind": "kl", "temperature": 0.5, "teacher_temperature": 3.0},
        lambda model: losses.MultiVectorDistillKLDivLoss(
            model, student_temperature=0.5, teacher_temperature=3.0
        ),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_equal_sentence_transformers(
    name: str, bert: Path, tmp_path: Path
) -> None:
    texts_of_a_row, settings, make_loss = LOSSES[name]
    training = LateInteractionLossSection.model_validate(settings)
    rows = [
        TextTuple(
            at,
            tuple(TEXTS[at * 4 : at * 4 + texts_of_a_row]),
            None,
            at,
            SCORES[at] if training.taught else None,
        )
        for at in range(6)
    ]
    peer = theirs(bert)
    features = []
    for at in range(texts_of_a_row):
        task = "document" if at else "query"
        prompt = peer.prompts[task]
        features.append(peer.preprocess([row.texts[at] for row in rows], prompt=prompt, task=task))
        features[-1]["task"] = task
    expected = make_loss(peer)(features, torch.tensor(SCORES))
    expected.backward()
    named = peer[0].auto_model.named_parameters()
    wanted = {each: value.grad.numpy() for each, value in named if value.grad is not None}

    ok("import", bert, tmp_path / "run")
    run, model = open_run(tmp_path / "run"), bert_jax.load(tmp_path / "run")
    head = run.heads.late_interaction
    assert head is not None
    task = LateInteractionTask(
        architecture=model.architecture.with_dropout(0.0),
        execution=Execution(dtype="float32"),
        heads=run.heads,
        training=training,
    )
    split = TupleSplit(
        rows,
        prefixes=[head.query_prefix] + [head.passage_prefix] * (texts_of_a_row - 1),
        tokenizer=run.tokenizer,
        max_length=20,
        comparison=comparison_of(head),
    )
    pad = run.tokenizer.special.pad
    batch = collate(split, np.arange(6), batch_size=6, length=20, pad_id=pad)
    graphdef, key = define_model(task.build).graphdef, jax.random.key_data(jax.random.key(0))

    def loss(params: Any, batch: Any) -> jax.Array:
        rngs = Rngs(key, None)
        merged = nnx.merge(graphdef, params)
        return task.loss(merged, batch, divisors={}, rngs=rngs, frozen={})[0]

    value, gradients = jax.jit(jax.value_and_grad(loss))(
        model.params, jax.tree.map(jnp.asarray, batch)
    )
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    gradients = jax.device_get(gradients)
    kernel, other = gradients.pop("embedding")["dense"]["kernel"].T, peer[1].linear.weight.grad
    np.testing.assert_allclose(kernel, other.numpy(), atol=1e-5 * float(abs(other).max()))
    heads = run.heads.model_copy(update={"late_interaction": None})
    found = under_their_names(gradients, model.architecture, heads)
    assert len(wanted) > 30
    for parameter, gradient in wanted.items():
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(
            found[f"bert.{parameter}"], gradient, atol=1e-5 * largest, rtol=0
        )
