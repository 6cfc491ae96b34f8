"""`bert-jax features`: texts → vectors of their pieces, words or sentences, and a probe's score."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.feature_extraction import writers
from bert_jax.feature_extraction.extractor import (
    MIX,
    ExtractionCounts,
    ExtractionSettings,
    FeatureExtractor,
    Level,
    Prompt,
    TextFeatures,
    settings_for,
)
from bert_jax.feature_extraction.probe import ProbeScore, mixed, probe
from bert_jax.feature_extraction.texts import TextColumns, read_texts
from bert_jax.files.atomic import output_exists, write_whole
from bert_jax.files.remote import require_local
from bert_jax.inference.bucketed import model_of_run
from bert_jax.model.section import Pool
from bert_jax.narration import doing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.lock import hold_output
from bert_jax.runs.run_directory import open_run

PROBE: Final = "probe.json"
_LINES_SHOWN: Final = 10


class ExtractionResult(NamedTuple):
    """The result of `features`."""

    output: Path
    step: int  # step of the checkpoint
    width: int  # length of a vector
    counts: ExtractionCounts
    score: ProbeScore | None


def features(
    run_dir: str,
    input_path: str,
    output: str,
    *,
    layers: str | None = None,
    level: Level = "sentence",
    pool: Pool | None = None,
    prompt: Prompt | None = None,
    column: str | None = None,
    pair_column: str | None = None,
    probe_column: str | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    checkpoint: str = "auto",
    mesh: MeshSection | None = None,
    force: bool = False,
    console: Console | None = None,
) -> ExtractionResult:
    """Writes the contextual embeddings of every text of a file, in file order.

    Args:
        run_dir: run directory of `pretrain`, `finetune` or `import`, with any heads.
        input_path: .txt (a text per line), .jsonl, .csv, .tsv or .parquet.
        output: .npz, .parquet or .jsonl.
        layers: a name of `select_layers`, comma-separated layers, or "mix" with a probe. Default:
            the vectors that a model of sentence embeddings was trained to compute. For other
            models: "concat-last-four", or "last" if the model has fewer than four layers.
        level: one vector per piece, per word (the mean of its pieces) or per text.
        pool: vector of a text: "cls", "last", or "mean" of all pieces including special pieces.
            Default: "mean".
        prompt: "query" or "passage": the prefix that a model of sentence embeddings was trained
            with. Default: the default prefix of an imported model, or none.
        column: table column with the texts. Default: the only column that no option names.
        pair_column: table column with the second texts.
        probe_column: table column with labels. Cross-validates a logistic regression on the
            sentence features, and writes ``probe.json`` next to `output`.
        max_length: maximum pieces per text, including special pieces; longer texts are truncated.
            Default: the model's positions, at most 512.
        batch_size: rows per batch; does not change the features.
        checkpoint: `last`, `best`, a step, or `auto`. `auto` is the best checkpoint of a
            fine-tuned run, and the last checkpoint of any other run.
        mesh: devices to use. Default: all devices.
        force: replace `output`.
        console: console for the result.

    Raises:
        UserError: a file, column, layer, run or checkpoint does not exist, a table is ragged, or
            `output` exists.
    """
    for path in (input_path, output):
        require_local(path, verb="features")
    columns = TextColumns(column, pair_column, probe_column)
    probe_path = None if probe_column is None else Path(output).parent / PROBE
    mix = layers == MIX
    if mix and probe_path is None:
        raise UserError(
            "features.mix_without_probe",
            'found "mix" without --probe. Add --probe to learn the weights of the layers.',
            place="--layers",
        )
    if level != "sentence" and (probe_path is not None or pool is not None):
        option = "--pool" if probe_path is None else "--probe"
        raise UserError(
            "features.level",
            "found with --level {found}, allowed: with --level sentence",
            place=option,
            found=level,
        )
    target = Path(output)
    writers.check_output(target, force=force)
    if probe_path is not None and probe_path.exists() and not force:
        raise output_exists(probe_path)
    with hold_output(output):
        run = open_run(run_dir)
        settings = settings_for(
            run.architecture,
            run.heads,
            layers=layers,
            level=level,
            pool=pool,
            prompt=prompt,
            max_length=max_length,
            batch_size=batch_size,
        )
        texts = read_texts(Path(input_path), columns)
        # Report a wrong column before the slow read of a checkpoint.
        first = next(texts, None)
        if first is None:
            raise UserError(
                "features.no_text", "found no text, allowed: one or more", place=input_path
            )
        model = model_of_run(run, checkpoint=checkpoint, mesh=open_mesh(mesh))
        step, extractor = model.loaded.step, FeatureExtractor(settings, model)

        def stream() -> Iterator[TextFeatures]:
            with doing(lambda: f"extracting: {extractor.counts.texts:,} texts"):
                yield from extractor(itertools.chain([first], texts))

        score = None
        width = run.architecture.hidden_size if mix else extractor.width
        with writers.open_writer(target, level, width=width) as writer:
            if probe_path is None:
                for found in stream():
                    writer.add(found)
            else:
                states = len(settings.layers.states) if mix else None
                score = _probe(list(stream()), writer, states=states)
        if score is not None and probe_path is not None:
            how = {"layers": settings.layers.name, "pool": settings.pool, "step": step}
            write_whole(probe_path, json.dumps({**score._asdict(), **how}, indent=2))
    result = ExtractionResult(target, step, width, extractor.counts, score)
    if console is not None:
        _show(result, console, settings)
    return result


def _probe(
    features: list[TextFeatures], writer: writers.FeatureWriter, *, states: int | None
) -> ProbeScore:
    """Scores sentence features and writes them.

    If `states` is set, each vector concatenates that many layers; writes their learned mix.
    """
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
        f"{settings.description}, {result.width} wide, {counts.padding:.0%} padding",
    ]
    if counts.cut:
        parts.append(f"{counts.cut:,} texts cut at {settings.max_length} pieces")
    if empty := counts.empty_lines:
        more = ", …" if len(empty) > _LINES_SHOWN else ""
        lines = ", ".join(map(str, empty[:_LINES_SHOWN])) + more
        parts.append(f"{len(empty):,} texts empty (line {lines})")
    console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
    if result.score is not None:
        console.print(f"probe: {result.score.line()}", highlight=False, soft_wrap=True)
        if not result.score.converged:
            console.print("probe: not converged after 1,000 iterations", highlight=False)
