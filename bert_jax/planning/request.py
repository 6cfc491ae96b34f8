"""A request to compile one program: exactly the settings that determine the program."""

import abc
import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import pydantic

from bert_jax.corpus.section import ScoreSection
from bert_jax.encoders.registry import AnyModelSection
from bert_jax.errors import UserError
from bert_jax.files.host_lock import host_lock
from bert_jax.objectives.registry import AnyObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import Section
from bert_jax.train.evaluation_section import EvaluationSection
from bert_jax.workflows.pretraining_settings import TrainSection

StepKind = Literal["train", "evaluation"]
# Packages whose code decides a compiled step or its estimates.
_PACKAGES: Final = (
    *("encoders", "kernels", "model", "objectives", "optim", "parallel", "planning", "train"),
    "data/rows",
)
# Further packages that decide a forward program.
_OF_SCORE: Final = ("corpus", "feature_extraction", "inference", "tasks")


class CannotPlan(UserError):
    """This machine lacks something that planning needs. The run itself may be correct."""


class ProgramRequest(Section, abc.ABC):
    """One program for one topology."""

    topology: str  # topology of one slice, as spelled by `bert_jax.parallel.topology`
    vocab_size: int = pydantic.Field(ge=1)  # number of pieces; the tokenizer is not read
    model: AnyModelSection
    quick: bool = False  # whether to skip code generation and estimate the cycles

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """The program as text."""

    @abc.abstractmethod
    def key(self) -> str:
        """Returns a hash of the request, the libraries' versions and this package's code.

        Requests with equal keys give equal programs, so the key names a cache file.
        """


class CompileRequest(ProgramRequest):
    """One step of a run."""

    kind: StepKind = "train"
    phase: int = pydantic.Field(default=0, ge=0)  # index of the phase
    batch_size: int | None = None  # rows in a stage of the phase's batch ramp
    objective: AnyObjectiveSection
    mesh: MeshSection  # includes the number of slices
    optimizer: OptimizerSection
    train: TrainSection  # dataset paths have no effect

    @property
    def title(self) -> str:
        """The step as text: ``"the train step of phase 0 for v5e:4x4"``."""
        rows = "" if self.batch_size is None else f" with {self.batch_size} rows"
        return f"the {self.kind} step of phase {self.phase}{rows} for {self.topology}"

    def key(self) -> str:
        """Returns the hash of the request, see `ProgramRequest`."""
        own = self.mesh
        sizes = MeshSection(data=own.data, fsdp=own.fsdp, tensor=own.tensor)
        mesh = sizes.model_copy(update={"slices": own.slices, "copies": own.copies})
        no_data = {"dataset": "", "mixing": None}
        phases = tuple(phase.model_copy(update=no_data) for phase in self.train.phases)
        evaluation = self.train.evaluation
        if evaluation is not None:
            evaluation = EvaluationSection(batch_size=evaluation.batch_size)
        deciding = self.model_copy(
            update={
                "mesh": mesh,
                "train": TrainSection(phases=phases, evaluation=evaluation, ema=self.train.ema),
            }
        )
        return _hash(deciding.model_dump_json(), _PACKAGES)


class ForwardRequest(ProgramRequest):
    """The forward program of `bert-jax score` for rows of one length, on one device."""

    kind: Literal["forward"] = "forward"
    length: int = pydantic.Field(ge=1)  # tokens of a row, padding included
    score: ScoreSection

    @property
    def title(self) -> str:
        """The program as text: ``"the forward program of 128 tokens for v5e:1x1"``."""
        return f"the forward program of {self.length} tokens for {self.topology}"

    def key(self) -> str:
        """Returns the hash of the request, see `ProgramRequest`."""
        deciding = {"result", "pair", "pool", "layers", "dtype", "batch_tokens"}
        score = self.score.model_dump_json(include=deciding)
        own = self.model_dump_json(exclude={"score"})
        return _hash(f"{own}{score}", (*_PACKAGES, *_OF_SCORE))


AnyRequest = Annotated[CompileRequest | ForwardRequest, pydantic.Discriminator("kind")]


def _hash(request: str, packages: tuple[str, ...]) -> str:
    text = f"{request}{versions()} {_code(packages)}"
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


@lru_cache(maxsize=2)
def _code(packages: tuple[str, ...]) -> str:
    """Returns a hash of all source files of some packages."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in packages:
        # YAML files have the cost models of the quick form.
        paths = (path for end in ("py", "yaml") for path in (root / package).rglob(f"*.{end}"))
        for path in sorted(paths):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
