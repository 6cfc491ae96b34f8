"""A file of texts → a file of features, and a probe's score."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.feature_extraction import writers
from bert_jax.feature_extraction.extractor import (
    ExtractionCounts,
    ExtractionSettings,
    FeatureExtractor,
    Level,
    Pool,
    TextFeatures,
    settings_for,
)
from bert_jax.feature_extraction.layers import MIX
from bert_jax.feature_extraction.probe import ProbeScore, mixed, probe
from bert_jax.feature_extraction.texts import TextColumns, read_texts
from bert_jax.files.atomic import write_whole
from bert_jax.files.remote import is_remote
from bert_jax.inference.batch_size import check_batch_size
from bert_jax.inference.model import model_of_run
from bert_jax.narration import doing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import open_run
from bert_jax.runs.lock import hold_output

PROBE: Final = "probe.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractionRequest:
    """What to extract; the fields are the arguments of `bert_jax.features`."""

    run_dir: str
    input_path: str
    output: str
    layers: str | None = None
    level: Level = "sentence"
    pool: Pool | None = None
    columns: TextColumns
    max_length: int | None = None
    batch_size: int = 32
    checkpoint: str = "auto"
    mesh: MeshSection | None = None
    force: bool = False

    @property
    def probe_path(self) -> Path | None:
        """Where the probe's score goes; None without a label column."""
        return None if self.columns.label is None else Path(self.output).parent / PROBE

    def check(self) -> None:
        """Checks what can be checked before anything is opened.

        Raises UserError: options that exclude each other, remote paths, an output that exists.
        """
        for path in (self.input_path, self.output):
            if is_remote(path):
                raise UserError(f"features: found {path}, allowed: a local path")
        probing = self.probe_path is not None
        if self.layers == MIX and not probing:
            raise UserError(
                '--layers: found "mix" without --probe, allowed: with it, to learn from'
            )
        if self.level != "sentence" and (probing or self.pool is not None):
            option = "--probe" if probing else "--pool"
            raise UserError(
                f"{option}: found it with --level {self.level}, allowed: with --level sentence"
            )
        check_batch_size(self.batch_size)
        writers.check_output(Path(self.output), force=self.force)
        if self.probe_path is not None and self.probe_path.exists() and not self.force:
            raise UserError(
                f"{self.probe_path}: is already there; allowed: another directory, or --force"
            )


class ExtractionResult(NamedTuple):
    """What was written."""

    output: Path
    step: int  # of the checkpoint
    width: int  # numbers in a vector
    counts: ExtractionCounts
    score: ProbeScore | None


def extract_features(
    request: ExtractionRequest, *, console: Console | None = None
) -> ExtractionResult:
    """Extracts the features of a file, see `bert_jax.features`."""
    request.check()
    with hold_output(request.output):
        return _extract(request, console)


def _extract(request: ExtractionRequest, console: Console | None) -> ExtractionResult:
    run = open_run(request.run_dir)
    settings = settings_for(
        run.architecture,
        layers=request.layers,
        level=request.level,
        pool=request.pool,
        max_length=request.max_length,
        batch_size=request.batch_size,
    )
    texts = read_texts(Path(request.input_path), request.columns)
    # A wrong column is reported before minutes go into reading a checkpoint.
    first = next(texts, None)
    if first is None:
        raise UserError(f"{request.input_path}: found no text, allowed: one or more")
    model = model_of_run(run, checkpoint=request.checkpoint, mesh=open_mesh(request.mesh))
    step, extractor = model.loaded.step, FeatureExtractor(settings, model)

    def stream() -> Iterator[TextFeatures]:
        with doing(lambda: f"extracting: {extractor.counts.texts:,} texts"):
            yield from extractor(itertools.chain([first], texts))

    mix = request.layers == MIX
    width = run.architecture.hidden_size if mix else extractor.width
    output = Path(request.output)
    with writers.open_writer(output, writers.FeatureFormat(settings.level, width)) as writer:
        if request.probe_path is None:
            score = None
            for features in stream():
                writer.add(features)
        else:
            score = _probe(
                list(stream()), writer, states=len(settings.layers.states) if mix else None
            )
    if score is not None and request.probe_path is not None:
        how = {"layers": settings.layers.name, "pool": settings.pool, "step": step}
        content = {**score._asdict(), **how}
        write_whole(epath.Path(request.probe_path), json.dumps(content, indent=2).encode())
    result = ExtractionResult(output, step, width, extractor.counts, score)
    if console is not None:
        _show(result, console, settings)
    return result


def _probe(
    features: list[TextFeatures], writer: writers.FeatureWriter, *, states: int | None
) -> ProbeScore:
    """Scores sentence features and writes them; with `states`, mixed by the learned weights."""
    vectors = np.concatenate([found.vectors for found in features])
    if states is not None:
        vectors = vectors.reshape(len(features), states, -1)
    labels = [found.source.label or "" for found in features]
    with doing("cross-validating the probe"):
        score = probe(vectors, labels, mix=states is not None)
    if score.mix is not None:
        vectors = mixed(vectors, score.mix)
    for found, vector in zip(features, vectors, strict=True):
        writer.add(found._replace(vectors=vector[None]))
    return score


def _show(result: ExtractionResult, console: Console, settings: ExtractionSettings) -> None:
    counts = result.counts
    parts = [
        f"{result.output}: step {result.step}, {counts.texts:,} texts, {settings.level} features",
        f"layers {settings.layers.name}, {result.width} wide, {counts.padding:.0%} padding",
    ]
    if counts.cut:
        parts.append(f"{counts.cut:,} texts cut at {settings.max_length} pieces")
    if counts.empty:
        more = ", …" if counts.empty > len(counts.empty_lines) else ""
        lines = ", ".join(map(str, counts.empty_lines)) + more
        parts.append(f"{counts.empty:,} texts empty (line {lines})")
    console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
    if result.score is not None:
        console.print(f"probe: {result.score.line()}", highlight=False, soft_wrap=True)
        if not result.score.converged:
            console.print("probe: not converged after 1,000 iterations", highlight=False)
