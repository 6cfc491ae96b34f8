"""Tables that are no local files: of a dataset on a hub, in a bucket."""

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from tests.interop.hub_server import COMMIT, go_online, serve
from tests.project import ok, refused
from tests.tasks.runs import tiny_config

NAME = "someone/words"
TOKEN = "hf_secretsecretsecretsecret"


def test_a_dataset_by_name_is_fine_tuned_on_pinned_and_predicted_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, epochs=1, max_length=8)
    task = config["finetune"]["task"]
    served = tmp_path / "served"
    served.mkdir()
    for role in ("train", "dev"):
        Path(task[role]).rename(served / f"{role}{Path(task[role]).suffix}")
        task[role] = f"hf://datasets/{NAME}"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with serve({f"datasets/{NAME}": served}) as hub:
        go_online(hub, monkeypatch, tmp_path / "cache", TOKEN)
        said = ok("finetune", tmp_path / "config.yaml")
    run = Path(config["run_dir"])
    held = yaml.safe_load((run / "config.yaml").read_text())["finetune"]["task"]
    pinned = f"hf://datasets/{NAME}@{COMMIT}/train.csv"
    assert held["train"] == pinned
    record = json.loads((run / "provenance.json").read_text())["files"]
    assert record["train"]["hub"] == pinned
    assert len(record["dev"]["sha256"]) == 64
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert TOKEN.encode() not in b"".join(files)
    assert TOKEN not in said
    # The server is gone.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ok("predict", run, tmp_path / "p.csv", "--input", pinned)
    assert (tmp_path / "p.csv").read_text().startswith('"id","prediction"\n')


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fill-mask", "s3://bucket/run", "[MASK]"), "s3://"),
        (("evaluate", "s3://bucket/run"), "s3://"),
        (("pretrain", "run.yaml", "tokenizer=s3://bucket/tokenizer"), "s3://"),
        (("vocab", "run.yaml", "vocab.input=hf://datasets/a/b/c.txt"), "refused"),
    ],
)
def test_storage_that_cannot_be_reached_is_one_line(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    Path("run.yaml").write_text(
        "run_dir: r\ntokenizer: t\nmodel: {size: tiny}\nvocab: {input: x, output: t, size: 99}\n"
        "train: {phases: [{dataset: d, steps: 1, seq_length: 8, batch_size: 8}]}\n"
    )
    line = refused(*words)
    if told == "s3://" and importlib.util.find_spec("s3fs") is None:
        told = "pip install s3fs"
    assert told in line
    assert not Path("r").exists()
