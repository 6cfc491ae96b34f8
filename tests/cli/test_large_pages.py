"""Training verbs start again with malloc's large pages, once, and only where that helps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.cli.large_pages import with_large_pages
from tests.project import ROOT, environment


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the process would be replaced by."""
    found: list[list[str]] = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("GLIBC_TUNABLES", None)
    monkeypatch.setattr(os, "execv", lambda program, arguments: found.append(arguments))
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "bert_jax.cli", "pretrain", "a b"])
    return found


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    return path


def test_it_starts_again_with_its_arguments_and_hands_nothing_on(
    started: list[list[str]], kernel: Path
) -> None:
    with_large_pages(kernel)
    assert started == [[sys.executable, "-m", "bert_jax.cli", "pretrain", "a b"]]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    with_large_pages(kernel)  # in the process that was started
    assert len(started) == 1
    assert "GLIBC_TUNABLES" not in os.environ


def test_it_does_not_where_that_changes_nothing_or_the_user_has_chosen(
    started: list[list[str]], kernel: Path, tmp_path: Path
) -> None:
    with_large_pages(tmp_path / "no such file")
    kernel.write_text("[always] madvise never\n")
    with_large_pages(kernel)
    kernel.write_text("always [madvise] never\n")
    os.environ["GLIBC_TUNABLES"] = ""
    with_large_pages(kernel)
    assert started == []


def test_a_command_that_was_started_again_ends_as_it_would_have() -> None:
    """A real start, with no tunables in its environment."""
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.cli", "pretrain", "no/such.yaml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={name: value for name, value in environment().items() if name != "GLIBC_TUNABLES"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("bert-jax: no/such.yaml: no such file")
