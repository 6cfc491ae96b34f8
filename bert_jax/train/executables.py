"""Compiled steps in files: saved where there is time to compile, loaded where chips wait.

A file is a line of JSON, which says what the executable is for, and the executable as
`jax.experimental.serialize_executable` has it. A step is traced in any case; the file that is
loaded is one for the very same program, compiler, flags and devices, or none.

JAX's form is a pickle around the compiler's own. Here nothing is unpickled but the few classes that
describe arrays, layouts and devices. The executable itself is code: whoever can write to the
directory decides what the devices, or this processor, do. So the configuration alone names it.
"""

import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import jax
from etils import epath
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from bert_jax.errors import UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.version import __version__

StepKind: TypeAlias = Literal["train", "evaluation"]
Facts: TypeAlias = Mapping[str, str]

SUFFIX: Final = ".executable"
_LONGEST_HEAD: Final = 1 << 20  # bytes
# What the facts are called in messages; the program's own name says nothing.
_PROGRAM, _HOST = "program", "processor"
_OPAQUE: Final = {
    _PROGRAM: "another program (configuration, shapes or code)",
    _HOST: "a processor with other instructions",
    "device order": "devices in another order",
}
_ALLOWED: Final = frozenset(
    (
        *(("jax", "P"), ("jax._src.core", "ManualAxisType"), ("jax._src.core", "MemorySpace")),
        *(("jax._src.core", "ShapedArray"), ("jax._src.interpreters.pxla", "AllArgsInfo")),
        ("jax._src.interpreters.pxla", "UnloadedMeshExecutable"),
        *(("jax._src.layout", "Layout"), ("jax._src.linear_util", "DebugInfo")),
        *(("jax._src.mesh", name) for name in ("AbstractDevice", "AbstractMesh", "AxisType")),
        *(("jax._src.mesh", "Mesh"), ("jax._src.named_sharding", "_unpickle_named_sharding")),
        *(("jax._src.stages", "ArgInfo"), ("jaxlib._jax", "DeviceList"), ("numpy", "dtype")),
        *(("ml_dtypes", "bfloat16"), ("numpy", "ndarray")),
        ("numpy._core.multiarray", "_reconstruct"),
    )
)


class NotLoadable(Exception):
    """A file that holds no executable of ours, or not all of it."""


