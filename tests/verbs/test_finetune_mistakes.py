"""Every fine-tuning mistake ends with an error line that names it, and writes no file."""

from pathlib import Path
from typing import Any

import pytest

from tests.project import Refusal, refused, says, write_config
from tests.tasks.runs import tiny_config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A valid configuration, in which tests make mistakes."""
    return tiny_config(tmp_path_factory.mktemp("base"), layers=2)


def mistake(tmp_path: Path, values: dict[str, Any], *overrides: str) -> Refusal:
    """Runs `finetune`, asserts that it fails and creates no run, and returns the error line."""
    path = write_config(tmp_path / "config.yaml", values | {"run_dir": str(tmp_path / "tuned")})
    line = refused("finetune", path, *overrides)
    assert not (tmp_path / "tuned").exists()
    return line


def near(name: str) -> dict[str, str]:
    """Returns the values of an error that suggests a name."""
    return {"hint": f'; did you mean "{name}"?'}


def replaced(section: str, by: str) -> dict[str, str]:
    """Returns the values of the error for a section of pretraining."""
    return {"place": section, "allowed": by}


PRETRAINING = "finetune.pretraining_section"


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("finetune.epoch=2", "setting.unknown", {"setting": "finetune.epoch"} | near("epochs")),
        ("finetune.task.kind=tabel", "setting.value", {"found": '"tabel"'} | near("table")),
        ("finetune.task.txt=a", "setting.unknown", {"setting": "finetune.task.txt"} | near("text")),
        (
            "finetune.task.text=txet",
            "table.column_unknown",
            {"found": "txet", "allowed": ["text", "label"]} | near("text"),
        ),
        ("finetune.task.train=none.csv", "file.missing", {"place": "none.csv"}),
        ("finetune.init_from=none", "run.missing", {"place": "none"}),
        ("finetune.max_length=65", "finetune.max_length", {"found": 65, "positions": 64}),
        (
            "finetune.batch_size=12",
            "batch.not_a_multiple",
            {"place": "finetune.batch_size", "found": 12, "unit": 8},
        ),
        (
            "finetune.optimizer.freeze=[layer.0]",
            "optimizer.freeze",
            {"found": "layer.0"} | near("layers.0"),
        ),
        ("finetune.optimizer.freeze=[layers.2]", "optimizer.freeze", {"found": "layers.2"}),
        (
            "finetune.optimizer.learning_rate=0",
            "setting.value",
            {"found": "0", "allowed": "greater than 0"},
        ),
        ("model.architecture.hidden_size=32", "finetune.model", {"place": "model"}),
        ("optimizer.learning_rate=3e-5", PRETRAINING, replaced("optimizer", "finetune.optimizer")),
        ("train.phases=[{dataset: x, steps: 1}]", PRETRAINING, replaced("train", "finetune")),
        ("objective.name=sop", PRETRAINING, replaced("objective", "finetune.task")),
        ("loader.workers=2", PRETRAINING, replaced("loader", "none")),
        ("finetune=null", "setting.needed", {"place": "finetune"}),
        ("finetune.optimizer.learning_rate=3", "setting.value", {"found": "3"}),
        ("finetune.sweep.learning_rates=[3e-5, 2]", "setting.value", {"found": "2"}),
        (
            "finetune.task={kind: embedding, train: a.csv, text: a}",
            "setting.unknown",
            {
                "setting": "finetune.task.text",
                "hint": '; a setting of kind multiple_choice and table; did you mean "anchor"?',
            },
        ),
    ],
)
def test_a_wrong_setting_names_the_allowed_values(
    tmp_path: Path, base: dict[str, Any], override: str, key: str, values: dict[str, Any]
) -> None:
    line = mistake(tmp_path, base, override)
    assert line.key == key
    says(line, **values)


@pytest.mark.parametrize(
    ("dev", "key", "place", "values"),
    [
        (
            "text,label\nword1,goood\n",
            "label.unknown",
            ': line 2: column "label"',
            {"found": "goood"} | near("good"),
        ),
        ("text,label\nword1,\xff\n", "file.not_utf8", ": line 2", {"found": 0xFF}),
    ],
)
def test_a_bad_table_is_named_with_its_line(
    tmp_path: Path, base: dict[str, Any], dev: str, key: str, place: str, values: dict[str, Any]
) -> None:
    path = tmp_path / "dev.csv"
    path.write_bytes(dev.encode("latin-1"))
    line = mistake(tmp_path, base, f"finetune.task.dev={path}")
    says(line, key=key, place=f"{path}{place}")
    says(line, **values)


def test_predictions_never_replace_a_directory(base: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    output.mkdir()
    line = refused("predict", base["finetune"]["init_from"], output, "--force")
    assert line.key == "predict.suffix"  # before the run is read, which has no task
    says(line, place=output)


@pytest.mark.parametrize(
    ("arguments", "key", "values"),
    [
        (["predict", "ORIGIN", "out.csv"], "run.not_fine_tuned", {}),
        (["predict", "ORIGIN", "out.txt"], "predict.suffix", {"found": ".txt"}),
        (["predict", "none", "out.csv"], "run.missing", {"place": "none"}),
        (["evaluate", "none"], "run.missing", {"place": "none"}),
        *(
            (
                [*verb, "--batch-size", "0"],
                "batch_size.range",
                {"place": "--batch-size", "found": 0},
            )
            for verb in (
                ["evaluate", "ORIGIN"],
                ["predict", "ORIGIN", "out.csv"],
                ["features", "ORIGIN", "in.txt", "out.npz"],
            )
        ),
    ],
)
def test_a_wrong_command_is_named(
    base: dict[str, Any], tmp_path: Path, arguments: list[str], key: str, values: dict[str, Any]
) -> None:
    origin = base["finetune"]["init_from"]
    given = [
        origin if each == "ORIGIN" else str(tmp_path / each) if each.startswith("out") else each
        for each in arguments
    ]
    line = refused(*given)
    assert line.key == key
    says(line, **values)
    assert not list(tmp_path.iterdir())
