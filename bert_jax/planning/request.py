"""A request for one compiled program: all settings that decide it, and no other."""

import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.model.config import ModelSection
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import Section
from bert_jax.train.sections import TrainSection

StepKind = Literal["train", "evaluation"]


class CannotPlan(UserError):
    """Something that a plan needs is not on this machine; of the run it says nothing."""


class CompileRequest(Section):
    """One program for one topology."""

    topology: str  # of one slice, as `bert_jax.parallel.topology` spells it
    kind: StepKind = "train"  # which step
    phase: int = pydantic.Field(default=0, ge=0)  # index of the phase
    vocab_size: int = pydantic.Field(ge=1)  # of the tokenizer, which need not be here
    model: ModelSection  # as configured; `unroll` as it is to be compiled
    objective: ObjectiveSection  # as configured
    mesh: MeshSection  # with the number of slices
    optimizer: OptimizerSection  # as configured
    train: TrainSection  # as configured; where the data is does not matter
    quick: bool = False  # no code is generated, and cycles are estimated

    @property
    def title(self) -> str:
        """The step in words: ``"the train step of phase 0 for v5e:4x4"``."""
        return f"the {self.kind} step of phase {self.phase} for {self.topology}"

    def key(self) -> str:
        """Returns a digest of the request, the libraries' versions and our own code.

        Two requests with one key give one program: what is compiled once need not be again.
        """
        own = self.mesh
        mesh = MeshSection(data=own.data, fsdp=own.fsdp, tensor=own.tensor, slices=own.slices)
        phases = tuple(phase.model_copy(update={"dataset": ""}) for phase in self.train.phases)
        deciding = self.model_copy(
            update={
                "mesh": mesh,
                "train": TrainSection(phases=phases, evaluation=self.train.evaluation),
            }
        )
        text = f"{deciding.model_dump_json()}{versions()} {_code()}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def versions() -> str:
    """Returns the libraries that compile, with their versions."""
    found = []
    for package in ("jax", "jaxlib", "libtpu", "flax", "optax"):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} none")
    return " ".join(found)


@lru_cache(maxsize=1)
def _code() -> str:
    """Returns a digest of the packages that make a step, and of those that read it."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    packages = ("kernels", "model", "objectives", "optim", "parallel", "planning", "train")
    for package in (*packages, "data/rows"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
