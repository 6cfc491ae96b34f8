"""A request to compile one program: exactly the settings that determine the program."""

import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import pydantic

from bert_jax.encoders.registry import AnyModelSection
from bert_jax.errors import UserError
from bert_jax.files.host_lock import host_lock
from bert_jax.objectives.registry import AnyObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import Section
from bert_jax.workflows.pretraining_settings import TrainSection

StepKind = Literal["train", "evaluation"]


class CannotPlan(UserError):
    """This machine lacks something that planning needs. The run itself may be correct."""


class CompileRequest(Section):
    """One program for one topology."""

    topology: str  # topology of one slice, as spelled by `bert_jax.parallel.topology`
    kind: StepKind = "train"
    phase: int = pydantic.Field(default=0, ge=0)  # index of the phase
    batch_size: int | None = None  # rows in a stage of the phase's batch ramp
    vocab_size: int = pydantic.Field(ge=1)  # number of pieces; the tokenizer is not read
    model: AnyModelSection
    objective: AnyObjectiveSection
    mesh: MeshSection  # includes the number of slices
    optimizer: OptimizerSection
    train: TrainSection  # dataset paths have no effect
    quick: bool = False  # whether to skip code generation and estimate the cycles

    @property
    def title(self) -> str:
        """The step as text: ``"the train step of phase 0 for v5e:4x4"``."""
        rows = "" if self.batch_size is None else f" with {self.batch_size} rows"
        return f"the {self.kind} step of phase {self.phase}{rows} for {self.topology}"

    def key(self) -> str:
        """Returns a hash of the request, the libraries' versions and this package's code.

        Requests with equal keys give equal programs, so the key names a cache file.
        """
        own = self.mesh
        sizes = MeshSection(data=own.data, fsdp=own.fsdp, tensor=own.tensor)
        mesh = sizes.model_copy(update={"slices": own.slices, "copies": own.copies})
        phases = tuple(phase.model_copy(update={"dataset": ""}) for phase in self.train.phases)
        deciding = self.model_copy(
            update={
                "mesh": mesh,
                "train": TrainSection(phases=phases, evaluation=self.train.evaluation),
            }
        )
        text = f"{deciding.model_dump_json()}{versions()} {_code()}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class CompilerVersions(NamedTuple):
    """The versions that decide a program's cycles and memory."""

    jax: str
    libtpu: str

    def __str__(self) -> str:
        """Returns ``"jax 0.12.0.1 and libtpu 0.0.50.1"``."""
        return f"jax {self.jax} and libtpu {self.libtpu}"


def installed_versions() -> CompilerVersions:
    """Returns the versions that compile here."""
    return CompilerVersions(*map(_installed, CompilerVersions._fields))


def host_versions() -> CompilerVersions:
    """Returns the versions that TPU hosts install."""
    pinned = host_lock("tpu").versions
    return CompilerVersions(*(pinned[name] for name in CompilerVersions._fields))


def versions() -> str:
    """Returns the names and versions of the libraries that take part in compilation."""
    libraries = ("jax", "jaxlib", "libtpu", "flax", "optax")
    return " ".join(f"{name} {_installed(name)}" for name in libraries)


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@lru_cache(maxsize=1)
def _code() -> str:
    """Returns a hash of all source files that influence a compiled step or its estimates."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    packages = ("encoders", "kernels", "model", "objectives", "optim", "parallel", "planning")
    for package in (*packages, "train", "data/rows"):
        # YAML files have the cost models of the quick form.
        paths = (path for end in ("py", "yaml") for path in (root / package).rglob(f"*.{end}"))
        for path in sorted(paths):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
