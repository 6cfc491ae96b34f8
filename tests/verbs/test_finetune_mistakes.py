"""Every fine-tuning mistake gets one line that names it, and writes no file."""

from pathlib import Path
from typing import Any

import pytest

from tests.project import refused, write_config
from tests.tasks.runs import tiny_config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A valid configuration, in which tests make mistakes."""
    return tiny_config(tmp_path_factory.mktemp("base"), layers=2)


def mistake(tmp_path: Path, values: dict[str, Any], *overrides: str) -> str:
    """Runs `finetune` through the command line and returns its one line."""
    path = write_config(tmp_path / "config.yaml", values | {"run_dir": str(tmp_path / "tuned")})
    line = refused("finetune", path, *overrides)
    assert not (tmp_path / "tuned").exists()
    return line


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("finetune.epoch=2", ["finetune.epoch: unknown key", 'did you mean "epochs"?']),
        ("finetune.task.kind=tabel", ["finetune.task.kind", '"tabel"', 'did you mean "table"?']),
        ("finetune.task.txt=a", ["finetune.task.txt: unknown key", 'did you mean "text"?']),
        ("finetune.task.text=txet", ["txet", "text, label", 'did you mean "text"?']),
        ("finetune.task.train=none.csv", ["none.csv"]),
        ("finetune.init_from=none", ["none: found no such directory"]),
        ("finetune.max_length=65", ["finetune.max_length: found 65", "64 positions"]),
        ("finetune.batch_size=12", ["finetune.batch_size: found 12", "multiple of 8"]),
        ("finetune.optimizer.freeze=[layer.0]", ["layer.0", 'did you mean "layers.0"?']),
        ("finetune.optimizer.freeze=[layers.2]", ["layers.2"]),
        ("finetune.optimizer.learning_rate=0", ["learning_rate: found 0", "greater than 0"]),
        ("model.architecture.hidden_size=32", ["model: found settings", "finetune.init_from"]),
        ("optimizer.learning_rate=3e-5", ["optimizer: found settings", "finetune.optimizer"]),
        (
            "train.phases=[{dataset: x, steps: 1}]",
            ["train: ", "[finetune.pretraining_section]"],
        ),
        ("objective.name=sop", ["objective: found settings", "finetune.task"]),
        ("loader.workers=2", ["loader: found settings", "[finetune.pretraining_section]"]),
        ("finetune=null", ["finetune: missing"]),
    ],
)
def test_a_wrong_setting_names_the_allowed_values(
    tmp_path: Path, base: dict[str, Any], override: str, expected: list[str]
) -> None:
    line = mistake(tmp_path, base, override)
    for part in expected:
        assert part in line


@pytest.mark.parametrize(
    ("dev", "expected"),
    [
        ("text,label\nword1,goood\n", ["dev.csv: line 2", '"goood"', 'did you mean "good"?']),
        ("text,label\nword1,\xff\n", ["dev.csv", "UTF-8"]),
    ],
)
def test_a_bad_table_is_named_with_its_line(
    tmp_path: Path, base: dict[str, Any], dev: str, expected: list[str]
) -> None:
    (tmp_path / "dev.csv").write_bytes(dev.encode("latin-1"))
    line = mistake(tmp_path, base, f"finetune.task.dev={tmp_path / 'dev.csv'}")
    for part in expected:
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["predict", "ORIGIN", "out.csv"], ["[run.not_fine_tuned]"]),
        (["predict", "ORIGIN", "out.txt"], ["out.txt: found .txt", ".jsonl, .csv"]),
        (["predict", "none", "out.csv"], ["none: found no such directory"]),
        (["evaluate", "none"], ["none: found no such directory"]),
        *(
            ([*verb, "--batch-size", "0"], ["--batch-size: found 0, allowed: 1 or more"])
            for verb in (
                ["evaluate", "ORIGIN"],
                ["predict", "ORIGIN", "out.csv"],
                ["features", "ORIGIN", "in.txt", "out.npz"],
            )
        ),
    ],
)
def test_a_wrong_command_is_named(
    base: dict[str, Any], tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    origin = base["finetune"]["init_from"]
    given = [
        origin if each == "ORIGIN" else str(tmp_path / each) if each.startswith("out") else each
        for each in arguments
    ]
    line = refused(*given)
    for part in expected:
        assert part in line
    assert not list(tmp_path.iterdir())
