"""Models of sentence embeddings go to sentence-transformers and come back."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.feature_extraction.extractor import Prompt
from bert_jax.interop.hf_tokenizer import write_hf_tokenizer
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import PoolingSection
from bert_jax.runs.run_directory import open_run
from bert_jax.text import load_wordpiece
from tests.feature_extraction.runs import texts
from tests.interop.hf_checkpoints import hf_model, save, small_config
from tests.interop.hub_server import go_online, serve
from tests.project import ok, refused, refuses, says
from tests.tasks.runs import tiny_run

pytestmark = pytest.mark.slow

TEXTS = texts(1000, longest=60)  # some are longer than the limits below
QUERY, PASSAGE = "w1 w2 w3 ", "w4: "
# Class of Hugging Face's, pooling, width of a Dense module, length 1 or not, limit in tokens.
MODELS: dict[str, tuple[Any, ...]] = {
    "bert": ("BertModel", "mean", 24, True, 20),
    "modernbert": ("ModernBertModel", "cls", None, False, None),
    "roberta": ("RobertaForMaskedLM", "lasttoken", 16, False, 30),
    "electra": ("ElectraModel", "mean", None, True, 24),
    "albert": ("AlbertModel", "cls", None, True, 12),
    "distilbert": ("DistilBertModel", "mean", 24, False, 16),
}


def encoder(kind: str, directory: Path) -> Path:
    config = small_config(kind)
    save(hf_model(getattr(transformers, kind), config), directory)
    write_hf_tokenizer(
        directory,
        load_wordpiece(directory / "vocab.txt", lower_case=True),
        max_length=min(config.max_position_embeddings, 40),
        token_types=getattr(config, "type_vocab_size", 1) > 1,
    )
    return directory


def theirs(directory: Path) -> Any:
    """Loads a directory with sentence-transformers."""
    import sentence_transformers

    return sentence_transformers.SentenceTransformer(str(directory), device="cpu")


def written_by_them(directory: Path, name: str) -> Path:
    """Returns a directory that sentence-transformers saved."""
    import sentence_transformers

    kind, mode, width, normalize, limit = MODELS[name]
    parts = sentence_transformers.sentence_transformer.modules
    first = parts.Transformer(str(encoder(kind, directory / "encoder")), max_seq_length=limit)
    modules = [first, parts.Pooling(32, pooling_mode=mode)]
    if width is not None:
        modules.append(parts.Dense(32, width, activation_function=torch.nn.Identity()))
    if normalize:
        modules.append(parts.Normalize())
    prompts = {"query": QUERY, "document": PASSAGE}
    made = sentence_transformers.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    made.save(str(directory / "saved"), create_model_card=False)
    return directory / "saved"


def tensors(directory: Path) -> dict[str, bytes]:
    """Returns the bytes of all tensors of a directory."""
    return {
        f"{path.parent.relative_to(directory)}/{name}": array.tobytes()
        for path in sorted(directory.rglob("*.safetensors"))
        for name, array in load_file(path).items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_vectors_equal_sentence_transformers_both_ways(name: str, tmp_path: Path) -> None:
    source = written_by_them(tmp_path, name)
    reference = theirs(source)
    run, exported = tmp_path / "run", tmp_path / "exported"
    ok("import", source, run)
    model = bert_jax.load(run)
    prompts: dict[Prompt | None, str] = {None: "", "query": QUERY, "passage": PASSAGE}
    for prompt, text in prompts.items():
        expected = reference.encode(TEXTS, prompt=text)
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(model.encode(TEXTS, prompt=prompt), expected, atol=1e-5 * scale)
    said = ok("export", run, exported)
    assert "differ by at most 0" in said
    assert tensors(exported) == tensors(source)
    again = theirs(exported)
    np.testing.assert_array_equal(again.encode(TEXTS), reference.encode(TEXTS))
    np.testing.assert_array_equal(again.encode_query(TEXTS), reference.encode_query(TEXTS))
    np.testing.assert_array_equal(again.encode_document(TEXTS), reference.encode_document(TEXTS))
    assert again.max_seq_length == reference.max_seq_length
    assert again.similarity_fn_name == reference.similarity_fn_name


def test_a_learned_temperature_stays_here(tmp_path: Path) -> None:
    embedding = PoolingSection(pool="last", projection=12, temperature=0.1, query_prefix="word1 ")
    heads = HeadsSection(pooler=False, mlm=False, next_sentence=False, embedding=embedding)
    run, exported, back = tiny_run(tmp_path, heads=heads), tmp_path / "exported", tmp_path / "back"
    assert "differ by at most 0" in ok("export", run, exported)
    assert "pipeline_tag: sentence-similarity" in (exported / "README.md").read_text()
    ok("import", exported, back)
    kept = {"temperature": None, "max_length": 64}
    assert open_run(back).heads.embedding == embedding.model_copy(update=kept)
    ok("export", back, tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(exported)
    words = ["word1 word2", "good1"]
    first, second = (bert_jax.load(each).encode(words, prompt="query") for each in (run, exported))
    np.testing.assert_array_equal(first, second)


# The files of published models before sentence-transformers 5.4.
MODULE_LIST = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {
        "idx": 3,
        "name": "3",
        "path": "3_Normalize",
        "type": "sentence_transformers.models.Normalize",
    },
]
POOLING = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}
DENSE = {
    "in_features": 32,
    "out_features": 8,
    "bias": False,
    "activation_function": "torch.nn.modules.linear.Identity",
}
PROMPTS = {
    "prompts": {"query": QUERY, "document": PASSAGE, "clustering": "w9 "},
    "default_prompt_name": "query",
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files of an older version, in which Dense has no bias."""
    root = encoder("BertModel", tmp_path_factory.mktemp("published") / "model")
    (root / "1_Pooling").mkdir()
    (root / "2_Dense").mkdir()
    weight = torch.from_numpy(np.random.default_rng(3).normal(size=(8, 32)).astype(np.float32))
    torch.save({"linear.weight": weight}, root / "2_Dense" / "pytorch_model.bin")
    for name, content in {
        "modules.json": MODULE_LIST,
        "1_Pooling/config.json": POOLING,
        "2_Dense/config.json": DENSE,
        "config_sentence_transformers.json": PROMPTS,
        "sentence_roberta_config.json": {"max_seq_length": 600, "do_lower_case": False},
    }.items():
        (root / name).write_text(json.dumps(content))
    return root


