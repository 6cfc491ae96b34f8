"""The command line with damaged runs, nonfinite numbers and two writers."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from etils import epath
from safetensors.numpy import load_file, save_file

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.lock import LOCK, hold_output, hold_run
from bert_jax.runs.open_checkpoints import load_params, write_checkpoints
from bert_jax.runs.run_directory import open_run
from bert_jax.train.time_account import describe_goodput, read_goodput
from tests.project import invoke, ok, one_phase, refused, says, write_config
from tests.tasks.runs import tiny_config

FIRST, LAST = 2, 4
SENTENCE = "the function returns a [MASK] ."


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with its own data, saved every second step."""
    data = tmp_path_factory.mktemp("data") / "dataset32"
    shutil.copytree(project / "dataset32", data)
    checkpoint = {"every": FIRST, "keep_last": 2}
    values = one_phase(project, steps=LAST, evaluation=None, checkpoint=checkpoint)
    values["train"]["phases"][0]["dataset"] = str(data)
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    ok("pretrain", config, f"run_dir={run_dir}")
    return run_dir


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def test_a_damaged_checkpoint_is_skipped_or_refused(run: Path) -> None:
    flip(run / "checkpoints" / str(LAST) / "params" / "manifest.ocdbt")
    older = invoke("fill-mask", run, SENTENCE, "--checkpoint", FIRST)
    fallen_back = invoke("fill-mask", run, SENTENCE)
    assert fallen_back.exit_code == 0
    assert older.stdout == fallen_back.stdout
    assert f"checkpoint {LAST}: params/manifest.ocdbt has SHA-256" in fallen_back.stderr
    assert f"using {FIRST} instead" in fallen_back.stderr
    named = invoke("fill-mask", run, SENTENCE, "--checkpoint", LAST)
    assert named.exit_code == 2
    assert "[checkpoint.damaged]" in named.stderr


def test_a_run_without_a_whole_checkpoint_is_refused(
    run: Path, config: Path, tmp_path: Path
) -> None:
    for step in (FIRST, LAST):
        (run / "checkpoints" / str(step) / "params" / "_METADATA").unlink()
    before = (run / "metrics.jsonl").read_bytes()
    for arguments in (
        ("export", run, tmp_path / "exported"),
        ("pretrain", config, f"run_dir={run}"),
        ("pretrain", config, f"run_dir={tmp_path / 'new'}", "--init-from", run),
    ):
        assert refused(*arguments).key == "checkpoint.all_damaged"
    assert (run / "metrics.jsonl").read_bytes() == before
    assert not (tmp_path / "exported").exists()


def test_every_reader_refuses_nonfinite_numbers(run: Path, config: Path, tmp_path: Path) -> None:
    params = load_params(open_run(run), checkpoint="last", mesh=open_mesh(one_device=True)).params
    spoilt = jax.tree.map(np.array, params)
    spoilt["pooler"]["dense"]["bias"][3] = np.nan
    shutil.rmtree(run / "checkpoints")
    with write_checkpoints(run) as checkpoints:
        checkpoints.save_params(jax.tree.map(jax.device_put, spoilt), step=1)
    for arguments in (
        ("fill-mask", run, SENTENCE),
        ("export", run, tmp_path / "exported"),
        ("pretrain", config, f"run_dir={tmp_path / 'new'}", "--init-from", run),
    ):
        line = refused(*arguments)
        assert line.key == "checkpoint.not_finite"
        says(line, name="pooler/dense/bias")
    assert not (tmp_path / "exported").exists()


def test_nonfinite_weights_are_not_imported(run: Path, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    ok("export", run, exported)
    tensors = load_file(exported / "model.safetensors")
    name = "bert.pooler.dense.weight"
    tensors[name][0, 0] = np.inf
    save_file(tensors, exported / "model.safetensors")
    line = refused("import", exported, tmp_path / "back")
    says(line, key="tensor.not_finite", name=name)
    assert not (tmp_path / "back").exists()


def test_a_second_writer_is_refused_unless_the_first_died(
    run: Path, config: Path, tmp_path: Path
) -> None:
    with hold_run(epath.Path(run)), hold_output(tmp_path / "exported"):
        assert refused("pretrain", config, f"run_dir={run}").key == "lock.held"
        assert refused("export", run, tmp_path / "exported").key == "lock.held"
        assert refused("import", run, run, "--force").key == "lock.held"
    (run / LOCK).write_text("elsewhere 1\n")  # the holder of the lock is dead
    ok("pretrain", config, f"run_dir={run}")
    assert not (run / LOCK).exists()
    # The first directory is left from a killed export. The second belongs to the user.
    for name in (f"exported.{'0a' * 16}.tmp", "exported.tmp"):
        (tmp_path / name).mkdir()
    ok("export", run, tmp_path / "exported")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "exported.tmp", "run"]


