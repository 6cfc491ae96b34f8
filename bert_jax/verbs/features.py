"""`bert-jax features`: texts → vectors of their pieces, words or sentences."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.feature_extraction.extractor import (
    Counts,
    Extractor,
    ExtractSection,
    Feature,
    Level,
    Pool,
)
from bert_jax.feature_extraction.layers import DEFAULT, MIX, Layers, parse_layers
from bert_jax.feature_extraction.probe import ProbeScore, mixed, probe
from bert_jax.feature_extraction.texts import Columns, read_records
from bert_jax.feature_extraction.writers import Sink, check_output, open_sink
from bert_jax.files.small import write_whole
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import Run, open_run
from bert_jax.runs.parameters import load_params

PROBE: Final = "probe.json"
LONGEST: Final = 512  # pieces, where the model has more positions
SECONDS_BETWEEN_LINES: Final = 5.0


class Features(NamedTuple):
    """What was written."""

    output: Path
    step: int  # of the checkpoint
    width: int  # numbers in a vector
    counts: Counts
    score: ProbeScore | None


def features(
    run_dir: str,
    input_path: str,
    output: str,
    *,
    layers: str = DEFAULT,
    level: Level = "sentence",
    pool: Pool | None = None,
    column: str | None = None,
    pair_column: str | None = None,
    probe_column: str | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    checkpoint: str = "auto",
    mesh: MeshSection | None = None,
    force: bool = False,
    console: Console | None = None,
) -> Features:
    """Writes the contextual embeddings of every text of a file, in its order.

    Args:
        run_dir: of `pretrain` or `import`, with whatever heads.
        input_path: .txt (a text per line), .jsonl, .csv, .tsv or .parquet.
        output: .npz, .parquet or .jsonl.
        layers: a name of `layers.NAMES`, numbers with commas between, or "mix" for a probe.
        level: a vector per piece, word (the mean of its pieces) or text.
        pool: how a text becomes one vector: of [CLS], or the mean (None) over all pieces, the
            special ones included.
        column: where a table's texts are; None for its only other column.
        pair_column: where their second texts are.
        probe_column: the labels of a probe.
        max_length: pieces, special ones included; longer texts are cut. None for as many as the
            model has positions, and 512 at most.
        batch_size: rows at a time; it changes no feature.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        mesh: devices to use; None for all there are.
        force: replace `output`.
        console: where progress and the result are shown.

    Returns:
        What was written. With a label column, sentence features and logistic regression are
        cross-validated as well and ``probe.json`` lies beside `output`.

    Raises:
        UserError: a file, column, layer, run or checkpoint that is not there; a table that is
            ragged; `output` is there.
    """
    target = Path(output)
    for path in (input_path, output):
        if "://" in path:
            raise UserError(f"features: found {path}, allowed: a local path")
    probing = probe_column is not None
    _check_options(layers, level=level, pool=pool, probing=probing)
    check_output(target, force=force)
    if probing:
        _check_probe(target, force=force)
    run = open_run(run_dir)
    chosen = parse_layers(layers, depth=run.architecture.num_hidden_layers)
    section = ExtractSection(
        level=level,
        pool=pool or "mean",
        max_length=_length(max_length, run),
        batch_size=_batch_size(batch_size),
    )
    records = read_records(Path(input_path), Columns(column, pair_column, probe_column))
    # A wrong column is said before minutes go into reading a checkpoint.
    first = next(records, None)
    if first is None:
        raise UserError(f"{input_path}: found no text, allowed: one or more")
    extractor, step = _extractor(run, section, chosen, checkpoint=checkpoint, mesh=mesh)

    def stream() -> Iterator[Feature]:
        with _telling(console, extractor.counts) as tell:
            yield from extractor(itertools.chain([first], records), after_batch=tell)

    width = run.architecture.hidden_size if layers == MIX else extractor.width
    with open_sink(target, level=level, width=width) as sink:
        score = _write(stream(), sink, probing=probing, states=_states(chosen))
    if score is not None:
        facts = {**score._asdict(), "layers": layers, "pool": section.pool, "step": step}
        write_whole(epath.Path(target.parent / PROBE), json.dumps(facts, indent=2).encode())
    result = Features(target, step, width, extractor.counts, score)
    if console is not None:
        _show(result, console, level=level, max_length=section.max_length)
    return result


def _check_probe(target: Path, *, force: bool) -> None:
    """Refuses to write over another probe's score unasked."""
    path = target.parent / PROBE
    if path.exists() and not force:
        raise UserError(f"{path}: is already there; allowed: another directory, or --force")