def test_older_files_are_read(published: Path, tmp_path: Path) -> None:
    said = ok("import", published, tmp_path / "run")
    assert "clustering" in said
    assert '"w1 w2 w3 "' in said
    run = open_run(tmp_path / "run")
    embedding = run.heads.embedding
    assert embedding is not None
    assert embedding.model_dump() == {
        "pool": "mean",
        "normalize": True,
        "projection": 8,
        "dimensions": None,
        "similarity": None,
        "temperature": None,
        "default_prefix": QUERY,
        "query_prefix": QUERY,
        "passage_prefix": PASSAGE,
        "max_length": 40,  # the model's positions
    }
    files = json.loads((tmp_path / "run" / "provenance.json").read_text())["imported_from"][
        "sha256"
    ]
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/pytorch_model.bin"} <= files.keys()
    model = bert_jax.load(published)
    found = model.encode(TEXTS[:4])
    np.testing.assert_array_equal(model.encode(TEXTS[:4], prompt="query"), found)
    queries = [QUERY + text for text in TEXTS[:4]]  # the default prompt
    states = bert_jax.load(tmp_path / "run").encode(queries, layers="last", pool="mean")
    weight = torch.load(published / "2_Dense" / "pytorch_model.bin")["linear.weight"].numpy()
    vectors = states @ weight.T
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:4]))
    ok("features", tmp_path / "run", tmp_path / "texts.txt", tmp_path / "v.npz")
    np.testing.assert_allclose(np.load(tmp_path / "v.npz")["vectors"], expected, atol=1e-5)


