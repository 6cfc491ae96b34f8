"""Inputs of a job: complete data, names safe in a shell, no secrets."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bert_jax.config import parse_config
from bert_jax.errors import UserError
from bert_jax.launch.host_paths import for_hosts
from bert_jax.launch.section import SubmitSection
from tests.launch.scripted import EIGHT, Provider
from tests.project import ok, refused, refuses


def _shard(root: Path) -> Path:
    return max((root / "dataset32").rglob("*array_record*"), key=lambda path: path.stat().st_size)


def _cut(root: Path) -> None:
    shard = _shard(root)
    shard.write_bytes(shard.read_bytes()[:-1])


def _respell(root: Path) -> None:
    vocab = root / "tokenizer" / "vocab.txt"
    vocab.write_text(vocab.read_text().replace("\nthe\n", "\nteh\n"))


def _another(root: Path) -> None:
    """Replaces the tokenizer with a valid one of another program, without our hash."""
    _respell(root)
    path = root / "tokenizer" / "tokenizer_config.json"
    values = json.loads(path.read_text())
    del values["hash"]
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "key", "place"),
    [
        (_cut, "dataset.file_size", "train.phases.0.dataset"),
        (
            lambda root: shutil.rmtree(root / "dataset48"),
            *("dataset.missing", "train.evaluation.sets.general"),
        ),
        (
            lambda root: shutil.rmtree(root / "dataset32"),
            *("dataset.missing", "train.phases.0.dataset"),
        ),
        (_respell, "tokenizer.hash", "tokenizer"),
        (_another, "dataset.other_tokenizer", "train.phases.0.dataset"),
    ],
    ids=["cut", "held-out set gone", "dataset gone", "tokenizer changed", "another"],
)
def test_incomplete_or_mismatched_data_are_refused(
    provider: Provider,
    config: Path,
    project: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    key: str,
    place: str,
) -> None:
    root = tmp_path / "data"
    for name in ("tokenizer", "dataset32", "dataset48"):
        shutil.copytree(project / name, root / name)
    values = yaml.safe_load(config.read_text())
    values["tokenizer"] = str(root / "tokenizer")
    phase = values["train"]["phases"][0] | {"dataset": {str(root / "dataset32"): 1.0}}
    sets = {"general": str(root / "dataset48")}
    values["train"] |= {"phases": [phase], "evaluation": {"sets": sets}}
    config.write_text(yaml.safe_dump(values))
    damage(root)
    line = refused("submit", config, "--bucket", tmp_path / "b", "--yes")
    assert line.key == key
    name = f".{root / 'dataset32'}" if place.endswith("dataset") else ""
    assert line.place.startswith(f"{place}{name}: {root}")
    assert not (tmp_path / "b").exists()
    assert provider.requests["create"] == 0


@pytest.mark.parametrize(
    "evil", ["$(touch x)", "a;touch x", "a`touch x`", "a\ntouch x", "a\n", "a b"]
)
def test_names_of_a_job_are_safe_in_a_shell(evil: str) -> None:
    """Covers every text setting except the bucket, which commands omit or quote."""
    texts = {name for name, field in SubmitSection.model_fields.items() if "str" in str(field)}
    texts -= {"bucket", "launcher", "provisioning"}
    assert {"name", "zone", "project", "image", "labels", "service_account"} <= texts
    for name in sorted(texts):
        for value in ({"a": evil}, {evil: "a"}) if name == "labels" else (evil,):
            with pytest.raises(UserError, match=rf"submit\.{name}|^topology: found"):
                parse_config({"submit": {name: value}}, source="test")


def test_a_job_has_no_secret_of_the_submitter(
    provider: Provider, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-0f-the-submitter"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, secret)
    begun = ok("submit", config, "--bucket", tmp_path / "b", "--yes")
    shown = [begun]
    for launcher in ("queued-resources", "gke"):
        options = (*EIGHT, "--project", "p", "--bucket", "gs://bucket", "--launcher", launcher)
        paths = ("run_dir=r", "tokenizer=t", "mesh={}", "submit.image=i")
        paths += ("train.phases.0.dataset={d: 0.7, e: 0.3}", "train.phases.1.dataset=d")
        paths += ("train.evaluation.sets={domain: d, general: f}",)
        shown.append(ok("submit", config, *options, *paths, "--dry-run", "--full"))
        assert all(f"gs://bucket/{name}" in shown[-1] for name in "def")
    written = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert len(written) > 5
    for path in written:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                shown += [archive.read(name).decode("latin-1") for name in archive.namelist()]
        else:
            shown.append(path.read_text())
    assert not any(secret in text for text in shown)


def test_hosts_can_reach_every_path_of_a_run() -> None:
    phases = [{"dataset": "data/a", "steps": 1}, {"dataset": "gs://other/b", "steps": 1}]
    train: dict[str, object] = {"phases": phases}
    values = {"run_dir": "runs/base", "tokenizer": "./tok", "train": train}
    assert for_hosts(values, "gs://b")["train"].keys() == {"phases"}
    train["evaluation"] = {"sets": {"domain": "/c"}}
    with refuses("submit.local_path", place="train.evaluation.sets.domain", found="/c"):
        for_hosts(values, "gs://b")
    train["evaluation"] = {"dataset": "data/c", "every": 5}
    found = for_hosts(values, "gs://b")
    assert found["train"]["evaluation"] == {"dataset": "gs://b/data/c", "every": 5}
    assert (found["run_dir"], found["tokenizer"]) == ("gs://b/runs/base", "gs://b/tok")
    assert [phase["dataset"] for phase in found["train"]["phases"]] == [
        "gs://b/data/a",
        "gs://other/b",
    ]
    values["tokenizer"] = "/tmp/tok"
    with refuses("submit.local_path", place="tokenizer", found="/tmp/tok"):
        for_hosts(values, "gs://b")
