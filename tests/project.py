"""A small real project: this Python's own documentation → tokenizer → datasets → configuration."""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from bert_jax.cli.commands import cli
from bert_jax.config import parse_config
from bert_jax.errors import KeyedError, UserError
from bert_jax.pipelines.python_docs import write_python_docs
from bert_jax.verbs.examples import examples
from bert_jax.verbs.vocab import vocab
from tests.run_config import (  # noqa: F401  (tests take them from here)
    DROPOUT,
    MESH,
    VOCAB_SIZE,
    one_phase,
    project_config,
)

ROOT = Path(__file__).resolve().parent.parent


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """Writes a configuration file."""
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def invoke(*arguments: object) -> Result:
    """Runs the command line in this process."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def ok(*arguments: object) -> str:
    """Runs the command line in this process; asserts success and returns its output."""
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


class Refusal(str):
    """The line that an error prints, with the error's key and place."""

    key: str
    place: str


def refused(*arguments: object, code: int = 2) -> Refusal:
    """Runs the command line in this process. Asserts the exit code; returns the only error line."""
    result = invoke(*arguments)
    assert result.exit_code == code, (result.output, result.exception)
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("bert-jax: "))
    error = result.exception and result.exception.__cause__
    assert isinstance(error, KeyedError), error
    assert line == f"bert-jax: {error.line()}"
    refusal = Refusal(line)
    refusal.key, refusal.place = error.key, error.place
    return refusal


def bert_jax(*arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a new process with a user's environment."""
    return subprocess.run(
        [sys.executable, "-m", "bert_jax.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """Returns the environment of a user without an accelerator."""
    kept = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    return kept | {
        "TPU_SKIP_MDS_QUERY": "1",
        "PYTHONPATH": str(ROOT),
    }


@contextlib.contextmanager
def refuses(
    key: str, *, kind: type[KeyedError] = UserError, **values: object
) -> Iterator[pytest.ExceptionInfo[KeyedError]]:
    """Asserts that a block raises an error with this key and one line; see `says`."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    says(error, key=key, **values)
    assert "\n" not in str(error)


def says(error: Any, /, *, key: str | None = None, place: object = None, **values: Any) -> None:
    """Asserts the key and the place of an error, and that its text contains all values.

    Args:
        error: a `KeyedError` or a `Refusal`.
        key: its key; None for any.
        place: its place; None for any.
        values: numbers, texts, or lists of them; None for no value. Their names only say what they
            are.
    """
    text = str(error)
    assert key in (None, error.key), text
    assert place is None or error.place == str(place), text
    for name, value in values.items():
        for each in value if isinstance(value, list | tuple | set) else [value]:
            spelled = {str(each), repr(each)}
            spelled |= {f"{each:,}", f"0x{each:02x}"} if isinstance(each, int) else set()
            spelled |= {f"{each:g}"} if isinstance(each, float) else set()
            assert each is None or any(form in text for form in spelled), (name, each, text)


def said(result: subprocess.CompletedProcess[str]) -> Refusal:
    """Asserts exit code 2 and one error line. Returns the line and its key, without a place."""
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    lines = [line for line in result.stderr.splitlines() if line.startswith("bert-jax: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return keyed(lines[0])


def keyed(line: str) -> Refusal:
    """Parses the key at the end of an error line."""
    refusal = Refusal(line)
    refusal.key, refusal.place = line.rpartition("[")[2].removesuffix("]"), ""
    return refusal


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Returns a directory shared by all pytest-xdist processes; the first process fills it.

    Args:
        tmp_path_factory: fixture of the session.
        name: name of the directory.
        make: function that fills the directory.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    root, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(root)
            done.touch()
    return root


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, tokenizer, and datasets with 32 and 48 tokens per row, made once through the verbs.

    Tests must not write to this directory.
    """
    return made_once(tmp_path_factory, "project", _make_project)


def _make_project(root: Path) -> None:
    write_python_docs(root / "text", max_bytes=250_000)
    values = project_config(root)
    config = parse_config(values, source="test")
    vocab(config)
    quiet = Console(quiet=True)
    examples(config, console=quiet)
    longer = [f"examples.output={root / 'dataset48'}", "examples.max_seq_length=48"]
    examples(parse_config(values, longer, source="test"), console=quiet)
