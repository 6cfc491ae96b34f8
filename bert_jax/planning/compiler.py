"""Compiles steps in separate processes, and caches the results."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pydantic

from bert_jax.data.worker_process import available_cores
from bert_jax.errors import RunStopped, error_from_json, not_installed
from bert_jax.files.atomic import write_whole
from bert_jax.files.scratch import user_cache
from bert_jax.narration import Narrator
from bert_jax.planning.compilation.step import LOG, REQUEST, RESULT, STEP, CompiledStep
from bert_jax.planning.request import CannotPlan, ProgramRequest

# Environment of a process that compiles for TPUs. The process does not search for a TPU, and does
# not lock out other compiling processes. XLA_FLAGS is empty, because libtpu refuses flags for CPUs.
TPU_COMPILER: Final[Mapping[str, str]] = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "XLA_FLAGS": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_LOG_DIR": "disabled",
}
# Disables JAX's compilation cache, because a cached program has no HLO text.
_NO_CACHE: Final[Mapping[str, str]] = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiler:
    """Compiles steps with a cache."""

    narrator: Narrator  # shows the progress
    fresh: bool = False  # whether to compile cached steps again

    def steps(
        self, requests: Sequence[ProgramRequest], *, title: str | None = None
    ) -> list[CompiledStep]:
        """Returns the compiled step of each request, from the cache if possible.

        A cached exact step also answers a quick request. Quick steps compile in parallel, one for
        each CPU core. `title` is for progress messages. Default: the titles of the requests.

        Raises:
            CannotPlan: if libtpu is not installed, or does not know the topology.
            UserError: if topology, mesh, batch and model do not fit together.
            RunStopped: if the compiler fails.
        """
        found = [self._kept(each, title or each.title) for each in requests]
        missing = [each for each, step in zip(requests, found, strict=True) if step is None]
        if missing and importlib.util.find_spec("libtpu") is None:
            purpose = "compiling for TPUs (Linux x86-64 only)"
            raise not_installed("libtpu", purpose, extra="plan", kind=CannotPlan)
        together = available_cores() if any(each.quick for each in missing) else 1
        batches = [missing[at : at + together] for at in range(0, len(missing), together)]
        compiled = iter([step for batch in batches for step in self._compiled(batch, title)])
        return [step or next(compiled) for step in found]

    def _kept(self, request: ProgramRequest, title: str) -> CompiledStep | None:
        """Returns a request's cached step and prints its date. Returns None if there is none."""
        exact = request.model_copy(update={"quick": False})
        for kept in dict.fromkeys((kept_at(exact), kept_at(request))):
            try:
                found = None if self.fresh else STEP.validate_json(kept.read_bytes())
            except (FileNotFoundError, pydantic.ValidationError):
                continue  # not cached, or cached in an older format
            if found is not None:
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.stat().st_mtime))
                line = f"{title}: cached on {when}; --fresh compiles it again"
                self.narrator.say(line, style="dim")
                return found
        return None

    def _compiled(
        self, requests: Sequence[ProgramRequest], title: str | None
    ) -> list[CompiledStep]:
        """Compiles requests in parallel, and caches the steps."""
        first, more = requests[0], len(requests) - 1
        title = title or first.title + (f" and {more} more" if more else "")
        with tempfile.TemporaryDirectory(
            prefix="bert_jax_plan_", ignore_cleanup_errors=True
        ) as root:
            folders = [Path(root) / str(at) for at in range(len(requests))]
            running = list(map(_start, requests, folders))
            usually = " (usually less than five minutes)" if first.quick else ""
            try:
                with self.narrator.stage(f"compiling {title}{usually}", at_once=True):
                    for process in running:
                        process.wait()
            finally:
                for process in running:
                    process.kill()
                    process.wait()
            steps = []
            for request, folder in zip(requests, folders, strict=True):
                steps.append(_result(folder, request.topology, title))
                kept_at(request).parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept_at(request), STEP.dump_json(steps[-1]))
        return steps


def kept_at(request: ProgramRequest) -> Path:
    """Returns the path of the cache file of a request's step."""
    return user_cache("plan") / f"{request.key()}.json"


def _start(request: ProgramRequest, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
    environment = {**os.environ, **_NO_CACHE, **TPU_COMPILER, "TMPDIR": str(folder)}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bert_jax.planning.compilation.step", str(folder)],
            stdout=log,
            stderr=log,
            env=environment,
        )


def _result(folder: Path, topology: str, title: str) -> CompiledStep:
    """Returns the step that a process compiled, or raises the error of that process."""
    if not (folder / RESULT).exists():
        log = (folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(log) if line.strip()), "no message")
        raise _compiler_failed(title, last[:500])
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if "unable" in result:
        raise error_from_json(result["unable"], CannotPlan)
    if "refused" in result:
        raise error_from_json(result["refused"]).located(topology)
    if (failed := result.get("failed")) is not None:
        error = _compiler_failed(title, failed)
        error.add_note(result["traceback"])  # for --debug
        raise error
    return STEP.validate_python(result["step"])


def _compiler_failed(title: str, reason: str) -> RunStopped:
    return RunStopped("plan.compiler", f"compiling {title} failed: {reason}")
