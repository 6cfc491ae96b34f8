"""Compiles requests in processes of their own, and keeps what they say."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final

import pydantic
from rich.console import Console

from bert_jax.data.cores import available_cores
from bert_jax.errors import RunStopped, UserError, not_installed
from bert_jax.files.atomic import write_whole
from bert_jax.files.scratch import user_cache
from bert_jax.planning.compilation.step import STEP, CompiledStep
from bert_jax.planning.request import CannotPlan, CompileRequest

# What the process that compiles must see: no TPU to look for, no flags of the CPU's compiler, which
# libtpu refuses, and leave to stand beside another that compiles.
TPU_COMPILER: Final[Mapping[str, str]] = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "XLA_FLAGS": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_LOG_DIR": "disabled",
}
# A program out of JAX's own cache brings no text.
_NO_CACHE: Final[Mapping[str, str]] = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
_EVERY: Final = 20.0  # seconds between two lines of progress without a terminal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiler:
    """How to compile: what to show, what to keep."""

    console: Console  # where progress is shown
    fresh: bool = False  # compile even what is kept


def check_compiler() -> None:
    """Refuses to go on without libtpu, which holds the compiler.

    Raises:
        CannotPlan: naming the extra.
    """
    if importlib.util.find_spec("libtpu") is None:
        purpose = "compiling for TPUs (Linux x86-64 only)"
        raise CannotPlan(not_installed("libtpu", purpose, extra="plan"))


def compiled_step(request: CompileRequest, *, title: str, compiler: Compiler) -> CompiledStep:
    """Returns what the compiler says of a request, from the cache where it has been asked before.

    `title` is for the progress line.

    Raises:
        UserError: no libtpu, or topology, mesh, batch and model do not fit together.
        RunStopped: the compiler failed.
    """
    if (found := kept_step(request, title=title, compiler=compiler)) is not None:
        return found
    check_compiler()
    result = _compile(request, title=title, compiler=compiler)
    step = STEP.validate_python(result["step"])
    kept = _kept_at(request)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, STEP.dump_json(step))
    return step


def compiled_together(
    requests: Sequence[CompileRequest], *, title: str, compiler: Compiler
) -> list[CompiledStep]:
    """Returns the same of several requests, compiled beside one another where there are cores.

    Raises:
        UserError: no libtpu, or topology, mesh, batch and model do not fit together.
        RunStopped: the compiler failed.
    """
    check_compiler()
    quiet = dataclasses.replace(compiler, console=Console(quiet=True))
    with ThreadPoolExecutor(min(len(requests), available_cores())) as pool:
        running = [
            pool.submit(compiled_step, each, title=title, compiler=quiet) for each in requests
        ]
        seconds = _wait(
            lambda timeout: not wait(running, timeout=timeout).not_done,
            title=f"{title} (usually less than five minutes)",
            console=compiler.console,
        )
        steps = [each.result() for each in running]
    _say(compiler.console, f"compiled {title} in {seconds:.0f} s")
    return steps


def kept_step(request: CompileRequest, *, title: str, compiler: Compiler) -> CompiledStep | None:
    """Returns what was said of a request before, and says so; None where it was never asked."""
    if compiler.fresh:
        return None
    kept = _kept_at(request)
    try:
        found = STEP.validate_json(kept.read_bytes())
    except (FileNotFoundError, pydantic.ValidationError):
        return None  # never asked, or of an older form
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.stat().st_mtime))
    _say(compiler.console, f"{title}: compiled on {when}; --fresh compiles again")
    return found


def _kept_at(request: CompileRequest) -> Path:
    return user_cache("plan") / f"{request.key()}.json"


def _compile(request: CompileRequest, *, title: str, compiler: Compiler) -> dict:
    with tempfile.TemporaryDirectory(prefix="bert_jax_plan_") as folder:
        output, log = Path(folder) / "result.json", Path(folder) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "bert_jax.planning.worker", str(output)],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                env=_environment() | {"TMPDIR": folder},
            )
            try:
                assert process.stdin is not None
                process.stdin.write(request.model_dump_json().encode())
                process.stdin.close()
                ended = partial(_ended, process)
                seconds = _wait(ended, title=title, console=compiler.console)
            finally:
                process.kill()
                process.wait()
        if not output.exists():
            raise RunStopped(f"compiling {title} failed: {_last_line(log)}")
        result = json.loads(output.read_text(encoding="utf-8"))
    if (unable := result.get("unable")) is not None:
        raise CannotPlan(unable)
    if (refused := result.get("refused")) is not None:
        raise UserError(f"{request.topology}: {refused}")
    if (failed := result.get("failed")) is not None:
        error = RunStopped(f"compiling {title} failed: {failed}")
        error.add_note(result["traceback"])  # for --debug
        raise error
    _say(compiler.console, f"compiled {title} in {seconds:.0f} s")
    return result


def _environment() -> dict[str, str]:
    environment = {**os.environ, **_NO_CACHE, **TPU_COMPILER}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    return environment


def _ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Returns whether a process ends within `timeout` seconds."""
    try:
        process.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        return False
    return True


def _wait(done: Callable[[float], bool], *, title: str, console: Console) -> float:
    """Shows progress until `done` returns true, and returns the seconds.

    `done(timeout)` waits for that many seconds at most.

    A terminal has one line that is replaced. A file or a pipe gets a line at once, then one every
    20 seconds.
    """
    started, due = time.monotonic(), 0.0
    with console.status("") as status:
        while True:
            passed = time.monotonic() - started
            line = f"compiling {title} … {passed:.0f} s"
            status.update(line)
            if passed >= due and not console.is_terminal:
                _say(console, line)
                due += _EVERY
            if done(1.0):
                return time.monotonic() - started


def _say(console: Console, line: str) -> None:
    console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")[:500]
