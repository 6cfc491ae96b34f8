"""Every user mistake ends with an error line that names it, and exit code 2."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.files.atomic import unfinished
from bert_jax.files.lock import hold_alone
from bert_jax.files.seal import sealed, unsealed
from tests.project import (
    Refusal,
    bert_jax,
    invoke,
    ok,
    project_config,
    refused,
    said,
    says,
    write_config,
)


@pytest.fixture
def config(project: Path) -> dict[str, Any]:
    """The project's configuration on the test process's mesh; tests make it invalid."""
    values = project_config(project)
    values["mesh"] = {"platform": "cpu", "data": -1}
    return values


def mistake(tmp_path: Path, verb: str, config: dict[str, Any], *arguments: str) -> Refusal:
    """Runs a verb, asserts that it fails with exit code 2, and returns the error line."""
    path = write_config(tmp_path / "config.yaml", config)
    return refused(verb, path, *arguments)


def near(name: str) -> dict[str, str]:
    """Returns the values of an error that suggests a name."""
    return {"hint": f'; did you mean "{name}"?'}


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("train.pases=1", "setting.unknown", near("phases")),
        ("mesh.tensr=2", "setting.unknown", near("tensor")),
        ("optimizer.learning_rate=fast", "setting.value", {"found": '"fast"'}),
        (
            "optimizer.name=adamv",
            "setting.value",
            {"allowed": ["adamw", "lamb", "stable_adamw", "muon"]} | near("adamw"),
        ),
        ("train.phases.0=null", "setting.value", {"found": "null", "allowed": "keys and values"}),
        ("train.phases=5", "setting.value", {"found": "5", "allowed": "a list"}),
        ("training=8", "setting.unknown", near("train")),
        ("batch_size=8", "setting.unknown", near("train.phases.0.batch_size")),
        ("optimizer.lr=1e-4", "setting.unknown", near("learning_rate")),
        ("model.layers=2", "setting.unknown", near("architecture.num_hidden_layers")),
        ("train.phases=[]", "setting.value", {"found": "[]", "allowed": "at least 1 item"}),
        ("model.dtype=float32", "setting.unknown", near("execution.dtype")),
        ("model.size=bas", "setting.value", {"found": '"bas"'} | near("base")),
        ("model.size=base", "model.two_sizes", {"found": "base", "size": 12, "source": "size"}),
        ("objective.masking.rate=1.5", "setting.value", {"allowed": "less than 1"}),
        ("optimizer.learning_rate=100", "setting.value", {"found": "100"}),
        ("train.phases.0.learning_rate=1e4", "setting.value", {"found": "10000.0"}),
    ],
)
def test_a_wrong_setting_names_the_allowed_values(
    tmp_path: Path, config: dict[str, Any], override: str, key: str, values: dict[str, Any]
) -> None:
    line = mistake(tmp_path, "pretrain", config, override)
    says(line, key=key, place=f"override {override.partition('=')[0]}")
    says(line, **values)


def test_a_wrong_setting_below_a_list_names_the_allowed_values(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    line = mistake(tmp_path, "pretrain", config, "train.phases.0={dataset: x, stpes: 3}")
    says(line, key="setting.unknown", place="override train.phases.0.stpes")
    says(line, **near("steps"))
    line = mistake(tmp_path, "pretrain", config, "training.steps=8")
    says(line, key="setting.unknown", place="override training")
    says(line, **near("train"))


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("train.phases.7.steps=1", "override.index", {"found": "7", "allowed": "0 to 1"}),
        ("seed", "override.form", {"found": 'no "="'}),
        ("=5", "override.form", {"found": 'no key before "="'}),
    ],
)
def test_an_override_of_another_form_is_named(
    tmp_path: Path, config: dict[str, Any], override: str, key: str, values: dict[str, Any]
) -> None:
    line = mistake(tmp_path, "pretrain", config, override)
    says(line, key=key, place=f'"{override}"')
    says(line, **values)


def test_an_override_is_not_blamed_for_the_files_mistake(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config["mesh"]["tensr"] = 2
    line = mistake(tmp_path, "pretrain", config, "mesh.tensor=1", "seed=3")
    assert line.key == "setting.unknown"
    says(line, place=f"{tmp_path / 'config.yaml'}: mesh.tensr")


@pytest.mark.parametrize(
    ("content", "key", "place", "name", "value"),
    [
        ("train:\n\tphases: []\n", "yaml.invalid", ": line 2", "reason", "token"),
        ("train:\n  phases:\n - {dataset: x}\n", "yaml.invalid", ": line 3", "reason", "key"),
        ("- seed: 1\n", "setting.value", "", "found", "a list"),
        ("seed=1\n", "setting.value", "", "found", '"seed=1"'),
        ("train: [1, 2]\n", "setting.value", ": train", "found", "[1, 2]"),
    ],
)
def test_yaml_of_another_form_names_the_allowed_values(
    tmp_path: Path, content: str, key: str, place: str, name: str, value: str
) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    line = refused("pretrain", tmp_path / "bad.yaml")
    says(line, key=key, place=f"{tmp_path / 'bad.yaml'}{place}")
    assert value in line
    assert name == "reason" or "keys and values" in line


def test_a_section_that_a_verb_needs_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    del config["vocab"]
    line = mistake(tmp_path, "vocab", config)
    says(line, key="setting.needed", place="vocab")


TEXTS: list[tuple[bytes | None, str, dict[str, Any]]] = [
    (None, "input.no_file", {"place": "examples.input", "found": "{}"}),
    (b"\n\n  \n\n", "text.empty", {"place": "examples.input"}),
    (
        b"a sentence .\nanother one .\n",
        "text.few_documents",
        {"place": "examples.input", "found": 1, "allowed": 2},
    ),
    (b"fine\nnot \xff fine\n\nmore\n", "text.not_utf8", {"place": "{}", "byte": 9, "found": 0xFF}),
    (b"x " * 600_000 + b"\n\nmore\n", "text.line_too_long", {"place": "{}: line 1"}),
]


@pytest.mark.parametrize(("content", "key", "values"), TEXTS, ids=[text[1] for text in TEXTS])
def test_bad_text_is_named_and_leaves_no_dataset(
    tmp_path: Path,
    config: dict[str, Any],
    content: bytes | None,
    key: str,
    values: dict[str, Any],
) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    output = tmp_path / "dataset"
    config["examples"] |= {"input": [str(text)], "output": str(output), "validation_fraction": 0}
    line = mistake(tmp_path, "examples", config)
    assert line.key == key
    for name, value in values.items():
        says(line, **{name: value.format(text) if isinstance(value, str) else value})
    assert not any(tmp_path.glob("dataset*"))


@pytest.mark.parametrize("verb", ["vocab", "examples"])
def test_a_broken_parquet_is_named(tmp_path: Path, config: dict[str, Any], verb: str) -> None:
    path = tmp_path / "text.parquet"
    texts = pa.array([b"a document .", b"caf\xe9 ."]).view(pa.string())
    pq.write_table(pa.table({"text": texts}), path)
    config[verb] |= {"input": [str(path)], "output": str(tmp_path / "output")}
    line = mistake(tmp_path, verb, config)
    says(line, key="file.not_utf8", place=f"{path}: row 2")
    says(line, found=0xE9)
    column = pa.array(["a document ."])
    pq.write_table(pa.Table.from_arrays([column, column], ["text", "text"]), path)
    line = mistake(tmp_path, verb, config)
    says(line, key="parquet.column_twice", place=str(path))
    says(line, found="text")
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("name", ["text", "text.txt", "text.jsonl", "text.parquet", "text.xml.bz2"])
def test_a_pipe_as_input_is_refused_without_waiting(
    tmp_path: Path, config: dict[str, Any], name: str
) -> None:
    os.mkfifo(tmp_path / name)
    for verb in ("vocab", "examples"):
        config[verb] |= {"input": [str(tmp_path / name)], "output": str(tmp_path / "output")}
        line = mistake(tmp_path, verb, config)
        says(line, key="file.kind", place=str(tmp_path / name))
        assert "pipe" in str(line)
    assert not (tmp_path / "output").exists()


def test_a_vocabulary_without_mask_is_refused(
    tmp_path: Path, project: Path, config: dict[str, Any]
) -> None:
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(project / "tokenizer", tokenizer)
    pieces = (tokenizer / "vocab.txt").read_text().replace("[MASK]\n", "[mesk]\n")
    (tokenizer / "vocab.txt").write_text(pieces)
    line = mistake(tmp_path, "pretrain", config, f"tokenizer={tokenizer}")
    assert line.key == "vocabulary.special_missing"
    says(line, place=str(tokenizer / "vocab.txt"))
    says(line, missing=["[MASK]"])


def test_a_dataset_of_another_tokenizer_is_refused(
    tmp_path: Path, project: Path, config: dict[str, Any]
) -> None:
    dataset = copy_dataset(project, tmp_path)
    provenance = json.loads((dataset / "provenance.json").read_text())
    other = unsealed(provenance) | {"tokenizer_hash": "0" * 64}
    (dataset / "provenance.json").write_text(json.dumps(sealed(other)))
    line = mistake(tmp_path, "pretrain", config, f"train.phases.0.dataset={dataset}")
    assert line.key == "dataset.other_tokenizer"
    says(line, place=f"train.phases.0.dataset: {dataset}")
    says(line, found=f"{'0' * 12}…")


def test_a_damaged_shard_is_named(tmp_path: Path, project: Path, config: dict[str, Any]) -> None:
    dataset = copy_dataset(project, tmp_path)
    shard = next(dataset.glob("*train*array_record*"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    line = mistake(tmp_path, "pretrain", config, f"train.phases.0.dataset={dataset}")
    says(line, key="dataset.file_size", place=f"train.phases.0.dataset: {shard}")


@pytest.mark.parametrize(
    ("overrides", "key", "values"),
    [
        (["mesh.data=3"], "mesh.size", {"data": 3, "devices": 8}),
        (["mesh.tensor=4"], "mesh.not_a_divisor", {"place": "mesh.tensor", "found": 4, "size": 2}),
        (["mesh.data=0"], "mesh.axis_zero", {"place": "mesh.data"}),
        (["mesh.data=-1", "mesh.fsdp=-1"], "mesh.two_free_axes", {"found": ["data", "fsdp"]}),
        (
            ["train.evaluation.batch_size=12"],
            "batch.not_a_multiple",
            {"place": "train.evaluation.batch_size", "found": 12, "unit": 8},
        ),
        (
            ["train.phases.0.batch_size=12"],
            "batch.not_a_multiple",
            {"place": "train.phases.0.batch_size", "found": 12, "unit": 8},
        ),
        (
            ["model.architecture.max_position_embeddings=16"],
            "phases.seq_length",
            {"place": "train.phases.0.seq_length", "found": 32, "positions": 16},
        ),
        (["mesh.platform=tpu"], "mesh.platform", {"found": "tpu", "platform": "cpu"}),
        (["optimizer.warmup_steps=1000"], "optimizer.warmup", {"found": 1000, "steps": 16}),
        (
            ["train.phases.0.batch_ramp=[{steps: 2, batch_size: 4}]"],
            "batch.not_a_multiple",
            {"place": "train.phases.0.batch_ramp.0.batch_size", "found": 4, "unit": 8},
        ),
        (
            ["train.phases.0.batch_ramp=[{steps: 2, batch_size: 16}]"],
            "phases.batch_ramp",
            {"found": [16, 8]},
        ),
        (
            ["train.phases.0.batch_ramp=[{steps: 10, batch_size: 4}]"],
            "phases.batch_ramp_steps",
            {"found": 10, "steps": 10},
        ),
        (["optimizer.name=stable_adamw"], "optimizer.bias_correction", {"name": "stable_adamw"}),
    ],
)
def test_an_impossible_mesh_or_schedule_is_refused_before_the_start(
    tmp_path: Path,
    config: dict[str, Any],
    overrides: list[str],
    key: str,
    values: dict[str, Any],
) -> None:
    run_dir = tmp_path / "run"
    line = mistake(tmp_path, "pretrain", config, f"run_dir={run_dir}", *overrides)
    assert line.key == key
    says(line, **values)
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        (
            "train.phases.0.seq_length=24",
            "dataset.example_too_long",
            {"place": "train.phases.0.seq_length", "found": 24, "longest": 32},
        ),
        (
            "model.architecture.num_attention_heads=3",
            "model.heads",
            {"place": "model.architecture.num_attention_heads", "found": 3, "hidden_size": 32},
        ),
        (
            "train.phases.0.dataset=nowhere",
            "dataset.missing",
            {"place": "train.phases.0.dataset: nowhere"},
        ),
    ],
)
def test_an_unfit_model_or_dataset_is_refused_before_the_start(
    tmp_path: Path, config: dict[str, Any], override: str, key: str, values: dict[str, Any]
) -> None:
    run_dir = tmp_path / "run"
    line = mistake(tmp_path, "pretrain", config, f"run_dir={run_dir}", override)
    assert line.key == key
    says(line, **values)
    assert not run_dir.exists()


def test_doctor_and_pretrain_refuse_an_objective_that_fits_neither_model_nor_dataset(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    generator = {"kind": "electra", "generator": {"size": 0.001}}
    file = write_config(tmp_path / "c.yaml", config | {"run_dir": str(tmp_path / "run")})
    for overrides, key, values in (
        (
            {"objective": {"kind": "roberta"}},
            "objective.pairing",
            {"hint": ", or set objective.kind: bert"},
        ),
        (
            {"model": config["model"] | {"kind": "electra"}, "objective": generator},
            "electra.generator_width",
            {"place": "objective.generator.size", "found": 0.001, "width": 1, "allowed": 0.25},
        ),
    ):
        settings = [f"{name}={json.dumps(value)}" for name, value in overrides.items()]
        line = refused("pretrain", file, *settings)
        assert line.key == key
        says(line, **values)
        assert not (tmp_path / "run").exists()
        found = invoke("doctor", file, *settings)
        assert found.exit_code == 1, found.output
        assert str(line.place) in found.output


def test_the_settings_of_the_other_training_name_its_verb(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    task = {"kind": "table", "train": "a.csv", "text": "text", "label": "label"}
    tuning = {"run_dir": "runs/a", "finetune": {"init_from": "a/b", "task": task}}
    of_cloud = ("--on", "local", "--bucket", tmp_path)
    for verb, values, options, fitting in (
        ("pretrain", tuning, (), "finetune"),
        ("plan", tuning, ("--topology", "v5e:2x2"), "finetune"),
        ("submit", tuning, of_cloud, "submit --verb finetune"),
        ("finetune", config, (), "pretrain"),
    ):
        line = refused(verb, write_config(tmp_path / "c.yaml", values), *options)
        assert line.key == "config.other_verb"
        says(line, fitting=fitting)


def test_a_relative_path_is_shown_with_its_directory(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    glue = {"kind": "glue", "name": "mrpc", "data": "glue"}
    tuning = {"run_dir": "runs/a", "finetune": {"init_from": "origin", "task": glue}}
    phase = "train.phases.0.dataset=nowhere"
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / "config.yaml").write_text("seed: 1\n")
    for verb, values, overrides, key in (
        ("finetune", tuning, [], "glue.no_directory"),
        ("finetune", tuning, ["finetune.init_from=none"], "run.missing"),
        ("pretrain", config, [phase], "dataset.missing"),
    ):
        line = mistake(tmp_path, verb, values, *overrides)
        assert line.key == key
        says(line, within=f" in {tmp_path}")
    says(refused("pretrain", "none.yaml"), within=f" in {tmp_path}")


def test_an_impossible_run_directory_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("in the way")
    line = mistake(tmp_path, "pretrain", config, f"run_dir={tmp_path / 'file' / 'run'}")
    assert line.key == "run.unwritable"
    says(line, found=str(tmp_path / "file" / "run"))


def test_a_mistake_is_one_line_in_a_process_of_its_own(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    path = write_config(tmp_path / "config.yaml", config)
    line = said(bert_jax("pretrain", path, "mesh.tensr=2"))
    assert line.key == "setting.unknown"
    assert '"tensor"' in line


def test_a_missing_tokenizer_names_the_command_that_makes_it(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config["vocab"]["output"] = config["examples"]["tokenizer"] = str(tmp_path / "none")
    config["examples"]["output"] = str(tmp_path / "dataset")
    line = mistake(tmp_path, "examples", config)
    assert line.key == "examples.tokenizer_missing"
    says(line, found=str(tmp_path / "none"))
    line = mistake(tmp_path, "pretrain", config, f"tokenizer={tmp_path / 'none'}")
    says(line, key="tokenizer.missing", place=str(tmp_path / "none"))
    assert not (tmp_path / "dataset").exists()


def test_a_missing_run_suggests_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "sub" / "mine").mkdir(parents=True)
    tmp_path /= "sub"
    (tmp_path / "mine" / "config.yaml").touch()
    for verb in (["fill-mask", tmp_path / "mien", "a [MASK]"], ["evaluate", tmp_path / "mien"]):
        line = refused(*verb)
        assert line.key == "run.missing"
        says(line, place=str(tmp_path / "mien"))
        says(line, found="no such directory")
        says(line, hint=f'; did you mean "{tmp_path / "mine"}"?')
    line = refused("evaluate", tmp_path)
    assert line.key == "run.missing"
    says(line, found="no config.yaml in it")
    says(line, hint=f"; runs there: {tmp_path / 'mine'}")
    line = refused("fill-mask", tmp_path / "mine" / "config.yaml", "a [MASK]")
    says(line, key="run.missing", found="a file")
    says(line, hint=f'; did you mean "{tmp_path / "mine"}"?')


def copy_dataset(project: Path, tmp_path: Path) -> Path:
    shutil.copytree(project / "dataset32", tmp_path / "dataset")
    return tmp_path / "dataset"


def test_vocab_replaces_a_tokenizer_only_with_force(
    tmp_path: Path, project: Path, config: dict[str, Any]
) -> None:
    output = tmp_path / "tokenizer"
    shutil.copytree(project / "tokenizer", output)
    before = (output / "vocab.txt").read_bytes()
    config["vocab"]["output"] = str(output)
    line = mistake(tmp_path, "vocab", config, "vocab.size=600")
    says(line, key="vocab.exists", found=str(output))
    assert (output / "vocab.txt").read_bytes() == before
    path = write_config(tmp_path / "config.yaml", config)
    ok("vocab", path, "vocab.size=600", "--force")
    assert len((output / "vocab.txt").read_text().splitlines()) == 600


def test_a_second_vocab_is_refused_unless_the_first_died(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    output = tmp_path / "tokenizer"
    config["vocab"]["output"] = str(output)
    path = write_config(tmp_path / "config.yaml", config)
    with hold_alone(output, say=print):
        line = refused("vocab", path, "vocab.size=600")
        says(line, key="lock.held", place=str(output))
        says(line, holder=f"{os.uname().nodename} {os.getpid()}")
        assert not output.exists()
    output.mkdir()
    left = unfinished(output / "vocab.txt")
    for name in (left, output / "mine.tmp"):
        name.write_text("half")
    (tmp_path / ".tokenizer.lock").write_text("elsewhere 1\n")  # the holder of the lock is dead
    ok("vocab", path, "vocab.size=600")
    names = sorted(path.name for path in output.iterdir())
    assert names == ["mine.tmp", "tokenizer_config.json", "vocab.txt"]
    assert not (tmp_path / ".tokenizer.lock").exists()


def test_a_vocabulary_may_be_written_into_the_current_folder(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file is named after its directory, so `.` must be resolved first."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ok("vocab", write_config(tmp_path / "config.yaml", config), "vocab.output=.", "vocab.size=600")
    assert (tmp_path / "here" / "vocab.txt").exists()
    assert not list(tmp_path.glob("*.lock"))
