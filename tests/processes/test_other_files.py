"""If the files of one host differ, all processes end at the start with exit code 2 and one line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bert_jax.runs.run_directory import open_run
from tests.objectives.teachers import write_teacher
from tests.processes.test_deaths import line_of
from tests.processes.test_same_command import start_each
from tests.project import ok, write_config
from tests.tasks.runs import tiny_config

PRETRAIN = ("pretrain", "run.yaml", "run_dir=../trained")


class Kind(NamedTuple):
    """A difference between two hosts."""

    change: Callable[[Path], object]  # changes the files of host 1
    key: str  # key of host 1's error
    words: str  # part of its line
    command: tuple[str, ...] = (*PRETRAIN, "--init-from", "model")
    count: int = 2  # number of hosts


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def damage_model(here: Path) -> None:
    files = (here / "model/checkpoints/8/params").rglob("d/*")
    flip_last_byte(max(files, key=lambda path: path.stat().st_size))


def other_model(here: Path) -> None:
    """Replaces the models of both hosts by models of the same sizes with random parameters."""
    for seed, host in enumerate((here.with_name("0"), here)):
        run = open_run(host / "model")
        shutil.rmtree(host / "model")
        write_teacher(
            host / "model", run.architecture, heads=run.heads, tokenizer=run.tokenizer, seed=seed
        )


def other_head(here: Path) -> None:
    run = open_run(here / "model")
    shutil.rmtree(here / "model")
    heads = run.heads.model_copy(update={"next_sentence": False})
    write_teacher(here / "model", run.architecture, heads=heads, tokenizer=run.tokenizer)


def remove(name: str) -> Callable[[Path], object]:
    return lambda here: shutil.rmtree(here / name)


def damage_shard(here: Path) -> None:
    (shard,) = (here / "data").glob("*-train.array_record*")
    content = bytearray(shard.read_bytes())
    for at in range(len(content) // 4, len(content), 4096):
        content[at] ^= 1
    shard.write_bytes(content)


def damage_weights(here: Path) -> None:
    weights = here / "hf/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def other_revision(here: Path) -> None:
    config = here / "hf/config.json"
    config.write_text(f"{config.read_text()}\n")


DISTILL = (*PRETRAIN, "objective={kind: distill, teacher: model}")
IMPORTED = (*PRETRAIN, "--init-from", "hf")
TRACKED = (*PRETRAIN, "train.trackers=[wandb]")
FINETUNE = ("finetune", "tune.yaml", "run_dir=../trained")
DIFFERS = "processes.settings_differ"
KINDS = {
    "damaged model": Kind(damage_model, DIFFERS, "model/checkpoints/8/params", count=4),
    "older model": Kind(remove("model/checkpoints/8"), DIFFERS, "model/checkpoints/8/p"),
    "other model": Kind(other_model, DIFFERS, "model/checkpoints/3/params"),
    "other head": Kind(other_head, DIFFERS, "model.model.heads.next_sentence"),
    "no model": Kind(remove("model"), "run.missing", "model"),
    "damaged teacher": Kind(damage_model, DIFFERS, "model/checkpoints/8/params", DISTILL),
    "no teacher": Kind(remove("model"), "run.missing", "model", DISTILL),
    "damaged weights": Kind(damage_weights, "weights.safetensors_damaged", "hf/", IMPORTED),
    "other revision": Kind(other_revision, DIFFERS, "--init-from", IMPORTED),
    "no run to fine-tune": Kind(remove("model/checkpoints/8"), DIFFERS, "checkpoints/8", FINETUNE),
    "damaged shard": Kind(damage_shard, "dataset.shard_damaged", "data/", PRETRAIN),
    "no dataset": Kind(remove("data"), "dataset.missing", "data", PRETRAIN),
    "no tokenizer": Kind(remove("tokenizer"), "tokenizer.missing", "tokenizer", PRETRAIN),
    "no tracker": Kind(remove("wandb"), "tracker.not_installed", "wandb", TRACKED),
}


@pytest.fixture
def hosts(
    values: dict[str, Any], project: Path, alone: Path, tmp_path: Path
) -> Callable[[int], list[Path]]:
    """Returns a function that makes the directories of some hosts, with equal files."""

    def make(count: int) -> list[Path]:
        phase = values["train"]["phases"][0] | {"dataset": "data"}
        train = values["train"] | {"phases": [phase]}
        tune: Any = tiny_config(tmp_path)
        tune["finetune"]["init_from"] = "model"
        first, *others = (tmp_path / str(index) for index in range(count))
        shutil.copytree(alone, first / "model")
        ok("export", alone, first / "hf")
        shutil.copytree(project / "dataset32", first / "data")
        shutil.copytree(project / "tokenizer", first / "tokenizer")
        (first / "wandb").mkdir()
        write_config(first / "run.yaml", values | {"tokenizer": "tokenizer", "train": train})
        write_config(first / "tune.yaml", tune)
        for other in others:
            shutil.copytree(first, other)
        return [first, *others]

    return make


@pytest.mark.parametrize("name", KINDS)
def test_a_host_with_other_files_ends_all(
    hosts: Callable[[int], list[Path]], tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    kind.change(hosts(kind.count)[1])
    started = start_each([kind.command] * kind.count, directory=tmp_path)
    codes = [host.wait() for host in started]
    assert codes == [2] * kind.count, "\n".join(host.out + host.err for host in started)
    lines = [line_of(host) for host in started]
    assert lines[1].key == kind.key
    assert all(line.key in (kind.key, "processes.peer_ended") for line in lines)
    assert all(kind.words in line for line in lines)
    assert not list(tmp_path.glob("trained/checkpoints/*"))


def test_hosts_that_import_the_same_model_train_together(
    hosts: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    """Each host has its own cache, in which the files of the imported model have random names."""
    hosts(2)
    steps = ("train.phases.0.steps=2", "optimizer.warmup_steps=1", "train.evaluation=null")
    command = (*IMPORTED, *steps)
    started = start_each([command] * 2, directory=tmp_path)
    codes = [host.wait() for host in started]
    assert codes == [0, 0], "\n".join(host.out + host.err for host in started)
    assert "done: 2 steps" in started[0].out
    assert all((tmp_path / index / "cache/bert_jax/models").is_dir() for index in "01")