def _check_options(layers: str, *, level: Level, pool: Pool | None, probing: bool) -> None:
    if layers == MIX and not probing:
        raise UserError('--layers: found "mix" without --probe, allowed: with it, to learn from')
    if level != "sentence" and (probing or pool is not None):
        option = "--probe" if probing else "--pool"
        raise UserError(f"{option}: found it with --level {level}, allowed: with --level sentence")


def _length(asked: int | None, run: Run) -> int:
    positions = run.architecture.max_position_embeddings
    if asked is None:
        return min(positions, LONGEST)
    if not 4 <= asked <= positions:
        raise UserError(f"--max-length: found {asked}, allowed: 4 to {positions}, the positions")
    return asked


def _batch_size(asked: int) -> int:
    if asked < 1:
        raise UserError(f"--batch-size: found {asked}, allowed: 1 or more")
    return asked


def _states(layers: Layers) -> int | None:
    return len(layers.states) if layers.name == MIX else None


def _extractor(
    run: Run, section: ExtractSection, layers: Layers, *, checkpoint: str, mesh: MeshSection | None
) -> tuple[Extractor, int]:
    loaded = load_params(run, checkpoint=checkpoint, mesh=open_mesh(mesh))
    extractor = Extractor(
        section,
        tokenizer=run.tokenizer,
        layers=layers,
        hidden_size=run.architecture.hidden_size,
        graphdef=loaded.model.graphdef,
        params=loaded.params,
        mesh=loaded.mesh,
    )
    return extractor, loaded.step


def _write(
    found: Iterator[Feature], sink: Sink, *, probing: bool, states: int | None
) -> ProbeScore | None:
    """Writes features as they come; a probe needs those of all texts, and a mix before any."""
    if not probing:
        for feature in found:
            sink.add(feature)
        return None
    kept = list(found)
    vectors = np.concatenate([feature.vectors for feature in kept])
    if states is not None:
        vectors = vectors.reshape(len(kept), states, -1)
    score = probe(vectors, [feature.record.label or "" for feature in kept], mix=states is not None)
    if score.mix is not None:
        vectors = mixed(vectors, score.mix)
    for feature, vector in zip(kept, vectors, strict=True):
        sink.add(feature._replace(vectors=vector[None]))
    return score


@contextlib.contextmanager
def _telling(console: Console | None, counts: Counts) -> Iterator[Callable[[], None]]:
    """Gives what to call after each batch: a live line on a terminal, a plain one now and then."""
    if console is None:
        yield lambda: None
        return
    started = told = time.monotonic()

    def line() -> str:
        rate = counts.texts / max(time.monotonic() - started, 1e-9)
        return f"{counts.texts:,} texts, {rate:,.0f} texts/s, {counts.padding:.0%} padding"

    with contextlib.ExitStack() as stack:
        live = stack.enter_context(console.status("")) if console.is_terminal else None

        def tell() -> None:
            nonlocal told
            now = time.monotonic()
            if now - told < (0.2 if live else SECONDS_BETWEEN_LINES):
                return
            told = now
            if live:
                live.update(line())
            else:
                console.print(line(), highlight=False)

        yield tell


def _show(result: Features, console: Console, *, level: Level, max_length: int) -> None:
    counts = result.counts
    parts = [f"{result.output}: step {result.step}, {counts.texts:,} texts, {level} features"]
    parts.append(f"{result.width} wide, {counts.padding:.0%} padding")
    if counts.cut:
        parts.append(f"{counts.cut:,} texts cut at {max_length} pieces")
    if counts.empty_total:
        more = ", …" if counts.empty_total > len(counts.empty) else ""
        lines = ", ".join(map(str, counts.empty)) + more
        parts.append(f"{counts.empty_total:,} texts empty (line {lines})")
    console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
    if result.score is not None:
        console.print(f"probe: {result.score.line()}", highlight=False, soft_wrap=True)
        if not result.score.converged:
            console.print("probe: not converged after 1,000 iterations", highlight=False)