def in_folders(source: Path, directory: Path, *, pooling: str = "1_Pooling") -> Path:
    """Writes the layout of sentence-transformers 0.3, with the encoder in a folder of its own."""
    shutil.copytree(source, directory)
    (directory / "0_Transformer").mkdir()
    for path in list(directory.iterdir()):
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            path.rename(directory / "0_Transformer" / path.name)
    (directory / "1_Pooling").rename(directory / pooling)
    (directory / "config.json").write_text('{"__version__": "0.3.8"}')
    listed = [
        {**MODULE_LIST[0], "path": "0_Transformer"},
        {**MODULE_LIST[1], "path": pooling},
        *MODULE_LIST[2:],
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    return directory


@pytest.mark.parametrize("pooling", ["1_Pooling", "pool of 2020"])
def test_the_encoder_may_have_a_folder(published: Path, tmp_path: Path, pooling: str) -> None:
    older = in_folders(published, tmp_path / "older", pooling=pooling)
    ok("import", older, tmp_path / "run")
    files = json.loads((tmp_path / "run" / "provenance.json").read_text())["imported_from"][
        "sha256"
    ]
    assert {"modules.json", "0_Transformer/model.safetensors", f"{pooling}/config.json"} <= {*files}
    expected = bert_jax.load(published).encode(TEXTS[:3])
    np.testing.assert_array_equal(bert_jax.load(tmp_path / "run").encode(TEXTS[:3]), expected)
    first = bert_jax.load(older).encode(TEXTS[:3])
    np.testing.assert_array_equal(first, expected)
    weights = older / "0_Transformer" / "model.safetensors"
    changed = load_file(weights)
    name = "embeddings.LayerNorm.bias"
    save_file(changed | {name: changed[name] + 1}, weights, metadata={"format": "pt"})
    assert np.abs(bert_jax.load(older).encode(TEXTS[:3]) - first).max() > 1e-3  # another hash


@pytest.mark.parametrize("layout", ["root", "folders"])
def test_modules_are_fetched_from_a_hub(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    source = published if layout == "root" else in_folders(published, tmp_path / "older")
    with serve({"someone/sentences": source}) as hub:
        go_online(hub, monkeypatch, tmp_path / "cache", "hf_secret")
        found = bert_jax.load("someone/sentences").encode(TEXTS[:3], prompt="query")
    expected = bert_jax.load(published).encode(TEXTS[:3], prompt="query")
    np.testing.assert_array_equal(found, expected)


SETTINGS = {
    "cut": {"truncate_dim": 5},
    "cut, by dot products": {"truncate_dim": 5, "similarity_fn_name": "dot"},
    "wider than the vectors": {"truncate_dim": 99},
    "prompts": {
        "prompts": {"query": QUERY, "document": PASSAGE},
        "default_prompt_name": "document",
    },
    "another prompt": {"prompts": {"sts": "w7 "}, "default_prompt_name": "sts"},
    "empty default": {"prompts": {"query": QUERY}, "default_prompt_name": "document"},
    "empty document": {"prompts": {"query": QUERY, "document": "", "passage": PASSAGE}},
}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("case", SETTINGS)
def test_model_settings_equal_sentence_transformers_both_ways(
    case: str, normalize: bool, tmp_path: Path
) -> None:
    source = encoder("BertModel", tmp_path / "model")
    (source / "1_Pooling").mkdir()
    listed = [*MODULE_LIST[:2], *([MODULE_LIST[3]] if normalize else [])]
    for name, content in {
        "modules.json": listed,
        "1_Pooling/config.json": POOLING,
        "config_sentence_transformers.json": SETTINGS[case],
    }.items():
        (source / name).write_text(json.dumps(content))
    reference = theirs(source)
    ok("import", source, tmp_path / "run")
    model = bert_jax.load(tmp_path / "run")
    expected = reference.encode(TEXTS[:40])
    for prompt, vectors in (
        ("query", reference.encode_query(TEXTS[:40])),
        ("passage", reference.encode_document(TEXTS[:40])),
    ):
        np.testing.assert_allclose(model.encode(TEXTS[:40], prompt=prompt), vectors, atol=1e-5)
    for found in (model.encode(TEXTS[:40]), bert_jax.load(source).encode(TEXTS[:40])):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    ok("export", tmp_path / "run", tmp_path / "back")
    again = theirs(tmp_path / "back")
    assert again.similarity_fn_name == reference.similarity_fn_name
    np.testing.assert_allclose(again.encode(TEXTS[:40]), expected, atol=1e-6)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:4]))
    ok("features", tmp_path / "run", tmp_path / "texts.txt", tmp_path / "v.npz")
    np.testing.assert_allclose(np.load(tmp_path / "v.npz")["vectors"], expected[:4], atol=1e-5)


