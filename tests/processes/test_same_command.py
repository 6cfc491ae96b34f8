"""If processes have different commands or data, all stop at the start with one error."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.processes.hosts import Host, free_port, joining, start_one
from tests.processes.test_deaths import line_of
from tests.project import Refusal, write_config
from tests.tasks.runs import tiny_config, write_table

Command = Sequence[object]


def start_each(
    commands: Sequence[Command], *, directory: Path, verb_options: bool = False
) -> list[Host]:
    """Starts a job. Each process has its own directory (``0``, ``1``, …) and command."""
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


def line_of_all(hosts: Sequence[Host]) -> Refusal:
    """Returns the error line that all processes print. Asserts exit code 2 and the key."""
    codes = [host.wait() for host in hosts]
    assert codes == [2] * len(hosts), "\n".join(host.out + host.err for host in hosts)
    line, *others = (line_of(host) for host in hosts)
    assert others == [line] * len(others)
    assert line.key == "processes.settings_differ"
    return line


def test_a_process_with_another_setting_ends_all(config: Path, tmp_path: Path) -> None:
    command = ("pretrain", config, "run_dir=run")
    hosts = start_each([command, (*command, "mesh.tensor=2")], directory=tmp_path)
    line = line_of_all(hosts)
    assert "mesh.tensor: " in line
    assert re.search(rf" 2 in process 1 \([^)]*pid {hosts[1].pid}\) .* 1 in process 0 \(", line)
    assert not list(tmp_path.glob("*/run"))


def test_a_process_with_another_dataset_ends_all(
    values: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    """The hosts have different datasets at the same path."""
    train: Any = dict(values["train"])
    train |= {"phases": [train["phases"][0] | {"dataset": "data", "seq_length": 48}]}
    config = write_config(tmp_path / "run.yaml", values | {"train": train})
    command = ("pretrain", config, "run_dir=run")
    for index, name in enumerate(("dataset32", "dataset48")):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "data").symlink_to(project / name)
    line = line_of_all(start_each([command] * 2, directory=tmp_path))
    assert "train.phases.0.dataset.training.data: " in line
    assert not list(tmp_path.glob("*/run/*"))


def test_a_process_with_another_table_ends_all(tmp_path: Path) -> None:
    values: Any = tiny_config(tmp_path, epochs=1, max_length=8) | {"mesh": {"platform": "cpu"}}
    values["finetune"]["task"]["train"] = "train.csv"
    for index in range(2):
        (tmp_path / str(index)).mkdir()
        table = write_table(tmp_path / str(index), 32, index)
        table.rename(table.with_name("train.csv"))
    command = ("finetune", write_config(tmp_path / "run.yaml", values), "run_dir=run", "--seeds", 2)
    line = line_of_all(start_each([command] * 2, directory=tmp_path))
    assert "finetune.task.train: " in line
    assert not list(tmp_path.glob("*/run/*"))


def test_a_process_with_another_option_ends_all(tmp_path: Path) -> None:
    commands = [("evaluate", "run"), ("evaluate", "run", "--batch-size", 8)]
    line = line_of_all(start_each(commands, directory=tmp_path, verb_options=True))
    assert "--batch-size: " in line
