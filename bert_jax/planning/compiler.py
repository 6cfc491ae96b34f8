"""Compiles requests in processes of their own, and keeps what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pydantic
from rich.console import Console

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.atomic import write_whole
from bert_jax.planning.compiled_step import STEP, CompiledStep
from bert_jax.planning.request import CompileRequest

# What the process that compiles must see: no TPU to look for, no flags of the CPU's compiler, which
# libtpu refuses, and leave to stand beside another that compiles.
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "XLA_FLAGS": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_LOG_DIR": "disabled",
    # A program out of JAX's own cache brings no text.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


def cache_directory() -> Path:
    """Returns where compiled steps are kept: ``$XDG_CACHE_HOME/bert_jax/plan``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "bert_jax" / "plan"


def check_compiler() -> None:
    """Refuses to go on without libtpu, which holds the compiler.

    Raises:
        UserError: naming the extra.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "libtpu: not installed, and it holds the compiler for TPUs; allowed: pip install "
            "'bert-jax[plan]', on Linux x86-64"
        )


def compiled_step(
    request: CompileRequest, *, title: str, console: Console, fresh: bool = False
) -> CompiledStep:
    """Returns what the compiler says of a request, from the cache where it has been asked before.

    Args:
        request: what to compile.
        title: of it, for the progress line.
        console: where progress is shown.
        fresh: compile even what is kept.

    Raises:
        UserError: no libtpu, or topology, mesh, batch and model do not fit together.
        RunStopped: the compiler failed.
    """
    kept = cache_directory() / f"{request.key()}.json"
    if not fresh and (found := _read(kept)) is not None:
        return found
    check_compiler()
    result = _compile(request, title=title, console=console)
    if (refused := result.get("refused")) is not None:
        raise UserError(f"{request.topology}: {refused}")
    step = STEP.validate_python(result["step"])
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, STEP.dump_json(step))
    return step


def _read(kept: Path) -> CompiledStep | None:
    try:
        return STEP.validate_json(kept.read_bytes())
    except (FileNotFoundError, pydantic.ValidationError):
        return None  # never asked, or of an older form


def _compile(request: CompileRequest, *, title: str, console: Console) -> dict:
    with tempfile.TemporaryDirectory(prefix="bert_jax_plan_") as folder:
        output, log = Path(folder) / "result.json", Path(folder) / "log"
        environment = {**os.environ, **_ENVIRONMENT}
        environment.pop("JAX_NUM_CPU_DEVICES", None)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "bert_jax.planning.worker", str(output)],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                env=environment,
            )
            try:
                assert process.stdin is not None
                process.stdin.write(request.model_dump_json().encode())
                process.stdin.close()
                _wait(process, title=title, console=console)
            finally:
                process.kill()
                process.wait()
        if not output.exists():
            raise RunStopped(f"compiling {title} failed: {_last_line(log)}")
        return json.loads(output.read_text(encoding="utf-8"))


def _wait(process: subprocess.Popen[bytes], *, title: str, console: Console) -> None:
    started = time.monotonic()
    with console.status("") as status:
        while True:
            passed = time.monotonic() - started
            status.update(f"compiling {title} … {passed:.0f} s")
            try:
                process.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                continue
    console.print(f"compiled {title} in {time.monotonic() - started:.0f} s", style="dim")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")[:500]