def prompts_in_use(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the texts that sentence-transformers puts before texts, queries and documents."""
    found: list[str] = []
    whole = model.preprocess

    def preprocess(inputs: Any, prompt: str | None = None, **options: Any) -> Any:
        found.append(prompt or "")
        return whole(inputs, prompt=prompt, **options)

    monkeypatch.setattr(model, "preprocess", preprocess)
    for encode in (model.encode, model.encode_query, model.encode_document):
        encode("w1")
    return found


def test_prompts_are_chosen_as_in_sentence_transformers(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, random = tmp_path / "model", np.random.default_rng(5)
    shutil.copytree(published, copy)
    names, refusals = ("query", "document", "passage", "corpus"), 0
    for _ in range(60):
        texts = {name: random.choice([None, "", f"{name}: ", "absent"]) for name in names}
        content = {
            "prompts": {name: text for name, text in texts.items() if text != "absent"},
            "default_prompt_name": random.choice([None, *names]),
        }
        (copy / "config_sentence_transformers.json").write_text(json.dumps(content))
        try:
            expected = prompts_in_use(theirs(copy), monkeypatch)
        except ValueError:  # the default prompt is missing
            refusals += 1
            with refuses("import.default_prompt", found=content["default_prompt_name"]):
                bert_jax.load(copy)
            continue
        embedding = bert_jax.load(copy).heads.embedding
        assert embedding is not None
        assert expected == [
            embedding.default_prefix,
            embedding.query_prefix,
            embedding.passage_prefix,
        ], content
    assert 0 < refusals < 20
    content = {"prompts": {"document": "", "passage": PASSAGE}}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(content))
    assert 'the prompt "passage" is not used' in ok("import", copy, tmp_path / "run")


HARMLESS = {
    "max_seq_length": 12,
    "do_lower_case": False,
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "model_args": {"attn_implementation": "eager", "trust_remote_code": True},
    "tokenizer_args": {"model_max_length": 9},
}


@pytest.mark.parametrize("content", [None, {}, {"max_seq_length": None}, HARMLESS])
def test_settings_of_the_encoder_equal_sentence_transformers(
    content: dict[str, Any] | None, published: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(published, copy)
    (copy / "sentence_roberta_config.json").unlink()
    if content is not None:
        (copy / "sentence_bert_config.json").write_text(json.dumps(content))
    (copy / "2_Dense" / "config.json").write_text(json.dumps(DENSE | {"bias": False}))
    found = bert_jax.load(copy).encode(TEXTS[:40])
    np.testing.assert_allclose(found, theirs(copy).encode(TEXTS[:40]), atol=1e-5)


@pytest.mark.parametrize("length", ["512", True, [512], {}, 0])
def test_a_limit_of_the_tokenizer_is_a_number(
    length: object, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(published, "model")
    Path("model/sentence_roberta_config.json").unlink()
    path = Path("model/tokenizer_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": length}))
    line = refused("import", "model", "run")
    assert line.key == "import.max_length"
    says(line, place=f"{path}: model_max_length")


def test_an_adapter_is_refused(published: Path, tmp_path: Path) -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "some/base", "r": 8}
    for name, whole in {"beside": True, "alone": False, "without modules": False}.items():
        copy = tmp_path / name
        shutil.copytree(published, copy)
        (copy / "adapter_config.json").write_text(json.dumps(adapter))
        if not whole:
            (copy / "config.json").unlink()
            (copy / "model.safetensors").rename(copy / "adapter_model.safetensors")
        if name == "without modules":
            (copy / "modules.json").unlink()
        line = refused("import", copy, tmp_path / "run")
        says(line, key="import.adapter", base='"some/base"')
        with refuses("import.adapter", place=copy / "adapter_config.json"):
            bert_jax.load(copy)


BAD: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    "another module": (
        "modules.json",
        [*MODULE_LIST[:2], {"path": "2_LSTM", "type": "sentence_transformers.models.LSTM"}],
        "import.modules",
        {"found": ["Transformer", "Pooling", "LSTM"]},
    ),
    "another order": (
        "modules.json",
        [*MODULE_LIST[:2], MODULE_LIST[3], MODULE_LIST[2]],
        "import.modules",
        {"found": ["Transformer", "Pooling", "Normalize", "Dense"]},
    ),
    "own code": (
        "modules.json",
        [{"path": "", "type": "custom.Transformer"}, MODULE_LIST[1]],
        "import.modules",
        {"found": ["custom.Transformer", "Pooling"]},
    ),
    "another directory": (
        "modules.json",
        [MODULE_LIST[0], {**MODULE_LIST[1], "path": "../1_Pooling"}],
        "import.module_path",
        {"found": "../1_Pooling", "module": "Pooling"},
    ),
    "damaged list": ("modules.json", "{", "json.invalid", {}),
    "no module": ("modules.json", [], "import.modules", {"found": []}),
    "two poolings": (
        "1_Pooling/config.json",
        {**POOLING, "pooling_mode_cls_token": True},
        "import.pooling",
        {"found": ["cls", "mean"]},
    ),
    "another pooling": (
        "1_Pooling/config.json",
        {"pooling_mode": "weightedmean"},
        "import.pooling",
        {"found": ["weightedmean"]},
    ),
    "prompt not pooled": (
        "1_Pooling/config.json",
        {**POOLING, "include_prompt": False},
        "import.prompt_left_out",
        {},
    ),
    "activation": (
        "2_Dense/config.json",
        {**DENSE, "activation_function": "torch.nn.modules.activation.Tanh"},
        "import.dense",
        {"found": "torch.nn.modules.activation.Tanh"},
    ),
    "residual": ("2_Dense/config.json", {**DENSE, "use_residual": True}, "import.dense", {}),
    "another width": (
        "2_Dense/config.json",
        {**DENSE, "out_features": 9},
        "tensor.shape",
        {"name": "linear.weight", "expected": [9, 32]},
    ),
    "impossible width": (
        "2_Dense/config.json",
        {**DENSE, "out_features": 10**18},
        "setting.value",
        {"setting": "out_features"},
    ),
    "missing bias": ("2_Dense/config.json", {**DENSE, "bias": True}, "tensor.missing", {}),
    "dense on tokens": (
        "2_Dense/config.json",
        {**DENSE, "module_input_name": "token_embeddings"},
        "setting.value",
        {"setting": "module_input_name"},
    ),
    "normalised tokens": (
        "3_Normalize/config.json",
        {"module_input_name": "token_embeddings"},
        "setting.value",
        {"setting": "module_input_name"},
    ),
    "another kind of model": (
        "config_sentence_transformers.json",
        {"model_type": "Unknown"},
        "setting.value",
        {"setting": "model_type", "allowed": ["SentenceTransformer"]},
    ),
    "another similarity": (
        "config_sentence_transformers.json",
        {"similarity_fn_name": "manhattan"},
        "setting.value",
        {"setting": "similarity_fn_name", "found": '"manhattan"'},
    ),
    "missing prompt": (
        "config_sentence_transformers.json",
        {"prompts": {"query": "a"}, "default_prompt_name": "passage"},
        "import.default_prompt",
        {"found": "passage"},
    ),
    "another output": (
        "sentence_bert_config.json",
        {
            "modality_config": {
                "text": {"method": "forward", "method_output_name": "pooler_output"}
            },
            "module_output_name": "sentence_embedding",
        },
        "setting.value",
        {"setting": "module_output_name"},
    ),
    "padding on the left": (
        "sentence_bert_config.json",
        {"tokenizer_args": {"padding_side": "left"}},
        "setting.unknown",
        {"setting": "tokenizer_args.padding_side"},
    ),
    "length of queries": (
        "sentence_bert_config.json",
        {"query_length": 32},
        "setting.value",
        {"setting": "query_length"},
    ),
    "lower-casing": (
        "sentence_bert_config.json",
        {"do_lower_case": True},
        "import.lower_case",
        {},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_other_models_are_refused(case: str, published: Path, tmp_path: Path) -> None:
    name, content, key, values = BAD[case]
    copy = tmp_path / "model"
    shutil.copytree(published, copy)
    if case == "lower-casing":
        cased = load_wordpiece(copy / "vocab.txt", lower_case=False)
        write_hf_tokenizer(copy, cased, max_length=40, token_types=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_text(text)
    line = refused("import", copy, tmp_path / "run")
    assert line.key == key
    says(line, **values)
    assert str(copy) in str(line.place)
