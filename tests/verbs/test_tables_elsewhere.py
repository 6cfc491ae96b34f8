"""Tables on a hub or in a bucket."""

import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from tests.interop.hub_server import COMMIT, go_online, serve
from tests.project import ok
from tests.tasks.runs import tiny_config

NAME = "someone/words"
TOKEN = "hf_secretsecretsecretsecret"


def test_a_hub_dataset_is_pinned_and_works_offline(
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
    # From here on, the server is down.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ok("predict", run, tmp_path / "p.csv", "--input", pinned)
    assert (tmp_path / "p.csv").read_text().startswith('"id","prediction"\n')
