"""`bert-jax features`: texts → vectors of their pieces, words or sentences."""

from rich.console import Console

from bert_jax.feature_extraction.extraction import (
    ExtractionRequest,
    ExtractionResult,
    extract_features,
)
from bert_jax.feature_extraction.extractor import Level, Pool
from bert_jax.feature_extraction.texts import TextColumns
from bert_jax.parallel.section import MeshSection


def features(
    run_dir: str,
    input_path: str,
    output: str,
    *,
    layers: str | None = None,
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
) -> ExtractionResult:
    """Writes the contextual embeddings of every text of a file, in its order.

    Args:
        run_dir: of `pretrain`, `finetune` or `import`; its heads do not matter.
        input_path: .txt (a text per line), .jsonl, .csv, .tsv or .parquet.
        output: .npz, .parquet or .jsonl.
        layers: a name of `select_layers`, numbers with commas between, or "mix" for a probe. None
            for "concat-last-four", or "last" of a model with fewer than four layers.
        level: a vector per piece, per word (the mean of its pieces) or per text.
        pool: the vector of a text: that of [CLS], or the mean (None) over all pieces, special ones
            included.
        column: of a table, with the texts; None for the only column that is not named otherwise.
        pair_column: with their second texts.
        probe_column: with the labels of a probe.
        max_length: pieces, special ones included; longer texts are cut. None for the model's
            positions, at most 512.
        batch_size: rows at a time; does not change the features.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        mesh: devices to use; None for all.
        force: replace `output`.
        console: where the result is shown.

    Returns:
        What was written. With a label column, logistic regression on the sentence features is
        cross-validated, and ``probe.json`` written beside `output`.

    Raises:
        UserError: no such file, column, layer, run or checkpoint; a ragged table; `output` exists.
    """
    request = ExtractionRequest(
        run_dir=run_dir,
        input_path=input_path,
        output=output,
        layers=layers,
        level=level,
        pool=pool,
        columns=TextColumns(column, pair_column, probe_column),
        max_length=max_length,
        batch_size=batch_size,
        checkpoint=checkpoint,
        mesh=mesh,
        force=force,
    )
    return extract_features(request, console=console)
