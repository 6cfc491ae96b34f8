"""`bert-jax plan`: compiles a run for TPU topologies, without a TPU."""

from collections.abc import Sequence
from typing import Any

import pydantic
from etils import epath
from rich.console import Console

from bert_jax.config import AnyConfig, RunConfig, as_config, require_training
from bert_jax.errors import UserError
from bert_jax.narration import narrator_of
from bert_jax.objectives.registry import Registered, teacher_of
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.estimate import Plan
from bert_jax.planning.planning import make_plan
from bert_jax.planning.request import CannotPlan, CompileRequest
from bert_jax.section import need
from bert_jax.text import load_tokenizer
from bert_jax.verbs import starting_jax


def plan(
    config: AnyConfig,
    topologies: Sequence[str],
    *,
    slices: pydantic.PositiveInt | None = None,
    vocab_size: pydantic.PositiveInt | None = None,
    exact: bool = False,
    fresh: bool = False,
    suggest: bool | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> list[Plan]:
    """Compiles a run's train and evaluation steps; estimates memory, time and collectives.

    ``plan(load_config("configs/pretrain/base.yaml"), ["v3:4x4"])[0].hours``

    Needs neither the data nor a TPU, only libtpu, which contains the compiler.

    Args:
        config: a configuration, a dict of its settings or its file, with `model` and `train`, as
            for `pretrain`.
        topologies: names in any spelling: ``v3:4x4``, ``v5litepod-16``, ``v4-32``.
        slices: number of slices of each topology. Default: `mesh.slices`.
        vocab_size: size of a tokenizer that does not exist yet.
        exact: generate code, which takes minutes. By default, the cycles of models with more than
            two layers are estimated.
        fresh: ignore cached results.
        suggest: search for settings that fit; compiles up to eleven candidates. Default: search
            only if the run does not fit.
        console: console for the progress. Default: standard error.
        overrides: settings that replace the configuration's, see `bert_jax.pretrain`.

    Raises:
        UserError: the topology is unknown, libtpu is missing, or mesh, batch or model do not fit
            the topology.
        RunStopped: the compiler failed.
    """
    config = as_config(config, overrides)
    require_topologies(topologies)
    if slices is not None:
        mesh = config.mesh.model_copy(update={"slices": slices})
        config = config.model_copy(update={"mesh": mesh})
    compiler = Compiler(narrator=narrator_of(console or Console(stderr=True)), fresh=fresh)
    requests = [train_step(config, each, vocab_size=vocab_size) for each in topologies]
    return [make_plan(each, exact=exact, suggest=suggest, compiler=compiler) for each in requests]


def require_topologies(topologies: Sequence[str]) -> None:
    """Raises UserError if there is no topology to plan for."""
    if not topologies:
        raise UserError(
            "plan.topology_missing",
            "missing. Give one such as v3:4x4, v5litepod-16 or v4-32.",
            place="--topology",
        )


def train_step(
    config: RunConfig, topology: str, *, vocab_size: int | None = None
) -> CompileRequest:
    """Returns the request for the train step of a run's first phase.

    Raises UserError if `model`, `train` or the size of the vocabulary is missing.
    """
    require_training(config, "train", verb="plan")
    return CompileRequest(
        topology=topology,
        vocab_size=vocab_size or vocabulary_of(config),
        model=need(config.model, "model", "plan"),
        objective=_objective(config),
        mesh=config.mesh,
        optimizer=config.optimizer,
        train=need(config.train, "train", "plan"),
    )


def _objective(config: RunConfig) -> Registered:
    """Returns the objective. Its teacher, if it has one, is a run directory."""
    if teacher_of(config.objective) is None:
        return config.objective
    with starting_jax():
        from bert_jax.verbs.teachers import with_local_teacher
    return with_local_teacher(config.objective)


def vocabulary_of(config: RunConfig) -> int:
    """Returns the size of the tokenizer, or `vocab.size` if the tokenizer does not exist yet."""
    if config.tokenizer is not None and epath.Path(config.tokenizer).exists():
        return load_tokenizer(config.tokenizer).vocab_size
    if config.vocab is not None and config.vocab.extend is None:
        return config.vocab.size
    raise CannotPlan(
        "plan.vocab_size",
        f"found {config.tokenizer}, which is not here. Give --vocab-size, such as 30522.",
        place="tokenizer",
    )
