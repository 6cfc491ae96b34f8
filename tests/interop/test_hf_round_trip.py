"""Models of all Hugging Face classes survive import and export; our own run is exported."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from transformers import (
    AutoTokenizer,
    BertConfig,
    PreTrainedModel,
    XLMRobertaForMaskedLM,
)

from bert_jax.encoders.registry import SECTIONS
from bert_jax.errors import UserError
from bert_jax.interop.difference import largest_difference
from bert_jax.interop.hf_checkpoint import read_hf, write_hf
from bert_jax.interop.hf_config import format_of
from bert_jax.interop.safetensors_file import SafetensorsFile
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.text import load_tokenizer
from bert_jax.verbs.export import export
from tests.interop.hf_checkpoints import (
    Imported,
    fresh_run,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    model_class,
    read_run,
    save,
    small_config,
    stored,
    torch_inputs,
    write_flax,
    write_tokenizer,
)
from tests.project import ok, refused, refuses, says

pytestmark = pytest.mark.slow

LABELS = {0: "against", 1: "neutral", 2: "for"}
THREE = {"id2label": LABELS, "label2id": {name: index for index, name in LABELS.items()}}
SINGLE = "single_label_classification"

GLOBAL, LOCAL = "full_attention", "sliding_attention"
THETAS = {
    GLOBAL: {"rope_type": "default", "rope_theta": 500.0},
    LOCAL: {"rope_type": "default", "rope_theta": 50.0},
}


def alternating(layers: int, every: int) -> list[str]:
    """Returns the types of layers if every n-th layer is global."""
    return [LOCAL if layer % every else GLOBAL for layer in range(layers)]


# Keys of an export that only transformers 4 reads, and one that names NeoBERT's code.
OLDER = {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "rope_theta"}
OLDER |= {"auto_map"}

# Cases by name: model class, changes to the configuration, arguments of the class.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "pretraining": ("BertForPreTraining", {"hidden_act": "gelu_new"}, {}),
    "masked-lm": ("BertForMaskedLM", {}, {}),
    "next-sentence": ("BertForNextSentencePrediction", {"hidden_act": "relu"}, {}),
    "sequence": ("BertForSequenceClassification", {**THREE, "problem_type": SINGLE}, {}),
    "sequence-multi-label": (
        "BertForSequenceClassification",
        {**THREE, "problem_type": "multi_label_classification"},
        {},
    ),
    "sequence-unsaid": (
        "BertForSequenceClassification",
        {**THREE, "classifier_dropout": 0.3},
        {},
    ),
    "sequence-regression": (
        "BertForSequenceClassification",
        {"num_labels": 1, "problem_type": "regression"},
        {},
    ),
    "multiple-choice": ("BertForMultipleChoice", {}, {}),
    "token": ("BertForTokenClassification", THREE, {}),
    "question-answering": ("BertForQuestionAnswering", {"hidden_act": "gelu_new"}, {}),
    "bare": ("BertModel", {"num_hidden_layers": 3}, {}),
    "bare-without-pooler": ("BertModel", {}, {"add_pooling_layer": False}),
    "modern-masked-lm": (
        "ModernBertForMaskedLM",
        {"num_hidden_layers": 5, "layer_types": alternating(5, 2), "classifier_activation": "relu"},
        {},
    ),
    "modern-sequence": (
        "ModernBertForSequenceClassification",
        {**THREE, "classifier_pooling": "mean", "problem_type": SINGLE, "norm_eps": 1e-6},
        {},
    ),
    "modern-sequence-regression": (
        "ModernBertForSequenceClassification",
        {"num_labels": 1, "problem_type": "regression", "classifier_dropout": 0.3},
        {},
    ),
    "modern-token": (
        "ModernBertForTokenClassification",
        {**THREE, "local_attention": 6, "rope_parameters": THETAS},
        {},
    ),
    "modern-question-answering": (
        "ModernBertForQuestionAnswering",
        {"num_hidden_layers": 1, "hidden_activation": "gelu_new"},
        {},
    ),
    "modern-multiple-choice": (
        "ModernBertForMultipleChoice",
        {"classifier_pooling": "mean", "attention_dropout": 0.1, "mlp_dropout": 0.2},
        {},
    ),
    "causal": ("BertLMHeadModel", {"is_decoder": True}, {}),
    "roberta-causal": ("RobertaForCausalLM", {"is_decoder": True}, {}),
    "roberta-masked-lm": ("RobertaForMaskedLM", {"hidden_act": "relu", "num_hidden_layers": 1}, {}),
    "roberta-sequence": (
        "RobertaForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "layer_norm_eps": 1e-5},
        {},
    ),
    "roberta-token": ("RobertaForTokenClassification", {**THREE, "type_vocab_size": 2}, {}),
    "roberta-question-answering": ("RobertaForQuestionAnswering", {"vocab_size": 129}, {}),
    "roberta-multiple-choice": ("RobertaForMultipleChoice", {"hidden_size": 36}, {}),
    "roberta-bare": ("RobertaModel", {"num_hidden_layers": 3}, {}),
    "xlm-roberta-masked-lm": ("XLMRobertaForMaskedLM", {}, {}),
    "camembert-sequence": ("CamembertForSequenceClassification", {"num_labels": 5}, {}),
    "electra-pretraining": ("ElectraForPreTraining", {"num_hidden_layers": 1}, {}),
    "electra-masked-lm": ("ElectraForMaskedLM", {"hidden_act": "relu", "embedding_size": 32}, {}),
    "electra-sequence": (
        "ElectraForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "embedding_size": 48},
        {},
    ),
    "electra-token": ("ElectraForTokenClassification", {**THREE, "vocab_size": 129}, {}),
    "electra-question-answering": ("ElectraForQuestionAnswering", {"hidden_size": 36}, {}),
    "electra-multiple-choice": ("ElectraForMultipleChoice", {}, {}),
    "electra-bare": ("ElectraModel", {"num_hidden_layers": 3}, {}),
    "distil-masked-lm": ("DistilBertForMaskedLM", {"activation": "gelu_new", "n_layers": 1}, {}),
    "distil-sequence": (
        "DistilBertForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "seq_classif_dropout": 0.4},
        {},
    ),
    "distil-token": ("DistilBertForTokenClassification", {**THREE, "dropout": 0.3}, {}),
    "distil-question-answering": ("DistilBertForQuestionAnswering", {"qa_dropout": 0.0}, {}),
    "distil-multiple-choice": ("DistilBertForMultipleChoice", {"dim": 36, "n_heads": 3}, {}),
    "distil-bare": ("DistilBertModel", {"hidden_dim": 50, "attention_dropout": 0.2}, {}),
    "albert-pretraining": (
        "AlbertForPreTraining",
        {"num_hidden_layers": 3, "num_hidden_groups": 2, "classifier_dropout_prob": 0.2},
        {},
    ),
    "albert-masked-lm": ("AlbertForMaskedLM", {"vocab_size": 129, "hidden_act": "relu"}, {}),
    "albert-sequence": (
        "AlbertForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "embedding_size": 32},
        {},
    ),
    "albert-token": ("AlbertForTokenClassification", {**THREE, "num_hidden_groups": 2}, {}),
    "albert-question-answering": ("AlbertForQuestionAnswering", {"hidden_size": 36}, {}),
    "albert-multiple-choice": ("AlbertForMultipleChoice", {"num_hidden_layers": 1}, {}),
    "albert-bare": ("AlbertModel", {"num_hidden_layers": 3}, {}),
    "euro-masked-lm": (
        "EuroBertForMaskedLM",
        {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": THETAS[GLOBAL]},
        {},
    ),
    "euro-sequence": (
        "EuroBertForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "classifier_pooling": "mean", "rms_norm_eps": 1e-3},
        {},
    ),
    "euro-token": (
        "EuroBertForTokenClassification",
        {**THREE, "attention_dropout": 0.1, "hidden_act": "gelu"},
        {},
    ),
    "euro-bare": ("EuroBertModel", {"hidden_size": 36, "num_attention_heads": 3}, {}),
    "neo-masked-lm": ("NeoBERTLMHead", {"num_attention_heads": 4}, {}),
    "neo-sequence": (
        "NeoBERTForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "norm_eps": 1e-3},
        {},
    ),
    "neo-bare": ("NeoBERT", {"hidden_size": 36, "num_attention_heads": 3}, {}),
    "modern-bare": ("ModernBertModel", {"hidden_size": 36, "num_attention_heads": 3}, {}),
    "deberta-masked-lm": ("DebertaV2ForMaskedLM", {"embedding_size": 24}, {}),
    "deberta-sequence": (
        "DebertaV2ForSequenceClassification",
        {**THREE, "problem_type": SINGLE, "cls_dropout": 0.3, "pooler_dropout": 0.2},
        {},
    ),
    "deberta-token": (
        "DebertaV2ForTokenClassification",
        {**THREE, "share_att_key": False, "pos_att_type": ["c2p"], "type_vocab_size": 2},
        {},
    ),
    "deberta-question-answering": (
        "DebertaV2ForQuestionAnswering",
        {"position_biased_input": True, "position_buckets": -1, "max_relative_positions": 20},
        {},
    ),
    "deberta-multiple-choice": ("DebertaV2ForMultipleChoice", {"norm_rel_ebd": "none"}, {}),
    "deberta-bare": ("DebertaV2Model", {"num_hidden_layers": 3, "pos_att_type": "p2c"}, {}),
}
# Number of pieces in cases with more embedding rows.
PIECES = {
    "masked-lm": 143,
    "euro-masked-lm": 143,
    "neo-masked-lm": 143,
    "token": 121,
    "modern-masked-lm": 143,
}
ROWS = 6
# Expected labels and problem of the imported run.
MEANING: dict[str, tuple[tuple[str, ...], str | None]] = {
    "sequence": (tuple(LABELS.values()), "single_label"),
    "sequence-multi-label": (tuple(LABELS.values()), "multi_label"),
    "sequence-unsaid": (tuple(LABELS.values()), None),
    "sequence-regression": (("LABEL_0",), "regression"),
    "token": (tuple(LABELS.values()), None),
    "modern-sequence": (tuple(LABELS.values()), "single_label"),
    "modern-sequence-regression": (("LABEL_0",), "regression"),
    "modern-token": (tuple(LABELS.values()), None),
    "euro-sequence": (tuple(LABELS.values()), "single_label"),
    "euro-token": (tuple(LABELS.values()), None),
    "neo-sequence": (tuple(LABELS.values()), "single_label"),
    "electra-sequence": (tuple(LABELS.values()), "single_label"),
    "electra-token": (tuple(LABELS.values()), None),
    "distil-sequence": (tuple(LABELS.values()), "single_label"),
    "distil-token": (tuple(LABELS.values()), None),
    "albert-sequence": (tuple(LABELS.values()), "single_label"),
    "albert-token": (tuple(LABELS.values()), None),
    "roberta-sequence": (tuple(LABELS.values()), "single_label"),
    "roberta-token": (tuple(LABELS.values()), None),
    "deberta-sequence": (tuple(LABELS.values()), "single_label"),
    "deberta-token": (tuple(LABELS.values()), None),
    "camembert-sequence": (tuple(f"LABEL_{number}" for number in range(5)), None),
}


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round_trip")


def loaded(kind: str, directory: Path, **options: Any) -> PreTrainedModel:
    """Loads a directory with `from_pretrained`, and asserts that it reports no problem."""
    model, faults = model_class(kind).from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager", **options
    )
    assert {name: list(found) for name, found in faults.items() if found} == {}
    return model.eval()


def test_the_cases_cover_every_class() -> None:
    found = {kind for kind, _, _ in CASES.values()}
    for each in map(format_of, SECTIONS):
        first, *others = each.model_types
        assert each.class_names(first).keys() <= found
        for name in others:  # the same classes under other names
            assert each.class_names(name).keys() & found


# These encoders share BERT's heads of tasks.
RARELY = [
    f"{encoder}-{head}"
    for encoder in ("roberta", "electra", "distil", "albert")
    for head in ("token", "question-answering", "multiple-choice")
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.chaos] * (case in RARELY)) for case in CASES],
)
def test_round_trip_keeps_bytes_and_outputs(where: Path, case: str) -> None:
    kind, changes, options = CASES[case]
    config = small_config(kind, **changes)
    model = hf_model(model_class(kind), config, **options)
    source = save(model, where / case, pieces=PIECES.get(case))
    found = import_run(source, where / f"{case}-run")
    output = export(str(where / f"{case}-run"), str(where / f"{case}-out"), to="hf", kind=kind)

    before, after = stored(source), stored(output)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert (after[name].dtype, after[name].shape) == (tensor.dtype, tensor.shape), name
        assert after[name].tobytes() == tensor.tobytes(), name

    told, again = config.to_dict(), type(config).from_pretrained(output).to_dict()
    assert {key for key in again if again[key] != told.get(key, ...)} <= OLDER - told.keys()
    assert json.loads((output / "config.json").read_text())["architectures"] == [kind]

    for one, other in zip(answers(model), answers(loaded(kind, output, **options)), strict=True):
        assert one.tobytes() == other.tobytes()

    heads = found.run.heads
    assert (heads.labels, heads.problem) == MEANING.get(case, ((), None))
    if heads.task is not None:
        assert_same_logits(found, model)


def assert_same_logits(found: Imported, model: PreTrainedModel) -> None:
    """Asserts that our task head computes Hugging Face's logits."""
    task, batch, theirs = found.run.heads.task, mixed_batch(model.config, rows=ROWS), answers(model)
    expected = np.stack(theirs, axis=-1) if task == "question_answering" else theirs[0]
    if task == "multiple_choice":
        expected = expected.reshape(ROWS, 1)  # our logits have a row per choice
    bound = found.model
    ours_batch = jax_batch(batch)
    hidden = bound.hidden(ours_batch, dropout_key=None)
    ours = np.asarray(bound.task_logits(hidden, ours_batch["segment_ids"]))
    assert (ours.dtype, ours.shape) == (np.float32, expected.shape)
    if not found.run.heads.scores_rows:
        real = batch["segment_ids"] == 1
        ours, expected = ours[real], expected[real]
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


