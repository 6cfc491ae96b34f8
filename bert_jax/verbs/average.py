"""`bert-jax average`: the weighted mean of the parameters of several checkpoints."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import jax
import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory
from bert_jax.files.remote import require_local
from bert_jax.interop.importing import to_device
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import PRETRAINED_HEADS, HeadsSection
from bert_jax.narration import doing
from bert_jax.objectives.registry import kind_for
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.lock import hold_output
from bert_jax.runs.open_checkpoints import (
    LoadedParams,
    load_params,
    read_checkpoints,
    write_checkpoints,
)
from bert_jax.runs.run_directory import Run, names_of_import, open_run, write_run
from bert_jax.runs.settings import describe
from bert_jax.task import Params
from bert_jax.verbs.import_checkpoint import SAVE_SLACK_BYTES, find_origin

_ROUNDING: Final = 1e-6  # allowed difference of the sum of weights from 1


class _Source(NamedTuple):
    name: str
    run: Run
    checkpoint: str


def average(
    models: Sequence[str],
    output: str,
    *,
    weights: Sequence[float] | None = None,
    last: int | None = None,
    checkpoint: str = "auto",
    ema: bool = False,
    force: bool = False,
    console: Console | None = None,
) -> Path:
    """Writes a run directory with the weighted mean of the parameters of several models.

    The verbs that accept an imported run accept it. It has the heads that all models have.

    Args:
        models: run directories, checkpoints of other programs, or models on a hub. With `ema`, one
            run suffices.
        output: a new local run directory.
        weights: weight of each model; their sum is 1. A weight below 0 leads away from its model.
            Default: equal weights.
        last: number of last checkpoints of a single run, instead of several models.
        checkpoint: `last`, `best`, a step, or `auto`, of every run. `auto` is as in `export`.
        ema: take the moving average of each run's parameters (`train.ema`).
        force: replace `output`.
        console: console for the result.

    Raises:
        UserError: the weights do not fit, the models have other architectures, tokenizers or tasks,
            or `output` exists.
    """
    require_local(output, verb="average")
    if last is not None:
        sources = _last(models, last)
    elif len(models) < 2 and not ema:
        allowed = "at least 2, or one run with --last or --ema"
        raise UserError.wrong("average.models", len(models), allowed, place="MODEL")
    else:
        sources = [
            _Source(each, open_run(find_origin(each).run_dir), checkpoint) for each in models
        ]
    shares = _shares(weights, len(sources))
    heads = _common_heads(sources)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_output(output))
        root = stack.enter_context(new_directory(Path(output), force=force, ours=names_of_import))
        stack.enter_context(doing(f"averaging {len(sources)} models"))
        _write(root, sources, shares, heads, output, ema)
    if console is not None:
        kind = "moving average of checkpoint" if ema else "checkpoint"
        parts = [
            f"{share:.4g} · {each.name} ({kind} {each.checkpoint})"
            for share, each in zip(shares, sources, strict=True)
        ]
        text = f"{output}: {describe(heads)}: {' + '.join(parts)}"
        console.print(text, markup=False, soft_wrap=True)
    return Path(output)


def _last(models: Sequence[str], last: int) -> list[_Source]:
    """Returns the last checkpoints of a run, the newest first."""
    if len(models) != 1:
        raise UserError.wrong("average.last", f"{len(models)} models", "one run", place="--last")
    run = open_run(find_origin(models[0]).run_dir)
    steps = read_checkpoints(run.directory, lambda found: found.on_disk.steps())
    if not 2 <= last <= len(steps):
        raise UserError(
            "average.checkpoints",
            f"found {last}, but {run.directory} has only {len(steps)} checkpoints",
            place="--last",
        )
    return [_Source(models[0], run, str(step)) for step in reversed(steps[-last:])]


def _shares(weights: Sequence[float] | None, count: int) -> list[float]:
    if weights is None:
        return [1 / count] * count
    # NaN fits no comparison.
    if len(weights) != count or not abs(sum(weights) - 1) <= _ROUNDING:
        raise UserError(
            "average.weights",
            f"found {len(weights)} of the sum {sum(weights):.6g}, allowed: {count} of the sum 1",
            place="--weights",
        )
    return list(weights)


def _common_heads(sources: Sequence[_Source]) -> HeadsSection:
    """Returns the heads that all models have. Raises UserError if their tasks differ."""
    first, *others = (each.run.heads for each in sources)
    flags = {
        name: all(getattr(each.run.heads, name) for each in sources) for name in PRETRAINED_HEADS
    }
    for heads in others:
        if heads.model_copy(update=flags) != first.model_copy(update=flags):
            raise UserError(
                "average.heads",
                f"found {describe(first)} and {describe(heads)}. Use models of one task.",
                place="MODEL",
            )
    return first.model_copy(update=flags)


def _write(
    root: Path,
    sources: Sequence[_Source],
    shares: Sequence[float],
    heads: HeadsSection,
    output: str,
    ema: bool,
) -> None:
    """Writes the run directory to `root`, which is later renamed to `output`."""
    first, mesh = sources[0].run, open_mesh(one_device=True)
    expected: LoadedParams | None = None
    total: Params = {}
    averaged: list[dict[str, object]] = []
    for source, share in zip(sources, shares, strict=True):
        found = load_params(source.run, checkpoint=source.checkpoint, ema=ema, mesh=mesh)
        expected = expected or found
        _require_same(sources[0], expected.architecture, source, found.architecture)
        name = str(source.run.directory)
        averaged.append({"model": name, "step": found.step, "ema": ema, "weight": share})
        part = _scaled(found.params, share)
        both = {
            name: jax.tree.map(np.add, total[name], part[name]) for name in total if name in part
        }
        total = both or part
    assert expected is not None
    # A fine-tuned model needs the settings of its task.
    config = RunConfig.model_validate({"objective": {"kind": kind_for(heads)}})
    settings = first.settings if first.is_fine_tuned else config.model_dump(mode="json")
    write_run(
        epath.Path(root),
        settings,
        run_dir=output,
        execution=first.model.execution,
        heads=heads,
        architecture=expected.architecture,
        tokenizer=first.tokenizer,
        origin={"averaged": averaged},
    )
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(total))
    to_device(total)
    with write_checkpoints(root, save_bytes=largest + SAVE_SLACK_BYTES) as checkpointer:
        checkpointer.save_params(total, step=expected.step)


def _scaled(params: Params, share: float) -> Params:
    return jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(share), params)


def _require_same(
    first: _Source,
    expected: EncoderArchitecture,
    other: _Source,
    found: EncoderArchitecture,
) -> None:
    """Raises UserError if two models differ in tokenizer or architecture, apart from dropout."""
    if first.run.tokenizer.hash != other.run.tokenizer.hash:
        raise UserError(
            "average.tokenizer",
            f"found another tokenizer in {other.name} than in {first.name}",
            place="MODEL",
        )
    ours, theirs = (
        {"kind": each.kind, **each.with_dropout(0.0).model_dump()} for each in (expected, found)
    )
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if names:
        raise UserError(
            "average.architecture",
            f"{names[0]} is {theirs.get(names[0])}, but {ours.get(names[0])} in {first.name}",
            place="MODEL",
        )
