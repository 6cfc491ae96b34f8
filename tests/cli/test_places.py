"""Every path setting and path argument refuses unsupported URLs."""

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

import bert_jax
from tests.project import refused, refuses, says

ADDRESSES = {
    "https://example.org/x": "gs://BUCKET/PATH",
    "file:///tmp/x": "did you mean /tmp/x?",
    "memory://x/y": "gs://BUCKET/PATH",
    "GS://bucket/x": "gs://BUCKET/PATH",
    "gs:///x": "gs://BUCKET/PATH",
    "az://bucket/x": "adlfs",
    "s3://bucket/x": "s3fs",
    "hf://x/y": "gs://BUCKET/PATH",
}
if importlib.util.find_spec("s3fs"):
    del ADDRESSES["s3://bucket/x"]

TABLE = {"kind": "table", "train": "t.csv", "text": "t", "label": "l"}
CONFIG: dict[str, Any] = {
    "run_dir": "runs/a",
    "tokenizer": "tokenizer",
    "vocab": {"input": "x.txt", "output": "tokenizer", "size": 99},
    "examples": {"input": ["x.txt"], "output": "dataset", "tokenizer": "tokenizer"},
    "model": {"size": "tiny"},
    "train": {"phases": [{"dataset": "d", "steps": 1, "seq_length": 8, "batch_size": 8}]},
    "finetune": {"init_from": "runs/b", "task": TABLE},
    "submit": {},
}
# Path settings, each with a verb that reads it.
SETTINGS = [
    *(("vocab", "vocab.input"), ("vocab", "vocab.output"), ("examples", "examples.input")),
    *(("examples", "examples.tokenizer"), ("examples", "examples.output")),
    *(("examples", "examples.input_root"), ("examples", "examples.cleaning.contamination.files")),
    *(("pretrain", "run_dir"), ("pretrain", "tokenizer"), ("pretrain", "model.bert_config")),
    ("pretrain", "train.phases.0.dataset"),
    *(("pretrain", "loader.cache.directory"), ("pretrain", "mesh.compilation_cache.directory")),
    *(("finetune", f"finetune.task.{role}") for role in ("train", "dev", "test")),
    *(("finetune", "finetune.init_from"), ("submit", "submit.bucket")),
]
TASKS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "glue", "name": "mrpc"}, "data"),
    ({"kind": "glue", "name": "mrpc", "data": "tfds"}, "data_dir"),
    *(({"kind": "squad", "version": 1}, role) for role in ("train", "dev", "test")),
    *(({"kind": "token_classification"}, role) for role in ("train", "dev", "test")),
    *(({"kind": "multiple_choice"}, role) for role in ("train", "dev", "test")),
]
# Commands by the argument that the error names. A URL replaces @.
ARGUMENTS = {
    "CONFIG": ["pretrain @", "finetune @", "vocab @", "examples @", "plan @ --topology v5e:4x4"],
    "[FILE]": ["new table @"],
    "--tfrecords": ["examples CONFIG --tfrecords @"],
    "--init-from": ["pretrain CONFIG --init-from @"],
    "RUN_DIR": [
        *("evaluate @", "fill-mask @ [MASK]", "predict @ p.csv", "features @ x.txt out"),
        *("export @ out", "import models/x @"),
    ],
    "--dataset": ["evaluate runs/a --dataset @"],
    "OUTPUT": [
        *("predict runs/a @", "features runs/a x.txt @", "export runs/a @"),
        "mine runs/a x.csv @",
    ],
    "MODEL": ["mine @ x.csv out.jsonl"],
    "TABLE": ["mine runs/a @ out.jsonl"],
    "--corpus": ["mine runs/a x.csv out.jsonl --corpus @"],
    "--reranker": ["mine runs/a x.csv out.jsonl --reranker @"],
    "--input": ["predict runs/a p.csv --input @"],
    "INPUT": ["features runs/a @ out"],
    "SOURCE": ["import @ runs/new"],
    "MODEL...": ["average runs/a @ --output runs/new"],
    "--output": ["average runs/a runs/b --output @"],
    "--tokenizer": ["import models/x runs/new --tokenizer @"],
    "[CONFIG | RUN_DIR]": ["doctor @"],
    "--prices": [
        *("plan CONFIG --topology v5e:4x4 --prices @", "submit CONFIG --prices @"),
    ],
    "--html": ["plan CONFIG --topology v5e:4x4 --html @"],
    "--bucket": [
        *("submit CONFIG --bucket @", "watch job --bucket @", "stop job --bucket @"),
        *("jobs --bucket @", "status job --bucket @", "logs job --bucket @"),
    ],
    "RUN_DIR|JOB": ["status @", "logs @"],
    "JOB": ["watch @", "stop @"],
    "--dir": ["demo --dir @"],
}
MODELS = ("--init-from", "SOURCE", "MODEL", "MODEL...", "--reranker", "finetune.init_from")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a configuration to an empty directory; forbids connections."""

    def connect(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def check(config: Path, words: list[str], address: str, *, name: str) -> None:
    """Asserts that a command refuses the URL in one line and writes no file."""
    expected = ADDRESSES[address]
    if name in MODELS and address.startswith("hf://"):
        return  # a valid name of a model
    line = refused(*(str(config) if word == "CONFIG" else word for word in words))
    assert line.place.endswith(name), line
    says(line, found=address)
    if line.key != "path.not_local":
        assert line.key == "path.address"
        assert expected in str(line)
    assert [path.name for path in config.parent.iterdir()] == [config.name]


@pytest.mark.parametrize("address", ADDRESSES)
def test_path_settings_refuse_other_addresses(config: Path, address: str) -> None:
    for verb, key in SETTINGS:
        # For a list of paths, the message names the item.
        name = f"{key}.0" if key.endswith(".files") else key
        check(config, [verb, "CONFIG", f"{key}={address}"], address, name=name)
    for task, role in TASKS:
        value = yaml.safe_dump(task | {role: address}, default_flow_style=True).strip()
        words = ["finetune", "CONFIG", f"finetune.task={value}"]
        check(config, words, address, name=f"finetune.task.{role}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_path_arguments_refuse_other_addresses(config: Path, address: str) -> None:
    for name, commands in ARGUMENTS.items():
        for command in commands:
            words = [address if word == "@" else word for word in command.split()]
            check(config, words, address, name=name)


@pytest.mark.parametrize("address", ADDRESSES)
def test_functions_refuse_other_addresses(config: Path, address: str) -> None:
    del config
    functions = (
        [bert_jax.evaluate] if address.startswith("hf://") else [bert_jax.evaluate, bert_jax.load]
    )
    for function in functions:
        with refuses("path.address", found=address):
            function(address)