def test_a_run_of_another_verb_is_not_resumed(run: Path, config: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    (tmp_path / "tables").mkdir()
    values = tiny_config(tmp_path / "tables")
    values["finetune"]["init_from"] = str(run)
    tuning = write_config(tmp_path / "tuning.yaml", values)
    line = refused("finetune", tuning, f"run_dir={run}")
    assert line.key == "run.other_verb"
    says(line, found=str(run), wrote="pretrain")
    assert sorted(run.rglob("*")) == before
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["finetune"] = settings.pop("train")
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    line = refused("pretrain", config, f"run_dir={run}")
    assert line.key == "run.other_verb"
    says(line, found=str(run), wrote="finetune")


def test_every_verb_refuses_a_damaged_record(run: Path, config: Path, tmp_path: Path) -> None:
    """The changed numbers are plausible: only a checksum reveals them."""
    written = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(written.replace("e-12", "e-02"))
    for verb in (("fill-mask", run, SENTENCE), ("pretrain", config, f"run_dir={run}")):
        line = refused(*verb)
        says(line, key="file.changed", place=str(run / "config.yaml"))
    (run / "config.yaml").write_text(written)
    provenance = (run / "provenance.json").read_text()
    (run / "provenance.json").write_text(provenance.replace('"python": "3', '"python": "4'))
    for verb in (("export", run, tmp_path / "exported"), ("pretrain", config, f"run_dir={run}")):
        line = refused(*verb)
        says(line, key="file.changed", place=str(run / "provenance.json"))
    assert not (tmp_path / "exported").exists()
    (run / "provenance.json").write_text(provenance)
    # A tokenizer without its own hash: the run knows the hash of the one that it was trained with.
    pieces, path = run / "tokenizer" / "vocab.txt", run / "tokenizer" / "tokenizer_config.json"
    pieces.write_text(pieces.read_text().replace("\nthe\n", "\nthy\n"))
    settings = json.loads(path.read_text())
    del settings["hash"]
    path.write_text(json.dumps(settings))
    for verb in (("fill-mask", run, SENTENCE), ("pretrain", config, f"run_dir={run}")):
        line = refused(*verb)
        assert line.key == "run.tokenizer_changed"
        says(line, run=str(run / "tokenizer"))


def test_doctor_lists_whole_and_damaged_files_of_a_run(run: Path) -> None:
    whole = ok("doctor", run)
    assert f"checkpoint {LAST}: complete: optimizer, params, progress" in whole
    account = read_goodput(run)
    assert account is not None
    assert account.shares["train"] > 0
    assert f"where the time went: {describe_goodput(account)}" in " ".join(whole.split())
    assert "equals the training data" in whole

    flip(run / "checkpoints" / str(FIRST) / "progress" / "metadata")
    (run / "checkpoints" / "999").mkdir()
    (run / "checkpoints" / str(LAST) / "notes.txt").write_text("mine")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n")
    (run / "rollbacks.json").write_text('{"rollbacks": [{}]}')
    damaged = invoke("doctor", run)
    assert f"{run / 'rollbacks.json'}: rollbacks.0." in "".join(damaged.output.split("\n"))
    assert damaged.exit_code == 1
    assert f"problem checkpoint {FIRST}: progress/metadata has SHA-256" in damaged.stdout
    assert "warn    checkpoint 999: not finished" in damaged.stdout
    assert f"warn    checkpoint {LAST}: notes.txt is " in damaged.stdout
    assert f"problem metrics: {run / 'metrics.jsonl'}: 1 of " in damaged.stdout


def test_doctor_verifies_every_byte_of_a_runs_datasets(run: Path, config: Path) -> None:
    dataset = Path(open_run(run).settings["train"]["phases"][0]["dataset"])
    shard = dataset / read_provenance(dataset).splits["validation"].shards[0].name
    pristine = shard.read_bytes()
    try:
        flip(shard)
        damaged = invoke("doctor", run)
    finally:
        shard.write_bytes(pristine)
    assert damaged.exit_code == 1
    assert shard.name in damaged.stdout
