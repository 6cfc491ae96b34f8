"""`bert-jax plan` of a configuration with `score`: compiles the forward program for TPUs."""

from collections.abc import Sequence
from typing import Any, cast

import pydantic
from rich.console import Console

from bert_jax.config import AnyConfig, RunConfig, as_config
from bert_jax.corpus.section import ScoreSection
from bert_jax.encoders.registry import AnyModelSection, model_section
from bert_jax.errors import UserError
from bert_jax.model.section import Execution
from bert_jax.narration import narrator_of
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.inference import InferencePlan, plan_inference
from bert_jax.planning.request import ForwardRequest
from bert_jax.runs.settings import describe
from bert_jax.section import need
from bert_jax.verbs import starting_jax
from bert_jax.verbs.plan import require_topologies, vocabulary_of


def plan_score(
    config: AnyConfig,
    topologies: Sequence[str],
    *,
    lengths: Sequence[pydantic.PositiveInt] = (),
    slices: pydantic.PositiveInt | None = None,
    vocab_size: pydantic.PositiveInt | None = None,
    fresh: bool = False,
    console: Console | None = None,
    **overrides: Any,
) -> list[InferencePlan]:
    """Compiles the forward program of `score`; estimates documents per second and cost.

    ``plan_score("score.yaml", ["v5e:1x1"], lengths=[128])[0].dollars(load_prices())``

    Needs neither the corpus nor a TPU, only libtpu, which contains the compiler.

    Args:
        config: a configuration, a dict of its settings or its file, with `score`. The model is the
            section `model`, if there is one, otherwise `score.model`.
        topologies: names in any spelling, as for `plan`.
        lengths: tokens of a row, for a plan of each. Default: `score.max_length`, or the longest
            text that the model takes by default.
        slices: number of slices of each topology. Default: `mesh.slices`.
        vocab_size: size of a tokenizer that does not exist yet.
        fresh: ignore cached results.
        console: console for the progress. Default: standard error.
        overrides: settings that replace the configuration's, see `bert_jax.pretrain`.

    Returns:
        A plan for each topology and length.

    Raises:
        UserError: the topology is unknown, libtpu is missing, or the model cannot be read, lacks
            the output, or has fewer positions than a length.
        RunStopped: the compiler failed.
    """
    config = as_config(config, overrides)
    require_topologies(topologies)
    section = need(config.score, "score", "plan")
    model, pieces = _model(config, section, vocab_size)
    positions = model.resolve(vocab_size=pieces).max_position_embeddings
    chosen = lengths or [section.max_length or model.heads.longest_text(positions)]
    if max(chosen) > positions:
        raise UserError(
            "score.max_length",
            f"found {max(chosen)}, allowed: 4 to {positions}",
            place="--length" if lengths else "score.max_length",
        )
    if section.result == "head" and model.heads.task is None:
        raise UserError(
            "score.head",
            f"found {describe(model.heads)}, allowed: a task head; or score.result=vector",
            place="model.heads.task" if config.model is not None else "score.model",
        )
    requests = [
        ForwardRequest(topology=each, vocab_size=pieces, model=model, length=length, score=section)
        for each in topologies
        for length in chosen
    ]
    compiler = Compiler(narrator=narrator_of(console or Console(stderr=True)), fresh=fresh)
    return plan_inference(requests, slices=slices or config.mesh.slices, compiler=compiler)


def _model(
    config: RunConfig, section: ScoreSection, vocab_size: int | None
) -> tuple[AnyModelSection, int]:
    """Returns the section of the model, and the number of its pieces."""
    if config.model is not None:
        return config.model, vocab_size or vocabulary_of(config)
    with starting_jax():
        from bert_jax.interop.open_model import open_model
        from bert_jax.parallel.mesh import open_mesh
    mesh = open_mesh(one_device=True)
    (_, tokenizer, architecture, heads, _), run = open_model(
        section.model, checkpoint=section.checkpoint, mesh=mesh
    )
    execution = Execution() if run is None else run.model.execution
    pieces = tokenizer.vocab_size
    found = model_section(architecture, pieces=pieces, execution=execution, heads=heads)
    return cast(AnyModelSection, found), pieces