def answers(model: PreTrainedModel) -> list[np.ndarray]:
    """Returns all outputs of a model for a batch. A multiple-choice question has two rows."""
    inputs = torch_inputs(mixed_batch(model.config, rows=ROWS))
    if not hasattr(model.config, "type_vocab_size"):
        del inputs["token_type_ids"]
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: rows.unflatten(0, (-1, 2)) for name, rows in inputs.items()}
    with torch.no_grad():
        # Copy the weights: memory-mapped weights may be unaligned, which changes rounding.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        options = {"use_cache": False} if getattr(model.config, "is_decoder", False) else {}
        return [found.numpy() for found in model(**inputs, **options).to_tuple()]


def test_an_imported_run_is_exported_under_the_name_of_its_source(tmp_path: Path) -> None:
    model = hf_model(XLMRobertaForMaskedLM, small_config("XLMRobertaForMaskedLM"))
    write_flax(model, tmp_path)
    write_tokenizer(tmp_path, model.config.vocab_size)
    config = json.loads((tmp_path / "config.json").read_text())
    named = config | {"architectures": ["XLMRobertaForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(named))
    ok("import", tmp_path, tmp_path / "run")
    for name, options in (
        ("XLMRobertaForMaskedLM", []),
        ("CamembertForMaskedLM", ["--as", "CamembertForMaskedLM"]),
    ):
        ok("export", tmp_path / "run", tmp_path / name, *options)
        again = loaded(name, tmp_path / name)
        for one, other in zip(again.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)
    wrong = refused("export", tmp_path / "run", tmp_path / "no", "--as", "CamembertForPreTraining")
    assert wrong.key == "export.class_unknown"


def jax_batch(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in batch.items()}


@pytest.fixture(scope="module")
def own_run(where: Path) -> Imported:
    """Our own run with random parameters and a padded vocabulary."""
    tokenizer_dir = where / "own-tokenizer"
    tokenizer_dir.mkdir()
    write_tokenizer(tokenizer_dir, 150)
    return fresh_run(where / "own", load_tokenizer(tokenizer_dir))


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertForMaskedLM", "BertModel"])
def test_exported_run_loads_without_key_errors_and_agrees(
    where: Path, own_run: Imported, kind: str
) -> None:
    output = where / f"own-{kind}"
    export(str(own_run.run.directory), str(output), to="hf", kind=kind)
    model = loaded(kind, output)
    assert model.config.vocab_size == own_run.run.architecture.vocab_size == 150
    arrays = mixed_batch(model.config, rows=ROWS)
    batch, real = jax_batch(arrays), arrays["segment_ids"] == 1
    ours = own_run.model
    hidden = ours.hidden(batch, dropout_key=None)
    pooled = ours.pooler(hidden[:, :1])
    everywhere = jnp.broadcast_to(jnp.arange(real.shape[1]), real.shape)
    mlm = np.asarray(ours.mlm_logits(hidden, everywhere))[real]
    assert (mlm[:, 150:] < -1e8).all()  # logits of rows that pad the vocabulary
    wanted = {
        "BertForPreTraining": [mlm[:, :150], ours.next_sentence(pooled)[:, 0]],
        "BertForMaskedLM": [mlm[:, :150]],
        "BertModel": [np.asarray(hidden)[real], pooled[:, 0]],
    }
    found = [answer[real] if answer.ndim == 3 else answer for answer in answers(model)]
    for answer, expected in zip(found, wanted[kind], strict=True):
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)


def test_a_model_with_one_token_type_accepts_pairs(tmp_path: Path) -> None:
    config = hf_config(type_vocab_size=1)
    source = save(hf_model(transformers.BertForPreTraining, config), tmp_path / "hf")
    said = ok("import", source, tmp_path / "run")
    assert "type_vocab_size is 1: both spans of a pair get token type 0" in said
    found = read_run(tmp_path / "run")
    assert found.run.architecture.model_dump()["type_vocab_size"] == 1
    batch = jax_batch(mixed_batch(config))
    pairs = batch | {"token_type_ids": batch["segment_ids"]}
    one, both = (found.model.hidden(each, dropout_key=None) for each in (batch, pairs))
    np.testing.assert_array_equal(both, one)  # mixed_batch has only type 0
    assert not batch["token_type_ids"].any()
    ok("export", tmp_path / "run", tmp_path / "back")
    assert BertConfig.from_pretrained(tmp_path / "back").type_vocab_size == 1
    rows = AutoTokenizer.from_pretrained(tmp_path / "back")("w1", "w2", return_tensors="pt")
    assert "token_type_ids" not in rows  # type 1 would be an index outside the table
    transformers.BertForPreTraining.from_pretrained(tmp_path / "back")(**rows)


def test_an_export_tokenizes_like_its_run(where: Path, own_run: Imported) -> None:
    output = where / "tokenized"
    export(str(own_run.run.directory), str(output), to="hf")
    text = "w1 W7 w12w3 unknown"
    theirs = AutoTokenizer.from_pretrained(output)
    assert theirs(text, add_special_tokens=False)["input_ids"] == list(
        own_run.run.tokenizer.encode(text)
    )
    special = own_run.run.tokenizer.special
    assert theirs("w1", "w2")["input_ids"][0] == special.cls
    assert theirs.model_max_length == own_run.run.architecture.max_position_embeddings


def test_the_largest_difference_of_the_written_files_is_shown(
    where: Path, own_run: Imported
) -> None:
    output, run = where / "compared", own_run.run
    shown = ok("export", run.directory, output).splitlines()
    assert shown[-1].endswith(" 0")
    model = Pretrained(run.architecture, run.heads, own_run.params, run.tokenizer)
    written = read_hf(output)
    assert largest_difference(model, written) == 0
    written.params["mlm"]["bias"][7] += 0.5
    assert largest_difference(model, written) == pytest.approx(0.5, rel=1e-5)
    other = written.architecture.model_copy(update={"layer_norm_eps": 0.1})
    assert largest_difference(model, written._replace(architecture=other)) > 0.5
    (output / "bare").mkdir()
    write_hf(output / "bare", model, kind="BertModel")
    bare = read_hf(output / "bare")
    bare.params["pooler"]["dense"]["bias"] += 9
    assert largest_difference(model, bare) > 0.1


def test_a_flipped_bit_in_exported_weights_is_refused(where: Path, own_run: Imported) -> None:
    output = where / "flipped"
    export(str(own_run.run.directory), str(output), to="hf")
    weights = output / "model.safetensors"
    whole = weights.read_bytes()
    rng = np.random.default_rng(1)
    header = int.from_bytes(whole[:8], "little") + 8
    # With this seed, no flipped bit is in the metadata's key `bert_jax_sha256`. Damage to the key
    # would hide the checksum, as if another program had written the file.
    places = [*rng.integers(8, header, 40), *rng.integers(header, len(whole), 40)]
    for place in map(int, places):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        weights.write_bytes(flipped)
        with pytest.raises(UserError) as caught:
            SafetensorsFile(weights)
        says(caught.value, place=str(weights))
    with refuses("weights.checksum", place=weights, name="bert_jax_sha256"):
        import_run(output, where / "of-flipped")
    assert not (where / "of-flipped").exists()
    weights.write_bytes(whole)
    SafetensorsFile(weights)
    # A file rewritten by another program has no checksum, and can be read.
    safetensors.torch.save_file(safetensors.torch.load_file(weights), weights)
    SafetensorsFile(weights)
