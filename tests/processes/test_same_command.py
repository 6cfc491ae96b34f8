"""Processes with different commands or data all end at the start, with the same line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bert_jax.parallel import same_settings
from bert_jax.parallel.channel import Member
from tests.processes.hosts import Host, free_port, joining, start_one
from tests.processes.test_deaths import line_of
from tests.project import write_config
from tests.tasks.runs import tiny_config, write_table

Command = Sequence[object]


def start_each(commands: Sequence[Command], *, directory: Path, verb_options: bool) -> list[Host]:
    """Starts a job whose processes have a directory ``0``, ``1``, … and a command of their own."""
    port, hosts = free_port(), []
    for index, command in enumerate(commands):
        (directory / str(index)).mkdir(exist_ok=True)
        joined = joining(index, count=len(commands), port=port)
        if verb_options:
            joined = [part for key in joined for part in ("--mesh", key.removeprefix("mesh."))]
        host = start_one(
            *command,
            *joined,
            index=index,
            directory=directory / "out",
            program=("-m", "tests.processes.in_directory", directory / str(index)),
        )
        hosts.append(host)
    return hosts


def lines_of(hosts: Sequence[Host]) -> set[str]:
    """The lines with which all processes of a job end, which must be with exit code 2."""
    codes = [host.wait() for host in hosts]
    assert codes == [2] * len(hosts), "\n".join(host.out + host.err for host in hosts)
    return {line_of(host) for host in hosts}


@pytest.mark.parametrize(
    ("count", "setting", "found", "expected"),
    [
        (4, "seed=7", "7", "3"),
        (2, "mesh.platform=tpu", '"tpu"', '"cpu"'),
        (2, "mesh.tensor=2", "2", "1"),
        (2, "train.evaluation.examples=8", "8", "24"),
        (2, "train.checkpoint.every=3", "3", "4"),
        (2, "model.execution.dtype=bfloat16", '"bfloat16"', '"float32"'),
    ],
)
def test_a_process_with_another_setting_ends_all(
    config: Path, tmp_path: Path, count: int, setting: str, found: str, expected: str
) -> None:
    command = ("pretrain", config, "run_dir=run")
    commands = [command] * (count - 1) + [(*command, setting)]
    hosts = start_each(commands, directory=tmp_path, verb_options=False)
    (line,) = lines_of(hosts)
    assert f"{setting.split('=')[0]}: found {found} in process {count - 1} (" in line
    assert f"pid {hosts[-1].pid}) and {expected} in process 0 (" in line
    assert not list(tmp_path.glob("*/run"))


def test_a_process_with_another_dataset_ends_all(
    values: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    """Under the same path, on another host's disk."""
    train: Any = dict(values["train"])
    train |= {"phases": [train["phases"][0] | {"dataset": "data", "seq_length": 48}]}
    config = write_config(tmp_path / "run.yaml", values | {"train": train})
    command = ("pretrain", config, "run_dir=run")
    for index, name in enumerate(("dataset32", "dataset48")):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "data").symlink_to(project / name)
    (line,) = lines_of(start_each([command] * 2, directory=tmp_path, verb_options=False))
    assert "train.phases.0.dataset.training: found " in line
    assert not list(tmp_path.glob("*/run/*"))


def test_a_process_with_another_table_ends_all(tmp_path: Path) -> None:
    values: Any = tiny_config(tmp_path, epochs=1, max_length=8) | {"mesh": {"platform": "cpu"}}
    values["finetune"]["task"]["train"] = "train.csv"
    for index in range(2):
        (tmp_path / str(index)).mkdir()
        table = write_table(tmp_path / str(index), 32, index)
        table.rename(table.with_name("train.csv"))
    command = ("finetune", write_config(tmp_path / "run.yaml", values), "run_dir=run", "--seeds", 2)
    (line,) = lines_of(start_each([command] * 2, directory=tmp_path, verb_options=False))
    assert "finetune.task.train: found " in line
    assert not list(tmp_path.glob("*/run/*"))


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        (("evaluate", "run"), ("evaluate", "run", "--batch-size", 8), "--batch-size"),
        (("export", "run", "hf"), ("fill-mask", "run", "a [MASK]"), "verb"),
    ],
    ids=["option", "verb"],
)
def test_a_process_with_another_option_or_verb_ends_all(
    tmp_path: Path, first: Command, second: Command, key: str
) -> None:
    (line,) = lines_of(start_each([first, second], directory=tmp_path, verb_options=True))
    assert f"{key}: found " in line


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ([{"a": {"b": [{"c": 1}]}}] * 3, None),
        ([{"z": 1, "a": 1}, {"z": 2, "a": 2}], "z: found 2 in process 1 (host, pid 71) and 1 in "),
        ([{"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 2}]}], "a.1.b: found 2 in process 1 "),
        ([{"a": {"b": 1}}, {"a": None}], "a.b: found null in process 1 "),
        ([{"a": None}, {"a": {"b": 1}}], "a.b: found 1 in process 1 (host, pid 71) and null in "),
        ([{"a": 1}, {"a": True}], "a: found true in process 1 "),
        ([{"a": ["x", "y"]}, {"a": ["x"]}], 'a: found ["x"] in process 1 '),
        ([{"a": 1}, {"a": 1}, {"a": 2}, {"a": 3}], "and 1 in process 0 (host, pid 70) (2 of 4 "),
        ([{"a": ["x" * 99] * 99}, {"a": ["x" * 99] * 98}], "a: found SHA-256 "),
        (
            [{"mesh": {"distributed": {"b": b}, "distribution": 1}} for b in (1, 2)],
            None,
        ),
        (
            [{"mesh": {"distribution": 1}}, {"mesh": {"distribution": 2}}],
            "mesh.distribution: found 2 ",
        ),
    ],
)
def test_the_first_key_that_differs_is_named(
    settings: list[dict[str, Any]], line: str | None
) -> None:
    flat = [same_settings.flatten(each) for each in settings]
    members = {index: Member(index, "host", 70 + index) for index in range(len(flat))}
    differences = {
        index: same_settings.first_difference(each, flat[0]) for index, each in enumerate(flat)
    }
    found = same_settings.describe(differences, members)
    assert (found is None) == (line is None)
    assert line is None or line in str(found)
    assert line is None or str(found).endswith("; allowed: the same in all processes")
