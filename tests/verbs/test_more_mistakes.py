"""Mistakes that once passed silently or lost a file: refused before a file changes, or noted."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.project import bert_jax, ok, project_config, refused, said, says, write_config
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
    says(line, key="run.not_a_run", place="run_dir")
    says(line, found=str(output), file=held)
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
    says(line, setting=f"finetune.task.{place}")
    says(line, found=column)


def test_settings_without_effect_and_a_dev_set_of_training_rows_are_warned_about(
    tmp_path: Path, tuning: dict[str, Any]
) -> None:
    task = tuning["finetune"]["task"]
    run_dir = tmp_path / "tuned"
    file = write_config(tmp_path / "c.yaml", tuning | {"run_dir": str(run_dir)})
    short = ["finetune.epochs=1", "finetune.max_length=8", "finetune.patience=1"]
    same = [f"finetune.task.dev={task['train']}", "finetune.task.dev_fraction=0.2"]
    printed = ok("finetune", file, *short, *same, "finetune.split_seed=4")
    warned = {line.partition(":")[0] for line in printed.splitlines()}
    settings = {"patience", "task.dev_fraction", "split_seed"}
    assert {f"finetune.{name}" for name in settings} | {"dev"} <= warned
    # No output may replace the rows of the task, even with --force.
    table = Path(task["train"])
    before = table.read_bytes()
    for arguments in (["--input", table], []):
        line = refused("predict", run_dir, table, "--force", *arguments)
        says(line, key="output.is_input", place=str(table))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "word1"}\n')
    line = refused("features", run_dir, texts, texts, "--force", "--column", "text")
    says(line, key="output.is_input", place=str(texts))
    line = refused("plan", file, "--topology", "v5litepod-16", "--html", file)
    says(line, key="output.is_input", place=str(file))
    assert table.read_bytes() == before
    line = refused(
        *("features", run_dir, table, tmp_path / "o.npz"),
        *("--column", "text", "--pair-column", "text"),
    )
    says(line, key="setting.same_column", place="--pair-column")


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("train.phases.0.steps=010", "yaml.number", {"found": "010", "meaning": 8}),
        ("train.log_every=1:30", "yaml.number", {"found": "1:30", "meaning": 90}),
        ("loader.workers=5000", "loader.workers", {"found": 5000}),
        (
            "train.evaluation={stop_at: {metric: mlm_accuracy, at_least: 50}}",
            "evaluation.stop_at_fraction",
            {"found": 50},
        ),
    ],
)
def test_a_number_that_means_something_else_is_refused(
    tmp_path: Path, config: dict[str, Any], override: str, key: str, values: dict[str, Any]
) -> None:
    line = refused("pretrain", write_config(tmp_path / "c.yaml", config), override)
    assert line.key == key
    says(line, **values)
    assert not (tmp_path / "run").exists()


def test_the_home_directory_of_a_setting_is_expanded(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell expands ~ at the start of a word, but not in run_dir=~/run."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = write_config(tmp_path / "c.yaml", config)
    ok("vocab", file, "vocab.output=~/tokenizer", "vocab.size=600")
    assert (tmp_path / "home" / "tokenizer" / "vocab.txt").exists()
    assert not (tmp_path / "~").exists()


def test_a_tokenizer_is_not_written_among_its_own_input(
    tmp_path: Path, project: Path, config: dict[str, Any]
) -> None:
    text = tmp_path / "text"
    shutil.copytree(project / "text", text)
    before = contents(text)
    file = write_config(tmp_path / "c.yaml", config)
    line = refused("vocab", file, f"vocab.input={text}/*.txt", f"vocab.output={text}")
    says(line, key="vocab.output_is_input", place="vocab.output")
    assert contents(text) == before


@pytest.mark.parametrize(
    ("arguments", "key", "place"),
    [
        (["finetune", "FILE", "--seeds", "0"], "sweep.seeds", "--seeds"),
        (["finetune", "FILE", "--seeds", "100000"], "sweep.seeds", "--seeds"),
        (
            ["finetune", "FILE", "finetune.sweep={seeds: 2}", "--seeds", "3"],
            "sweep.two_seeds",
            "--seeds",
        ),
        (["fill-mask", "DIR", "[MASK]", "--mesh", "data=3"], "mesh.ignored", "--mesh"),
        (["export", "DIR", "out", "--mesh", "platform=gpu"], "mesh.ignored", "--mesh"),
        (["export", "DIR", "out", "--public"], "export.public", "--public"),
    ],
)
def test_an_option_without_effect_or_out_of_range_is_refused_before_jax_starts(
    tmp_path: Path, tuning: dict[str, Any], arguments: list[str], key: str, place: str
) -> None:
    names = {"FILE": write_config(tmp_path / "c.yaml", tuning), "DIR": tmp_path}
    done = bert_jax(*(names.get(each, each) for each in arguments))
    assert said(done).key == key
    assert f"{place}: " in said(done)
    assert "starting JAX" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [("JAX_PLATFORMS", "cuda", "mesh.no_device"), ("JAX_ENABLE_X64", "x", "environment.value")],
)
def test_a_wrong_environment_variable_of_jax_is_one_line(
    tmp_path: Path,
    tuning: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    key: str,
) -> None:
    monkeypatch.setenv(variable, value)
    (tmp_path / "texts.txt").write_text("word1\n")
    files = (tmp_path / "texts.txt", tmp_path / "out.npz")
    line = said(bert_jax("features", tuning["finetune"]["init_from"], *files))
    assert line.key == key
    assert variable in line


@pytest.mark.parametrize(
    ("override", "key", "place", "values"),
    [
        ("examples.text_field=body", "setting.ignored", "examples.text_field", {"found": "body"}),
        ("examples.id_field=id", "setting.ignored", "examples.id_field", {"found": "id"}),
        ("examples.tfds_split=test", "setting.ignored", "examples.tfds_split", {"found": "test"}),
        ("examples.language=de", "setting.ignored", None, {"setting": "examples.language"}),
    ],
)
def test_a_setting_that_the_format_of_the_text_does_not_read_is_refused(
    tmp_path: Path,
    config: dict[str, Any],
    override: str,
    key: str,
    place: str | None,
    values: dict[str, Any],
) -> None:
    file = write_config(tmp_path / "c.yaml", config)
    line = refused("examples", file, override, f"examples.output={tmp_path / 'made'}")
    says(line, key=key, place=place, **values)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "setting", "key", "place", "found"),
    [
        ("tokenizer/vocab.txt", "tokenizer", "tokenizer.missing", "", "found a file"),
        (
            *("tokenizer", "train.phases.0.dataset", "dataset.incomplete"),
            *("train.phases.0.dataset: ", "no dataset"),
        ),
    ],
)
def test_a_path_of_another_kind_is_named(
    tmp_path: Path,
    project: Path,
    config: dict[str, Any],
    name: str,
    setting: str,
    key: str,
    place: str,
    found: str,
) -> None:
    file, path = write_config(tmp_path / "c.yaml", config), project / name
    line = refused("pretrain", file, f"{setting}={path}")
    says(line, key=key, place=f"{place}{path}", found=found)


def test_an_override_given_twice_is_said_and_a_setting_of_the_top_level_is_named(
    tmp_path: Path, tuning: dict[str, Any]
) -> None:
    file = write_config(tmp_path / "c.yaml", tuning)
    result = bert_jax("finetune", file, "finetune.epochs=2", "finetune.epochs=3", "finetune.seed=3")
    assert "finetune.epochs: found 2 overrides; the last one is used" in result.stdout
    line = said(result)
    says(line, key="setting.unknown", found="seed is a setting of the top level")


def test_a_run_is_not_made_inside_a_dataset_or_another_run(
    tmp_path: Path, project: Path, config: dict[str, Any], tuning: dict[str, Any]
) -> None:
    dataset = tmp_path / "dataset"
    shutil.copytree(project / "dataset32", dataset)
    for values, verb, above in (
        (config, "pretrain", dataset),
        (tuning, "finetune", Path(tuning["finetune"]["init_from"])),
    ):
        file = write_config(tmp_path / "c.yaml", values | {"run_dir": str(above / "in" / "side")})
        says(refused(verb, file), key="run.nested", place="run_dir", found=str(above))
        assert not (above / "in").exists()
    file = write_config(tmp_path / "c.yaml", config)
    line = refused("vocab", file, f"vocab.output={dataset}", "--force")
    says(line, key="vocab.output_has_files", place="vocab.output", found=str(dataset))
    assert contents(dataset) == contents(project / "dataset32")
    run = tuning["finetune"]["init_from"]
    line = refused("pretrain", file, f"train.phases.0.dataset={run}")
    says(line, key="dataset.is_run", place=f"train.phases.0.dataset: {run}")


def test_a_mistake_in_the_data_of_a_task_names_the_whole_setting(
    tmp_path: Path, tuning: dict[str, Any]
) -> None:
    file = write_config(tmp_path / "c.yaml", tuning)
    line = refused("finetune", file, "finetune.task.text=body")
    says(line, key="table.column_unknown", place="finetune.task.text", found="body")
    # Text without labels, one sentence on each line.
    plain = tmp_path / "plain.txt"
    plain.write_text("word1 word2\nword1 word2 word3\n")
    task = f"finetune.task={{kind: token_classification, train: {plain}, dev: {plain}}}"
    says(refused("finetune", file, task), key="tokens.columns", remedy="one token on each line")


def test_a_path_near_a_run_or_a_checkpoint_names_it(
    tmp_path: Path, tuning: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(tuning["finetune"]["init_from"])
    monkeypatch.chdir(tmp_path)
    exported = tmp_path / "hf"
    ok("export", run, exported)
    for arguments in (
        ("fill-mask", run / "checkpoints", "[MASK]"),
        ("predict", next((run / "checkpoints").iterdir()), "out.jsonl"),
    ):
        says(refused(*arguments), key="run.missing", near=f'did you mean "{run}"?')
    says(refused("predict", exported, "out.jsonl"), key="run.missing", remedy="bert-jax import")
    line = refused("import", exported / "model.safetensors", tmp_path / "run")
    says(line, key="import.no_checkpoint", near=f'did you mean "{exported}"?')
    line = refused("import", run, tmp_path / "run")
    says(line, key="import.no_checkpoint", found="a run, which needs no import")
    # --force would not help here.
    assert "add --force" not in refused("export", run, run)


def test_outputs_and_options_without_effect_are_refused_before_work_is_done(
    tmp_path: Path, tuning: dict[str, Any], config: dict[str, Any]
) -> None:
    run = tuning["finetune"]["init_from"]
    line = refused("predict", run, tmp_path / "o.jsonl", "--probabilities")
    says(line, key="predict.probabilities", place="--probabilities")
    texts = tmp_path / "texts.txt"
    texts.write_text("word1\n")
    line = refused("features", run, texts, tmp_path / "o.npz", "--layers", "1,1")
    says(line, key="features.layer", place="--layers", found="1,1")
    file = write_config(tmp_path / "c.yaml", config)
    line = refused("plan", file, "--topology", "v5e:2x2", "--html", tmp_path)
    says(line, key="output.directory", place=str(tmp_path))
    line = refused("submit", file, "--dry-run", "--topology", "v5litepod-16")
    says(line, key="command_line.unknown_option", near='did you mean "--on"?')
    says(refused("submit", file, "--dry-run"), key="setting.needed", remedy="--on")
    says(refused("export", run, tmp_path / "hf", "--push", "name"), key="hub.push_name")
    assert not (tmp_path / "hf").exists()
    line = refused("submit", file, "--dry-run", "--name", "My Job")
    says(line, key="setting.value", found="My Job", allowed="text that matches")


def test_a_run_among_other_files_is_said(tmp_path: Path, tuning: dict[str, Any]) -> None:
    output = tmp_path / "texts"
    output.mkdir()
    (output / "some.txt").write_text("word1\n")
    file = write_config(tmp_path / "c.yaml", tuning | {"run_dir": str(output)})
    assert f"run_dir: {output} has other files, such as some.txt" in ok(
        "finetune", file, "finetune.epochs=1"
    )
