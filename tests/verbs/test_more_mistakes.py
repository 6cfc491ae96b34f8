"""Mistakes that once passed silently or lost a file: refused before a file changes, or a warning."""

from pathlib import Path
from typing import Any

import pytest

from tests.project import ok, project_config, refused, write_config
from tests.tasks.runs import tiny_config


def contents(directory: Path) -> dict[str, bytes]:
    """Returns the bytes of all files of a directory."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.fixture
def config(tmp_path: Path, project: Path) -> dict[str, Any]:
    """The project's configuration on the test process's mesh, with a new run directory."""
    mesh = {"platform": "cpu", "data": -1}
    return project_config(project) | {"mesh": mesh, "run_dir": str(tmp_path / "run")}


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A valid configuration of fine-tuning."""
    return tiny_config(tmp_path_factory.mktemp("tuning"))


@pytest.mark.parametrize(
    ("held", "verb"),
    [("provenance.json", "pretrain"), ("vocab.txt", "pretrain"), ("config.json", "finetune")],
)
def test_a_run_never_replaces_files_of_a_dataset_a_tokenizer_or_a_model(
    tmp_path: Path, config: dict[str, Any], tuning: dict[str, Any], held: str, verb: str
) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / held).write_text("of another verb")
    values = config if verb == "pretrain" else tuning
    file = write_config(tmp_path / "c.yaml", values | {"run_dir": str(output)})
    line = refused(verb, file)
    assert (line.key, line.values["place"]) == ("run.not_a_run", "run_dir")
    assert (line.values["found"], line.values["file"]) == (str(output), held)
    assert contents(output) == {held: b"of another verb"}


@pytest.mark.parametrize(
    ("override", "place", "column"),
    [
        ("finetune.task.text=label", "label", "label"),
        ("finetune.task.pair=text", "pair", "text"),
        ("finetune.task={kind: embedding, anchor: a, positive: a}", "positive", "a"),
        (
            "finetune.task={kind: embedding, anchor: a, positive: b, negatives: [c, b]}",
            "negatives.1",
            "b",
        ),
    ],
)
def test_a_column_has_one_role(
    tmp_path: Path, tuning: dict[str, Any], override: str, place: str, column: str
) -> None:
    file = write_config(tmp_path / "c.yaml", tuning)
    line = refused("finetune", file, override)
    assert line.key == "setting.same_column"
    assert line.values["setting"] == f"finetune.task.{place}"
    assert line.values["found"] == column


def test_settings_without_effect_and_a_dev_set_of_training_rows_are_warned_about(
    tmp_path: Path, tuning: dict[str, Any]
) -> None:
    task = tuning["finetune"]["task"]
    run_dir = tmp_path / "tuned"
    file = write_config(tmp_path / "c.yaml", tuning | {"run_dir": str(run_dir)})
    short = ["finetune.epochs=1", "finetune.max_length=8", "finetune.patience=1"]
    same = [f"finetune.task.dev={task['train']}", "finetune.task.dev_fraction=0.2"]
    said = ok("finetune", file, *short, *same, "finetune.split_seed=4")
    warned = {line.partition(":")[0] for line in said.splitlines()}
    settings = {"patience", "task.dev_fraction", "split_seed"}
    assert {f"finetune.{name}" for name in settings} | {"dev"} <= warned
    # No output may replace the rows of the task, even with --force.
    table = Path(task["train"])
    before = table.read_bytes()
    for arguments in (["--input", table], []):
        line = refused("predict", run_dir, table, "--force", *arguments)
        assert (line.key, line.values["place"]) == ("output.is_input", str(table))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "word1"}\n')
    line = refused("features", run_dir, texts, texts, "--force", "--column", "text")
    assert (line.key, line.values["place"]) == ("output.is_input", str(texts))
    line = refused("plan", file, "--topology", "v5litepod-16", "--html", file)
    assert (line.key, line.values["place"]) == ("output.is_input", str(file))
    assert table.read_bytes() == before
    line = refused(
        *("features", run_dir, table, tmp_path / "o.npz"),
        *("--column", "text", "--pair-column", "text"),
    )
    assert (line.key, line.values["place"]) == ("setting.same_column", "--pair-column")
