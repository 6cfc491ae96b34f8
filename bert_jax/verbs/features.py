"""`bert-jax features`: texts → vectors of their pieces, words or sentences."""

import itertools
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from bert_jax.errors import SettingError, UserError
from bert_jax.feature_extraction import writers
from bert_jax.feature_extraction.extractor import (
    ExtractionCounts,
    ExtractionSettings,
    FeatureExtractor,
    Level,
    Prompt,
    settings_for,
)
from bert_jax.feature_extraction.texts import TextColumns, read_texts
from bert_jax.files.atomic import require_other_file
from bert_jax.files.remote import require_local
from bert_jax.inference.bucketed import model_of_run
from bert_jax.model.text_head import Pool
from bert_jax.narration import doing
from bert_jax.parallel.mesh import open_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.lock import hold_output
from bert_jax.runs.run_directory import open_run
from bert_jax.section import refuse_same_column

_LINES_SHOWN: Final = 10


class ExtractionResult(NamedTuple):
    """The result of `features`."""

    output: Path
    step: int  # step of the checkpoint
    width: int  # length of a vector
    counts: ExtractionCounts


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
        layers: a name of `select_layers`, or comma-separated layers. Default: the vectors that a
            model of sentence embeddings was trained to compute, or of all tokens for a
            late-interaction model. For other models:
            "concat-last-four", or "last" if the model has fewer than four layers.
        level: one vector per piece, per word (the mean of its pieces) or per text.
        pool: vector of a text: "cls", "last", or "mean" of all pieces including special pieces.
            Default: "mean".
        prompt: "query" or "passage": the prefix that a model of sentence embeddings was trained
            with. Default: the default prefix of an imported model, or none.
        column: table column with the texts. Default: the only column that no option names.
        pair_column: table column with the second texts.
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
    columns = TextColumns(column, pair_column)
    try:
        refuse_same_column(columns._asdict())
    except SettingError as error:
        raise error.at("--pair-column") from None
    if level != "sentence" and pool is not None:
        raise UserError.wrong(
            "features.level", f"with --level {level}", "with --level sentence", place="--pool"
        )
    target = Path(output)
    writers.check_output(target, force=force)
    require_other_file(target, [input_path])
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
            raise UserError.wrong("features.no_text", "no text", "one or more", place=input_path)
        model = model_of_run(run, checkpoint=checkpoint, mesh=open_mesh(mesh))
        step, extractor = model.loaded.step, FeatureExtractor(settings, model)

        layout = "sparse" if settings.sparse else settings.level
        with (
            writers.open_writer(target, layout, width=extractor.width) as writer,
            doing(lambda: f"extracting: {extractor.counts.texts:,} texts"),
        ):
            for found in extractor(itertools.chain([first], texts)):
                writer.add(found)
    result = ExtractionResult(target, step, extractor.width, extractor.counts)
    if console is not None:
        _show(result, console, settings, prompt)
    return result


def _show(
    result: ExtractionResult,
    console: Console,
    settings: ExtractionSettings,
    prompt: Prompt | None,
) -> None:
    counts, trained = result.counts, settings.trained
    parts = [
        f"{result.output}: step {result.step}, {counts.texts:,} texts, {settings.level} features",
        f"{settings.description}, {result.width} wide, {counts.padding:.0%} padding",
    ]
    has_prefixes = trained is not None and (trained.query_prefix or trained.passage_prefix)
    if has_prefixes and prompt is None and not settings.prefix:
        parts.append("without the prefix that --prompt query or --prompt passage adds")
    if counts.cut:
        parts.append(f"{counts.cut:,} texts cut at {settings.max_length} pieces")
    if empty := counts.empty_lines:
        more = ", …" if len(empty) > _LINES_SHOWN else ""
        lines = ", ".join(map(str, empty[:_LINES_SHOWN])) + more
        parts.append(f"{len(empty):,} texts empty (line {lines})")
    console.print(", ".join(parts), markup=False, highlight=False, soft_wrap=True)