class _Unpickler(serialize_executable._JaxPjrtUnpickler):  # pyright: ignore[reportPrivateUsage]
    """JAX's own, closed to everything but what describes a program."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Returns a class of the list; NotLoadable: it is not on it."""
        if (module, name) not in _ALLOWED:
            raise NotLoadable(f"it names {module}.{name}, which no executable does")
        return super().find_class(module, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedExecutable:
    """What was written."""

    path: str  # of the file
    bytes: int  # of it
    seconds: float  # that compiling took, and loading saves


def facts_of(lowered: jax.stages.Lowered, mesh: Mesh, *, kind: StepKind) -> dict[str, str]:
    """Returns all that decides an executable, by name; the mesh's devices need not be here."""
    devices = mesh.devices.reshape(-1).tolist()
    first = devices[0]
    on_tpu = first.platform == "tpu"
    flags = ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if on_tpu else ("XLA_FLAGS",)
    order = [(device.id, device.process_index) for device in devices]
    facts = {
        "step": kind,
        _PROGRAM: _digest(lowered.as_text()),
        "bert_jax": __version__,
        "jax": jax.__version__,
        "compiler": _version("libtpu" if on_tpu else "jaxlib"),
        "flags": " ".join(filter(None, (os.environ.get(name, "").strip() for name in flags))),
        "devices": f"{len(devices)} × {first.device_kind}",
        "device order": _digest(repr(order)),
    }
    return facts | ({_HOST: _processor()} if first.platform == "cpu" else {})


def save_executable(
    directory: epath.PathLike, compiled: jax.stages.Compiled, facts: Facts, *, seconds: float
) -> SavedExecutable:
    """Writes an executable where `Executables` finds it.

    The directory, local or gs://, is made if it is not there. `facts` are those of `facts_of`;
    compiling took so many `seconds`. Raises UserError: the directory cannot be written to.
    """
    payload, _, _ = serialize_executable.serialize(compiled)
    head = {"facts": facts, "seconds": round(seconds, 3), "sha256": _digest(payload)}
    path = epath.Path(directory) / _file_name(facts)
    content = json.dumps(head).encode() + b"\n" + payload
    write_whole(path, content)
    return SavedExecutable(path=str(path), bytes=len(content), seconds=seconds)


class Executables:
    """A directory of compiled steps."""

    def __init__(
        self, directory: str, mesh: Mesh, *, say: Callable[[str], None] = lambda line: None
    ) -> None:
        """Looks at nothing yet but whether it is there.

        `say` gets a line for each step: loaded, or why not. Raises UserError: there is no such
        directory.
        """
        self._directory, self._mesh, self._say = epath.Path(directory), mesh, say
        if not self._directory.is_dir():
            raise UserError(
                f"train.executables: found {directory}, which is no directory; allowed: one that "
                f"`bert-jax plan … --save-executable` has written"
            )

    def compile(self, lowered: jax.stages.Lowered, *, kind: StepKind) -> jax.stages.Compiled:
        """Returns a step's program, loaded if it is there."""
        facts = facts_of(lowered, self._mesh, kind=kind)
        path = self._directory / _file_name(facts)
        try:
            if not path.exists():
                raise NotLoadable(self._why_none(facts))
            started = time.perf_counter()
            compiled, seconds = self._load(path, lowered)
        except (NotLoadable, jax.errors.JaxRuntimeError) as error:
            reason = first_line(error)
            self._say(f"train.executables: {reason}: the {kind} step is compiled anew")
            return lowered.compile()
        took = time.perf_counter() - started
        self._say(
            f"{kind} step loaded from {path} in {took:.1f} s; compiling it took {seconds:.1f} s"
        )
        return compiled

    def _load(
        self, path: epath.Path, lowered: jax.stages.Lowered
    ) -> tuple[jax.stages.Compiled, float]:
        head, payload = _split(path.read_bytes(), path)
        if _digest(payload) != head.get("sha256"):
            raise NotLoadable(f"{path} is damaged")
        devices = self._mesh.devices.reshape(-1).tolist()
        try:
            unpickler = _Unpickler(io.BytesIO(payload), devices[0].client, devices)
            unloaded, arguments, no_kwargs = unpickler.load()
        except NotLoadable as error:
            raise NotLoadable(f"{path} is refused: {error}") from error
        arguments = lowered.in_tree.unflatten(arguments)
        compiled = jax.stages.Compiled(
            unloaded.load(), [], arguments, lowered.out_tree, no_kwargs=no_kwargs
        )
        return compiled, float(head["seconds"])

    def _why_none(self, facts: Facts) -> str:
        """Returns what there is instead, and in what it differs."""
        nearest: tuple[int, str] | None = None
        for path in sorted(self._directory.glob(f"{facts['step']}-*{SUFFIX}")):
            try:
                found = _split(path.read_bytes(), path)[0]["facts"]
            except (NotLoadable, KeyError):
                continue
            differs = [name for name in {**facts, **found} if facts.get(name) != found.get(name)]
            told = {n: f'{n} "{found.get(n, "")}" (here "{facts.get(n, "")}")' for n in differs}
            text = ", ".join(_OPAQUE.get(name, line) for name, line in told.items())
            if nearest is None or len(differs) < nearest[0]:
                nearest = len(differs), f"{path} is for {text}"
        return nearest[1] if nearest else f"{self._directory} holds no {facts['step']} step"


def _split(content: bytes, path: epath.Path) -> tuple[dict[str, Any], bytes]:
    line, newline, payload = content.partition(b"\n")
    try:
        head = json.loads(line) if newline and len(line) < _LONGEST_HEAD else None
    except ValueError:
        head = None
    if not isinstance(head, dict):
        raise NotLoadable(f"{path} is no executable of bert-jax")
    return head, payload


def _file_name(facts: Facts) -> str:
    return f"{facts['step']}-{_digest(json.dumps(facts, sort_keys=True))[:24]}{SUFFIX}"


def _digest(content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(raw).hexdigest()


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} none"


def _processor() -> str:
    """Returns a digest of the instructions that this machine's processor has."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return _digest(f"{platform.machine()} {flags}")[:16]
