"""Models are downloaded from and uploaded to a hub by name."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from transformers import BertForMaskedLM

import bert_jax
from bert_jax.interop.sources import is_hub_name
from bert_jax.verbs.import_checkpoint import find_origin
from tests.feature_extraction.runs import PIECES
from tests.interop.hf_checkpoints import hf_config, hf_model, write_flax
from tests.interop.hub_server import COMMIT, Hub, go_online, serve
from tests.project import ok, refused, refuses, says

NAME, OF_FLAX = "someone/tiny-bert", "someone/tiny-flax-bert"
TOKEN = "hf_secretsecretsecretsecret"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    directory = tmp_path_factory.mktemp("hub")
    hf_model(BertForMaskedLM, hf_config(vocab_size=len(PIECES))).save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    (directory / "spiece.model").write_bytes(b"not read beside a vocab.txt")
    (directory / "large.msgpack").write_bytes(b"is not for us")
    flax = tmp_path_factory.mktemp("flax")
    write_flax(hf_model(BertForMaskedLM, hf_config(vocab_size=len(PIECES))), flax)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (flax / name).write_bytes((directory / name).read_bytes())
    with serve({NAME: directory, OF_FLAX: flax}) as served:
        yield served


@pytest.fixture(autouse=True)
def online(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_online(hub, monkeypatch, tmp_path / "cache", TOKEN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    hub.requests.clear()
    hub.gated.clear()


def test_import_by_name_records_the_commit_not_the_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ok("import", f"{NAME}@main", "run")
    origin = json.loads((tmp_path / "run" / "provenance.json").read_text())["imported_from"]
    assert (origin["hub"], origin["revision"]) == (NAME, COMMIT)
    expected = {"config.json", "model.safetensors", "vocab.txt", "spiece.model"}
    assert expected <= origin["sha256"].keys()
    assert not any("msgpack" in path for _, path, _ in hub.requests)
    assert {found for *_, found in hub.requests} == {f"Bearer {TOKEN}"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert TOKEN.encode() not in b"".join(file.read_bytes() for file in files)
    assert TOKEN not in done
    # The network is off now, so all files come from the cache.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetched = len(hub.requests)
    model = bert_jax.load(NAME)
    assert COMMIT in repr(model)
    text = "w1 [MASK] w2"
    assert model.fill_mask(text) == bert_jax.load("run").fill_mask(text)
    first, again = find_origin(NAME), find_origin(f"hf://{NAME}@{COMMIT}")
    assert first == again
    assert first.name == f"{NAME}@{COMMIT}"
    assert Path(first.run_dir, "config.yaml").exists()
    assert len(hub.requests) == fetched


def test_flax_weights_are_fetched_if_there_are_no_others() -> None:
    text = "w1 [MASK] w2"
    assert bert_jax.load(OF_FLAX).fill_mask(text) == bert_jax.load(NAME).fill_mask(text)


def test_an_export_is_pushed(hub: Hub, tmp_path: Path) -> None:
    ok("import", NAME, "run")
    done = ok("export", "run", "out", "--push", "me/mine")
    assert f"{hub.address}/me/mine/commit/{COMMIT}" in done
    pushed = hub.pushed["me/mine"]
    assert pushed["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    assert {"README.md", "config.json", "vocab.txt"} <= pushed.keys()
    assert hub.created[-1]["name"] == "mine"
    assert "public" not in str(hub.created[-1].get("visibility"))


@pytest.mark.parametrize(
    ("name", "key", "place"),
    [
        ("someone/tiny-berd", "hub.not_found", "someone/tiny-berd"),
        (f"{NAME}@v9", "hub.revision", NAME),
        ("someone/gated", "hub.gated", "someone/gated"),
        ("hf://nobody", "hub.model_name", "hf://nobody"),
    ],
)
def test_missing_and_forbidden_models_are_one_line(
    hub: Hub, name: str, key: str, place: str
) -> None:
    hub.gated.add("someone/gated")
    done = refused("import", name, "run")
    says(done, key=key, place=place)
    assert not Path("run").exists()


def test_a_missing_hub_or_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with refuses("hub.not_cached", place=NAME, server="http://127.0.0.1:9"):
        bert_jax.load(NAME)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with refuses("install.missing", place="huggingface_hub"):
        bert_jax.load(NAME)


def test_paths_are_not_hub_names(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert is_hub_name("google-bert/bert-base-uncased")
    assert is_hub_name("google-bert/bert-base-uncased@v1.0")
    for path in ("runs/misspelt", "run", "./a/b", "/a/b", "a/b/c", "gs://a/b"):
        assert not is_hub_name(path), path
