"""What is to be compiled: everything that decides a program, and nothing else."""

import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self

import pydantic

from bert_jax.errors import UserError
from bert_jax.model.config import ModelSection
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import Section
from bert_jax.train.sections import TrainSection

StepKind = Literal["train", "evaluation"]
VERSIONED = ("jax", "jaxlib", "libtpu", "flax", "optax")


class CannotPlan(UserError):
    """Something that a plan needs is not on this machine; of the run it says nothing."""


class CompileRequest(Section):
    """One program for one topology."""

    topology: str  # of one slice, as `bert_jax.parallel.topology` spells it
    kind: StepKind  # which step
    phase: int = pydantic.Field(ge=0)  # index of the phase
    vocab_size: int = pydantic.Field(ge=1)  # of the tokenizer, which need not be here
    model: ModelSection  # as configured; `unroll` as it is to be compiled
    objective: ObjectiveSection  # as configured
    mesh: MeshSection  # with the number of slices
    optimizer: OptimizerSection  # as configured
    train: TrainSection  # as configured; where the data is does not matter
    quick: bool = False  # no code is generated, and cycles are estimated, see `quick`

    def key(self) -> str:
        """Returns a digest of the request, the libraries' versions and our own code.

        Two requests with one key give one program: what is compiled once need not be again.
        """
        deciding = self._deciding().model_dump_json() + code_and_versions()
        return hashlib.sha256(deciding.encode()).hexdigest()[:32]

    def _deciding(self) -> Self:
        """Returns the request without what leaves the program as it is."""
        phases = tuple(phase.model_copy(update={"dataset": ""}) for phase in self.train.phases)
        return self.model_copy(
            update={
                "mesh": MeshSection(
                    data=self.mesh.data,
                    fsdp=self.mesh.fsdp,
                    tensor=self.mesh.tensor,
                    slices=self.mesh.slices,
                ),
                "train": TrainSection(phases=phases, evaluation=self.train.evaluation),
            }
        )


def code_and_versions() -> str:
    """Returns what says which libraries and which of our own code compile."""
    return f"{versions()} {_code()}"


def versions() -> str:
    """Returns the libraries that compile, with their versions."""
    return " ".join(map(_version, VERSIONED))


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} none"


@lru_cache(maxsize=1)
def _code() -> str:
    """Returns a digest of the packages that a step is made of, and of those that read it."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    packages = ("kernels", "model", "objectives", "optim", "parallel", "planning", "train")
    for package in (*packages, "data/rows"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
