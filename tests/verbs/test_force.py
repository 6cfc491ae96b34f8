"""--force replaces only what this program has written, and a kill loses nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from tests.interop.hf_checkpoints import hf_config, hf_model, save
from tests.project import ROOT, environment, ok, refused, says

KILLED = """
import os, pathlib, signal
from bert_jax.cli import main
replace = pathlib.Path.replace
def killed_between(self, target):
    replace(self, target)
    if self.name == "out":
        os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.replace = killed_between
main()
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = hf_config(hidden_size=16, intermediate_size=24, hidden_act="gelu_new")
    return save(hf_model(transformers.BertForPreTraining, config), tmp_path / "hf")


@pytest.fixture
def run(checkpoint: Path, tmp_path: Path) -> Path:
    ok("import", checkpoint, tmp_path / "run")
    return tmp_path / "run"


def write_note(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "note.txt").write_text("mine")


def test_force_replaces_only_what_the_verb_has_written(
    checkpoint: Path, run: Path, tmp_path: Path
) -> None:
    exported, empty = tmp_path / "exported", tmp_path / "empty"
    empty.mkdir()
    ok("export", run, empty, "--force")
    ok("export", run, exported)
    ok("export", run, exported, "--to", "tf", "--force")
    home, file = tmp_path / "home", tmp_path / "file"
    write_note(home)
    file.write_text("mine")
    write_note(exported / ".git")
    trained, noted = tmp_path / "trained", tmp_path / "noted"
    ok("import", checkpoint, trained)
    (trained / "metrics.jsonl").write_text("of pretraining")
    imported = tmp_path / "imported"
    for directory, command in ((noted, ("export", run)), (imported, ("import", checkpoint))):
        ok(*command, directory)
        write_note(directory)
    cases: list[tuple[str, Path, Path, str]] = [
        ("export", run, home, "other files"),
        ("export", run, file, "other files"),
        ("export", run, run, "other files"),
        ("export", run, exported, ".git"),
        ("import", checkpoint, home, "other files"),
        ("import", checkpoint, exported, "other files"),
        ("export", run, noted, "note.txt"),
        ("import", checkpoint, imported, "note.txt"),
        ("import", checkpoint, trained, "metrics.jsonl"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for verb, source, target, found in cases:
        line = refused(verb, source, target, "--force")
        assert line.key == "output.foreign"
        says(line, place=str(target), found=found)
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []
    assert (home / "note.txt").read_text() == file.read_text() == "mine"
    ok("import", checkpoint, run, "--force")


@pytest.mark.parametrize(
    ("verb", "again"),
    [
        ("import", lambda out: ("export", out, f"{out}.exported")),
        ("export", lambda out: ("import", out, f"{out}.imported")),
        ("export", lambda out: ("export", out.with_name("run"), out, "--force")),
    ],
)
def test_a_kill_between_the_renames_loses_nothing(
    checkpoint: Path,
    run: Path,
    tmp_path: Path,
    verb: str,
    again: Callable[[Path], tuple[object, ...]],
) -> None:
    """The next verb that meets the path restores the old directory."""
    out = tmp_path / "out"
    command = (verb, checkpoint if verb == "import" else run, out)
    ok(*command)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, command), "--force"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    ok(*again(out))
    assert out.is_dir()
    ok(*command, "--force")
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".old", ".tmp"))]
