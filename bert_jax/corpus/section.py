"""Settings of `bert-jax score`. Does not import JAX."""

from typing import Final, Literal

import pydantic

from bert_jax.data.row_errors import OnError
from bert_jax.model.text_head import Pool
from bert_jax.pipelines.engines.beam import BeamSection
from bert_jax.section import ModelPathText, PathText, Section, Strings

EVERY_COLUMN: Final = "*"

ResultKind = Literal["auto", "head", "vector"]
OutputFormat = Literal["parquet", "jsonl"]


class ScoreSection(Section):
    """A model, the files that it reads, and the results."""

    model: ModelPathText
    """A run directory, the directory of a Hugging Face or sentence-transformers checkpoint, or the
    name of a model on a hub."""
    checkpoint: str = "auto"
    """Checkpoint of a run: `last`, `best`, a step, or `auto` (`best` for a fine-tuned run)."""
    input: Strings
    """Files, directories and globs: .parquet, .jsonl, .txt (a text per line), .csv or .tsv; .jsonl
    and .txt also packed (.gz, .zst, .bz2, .xz). Local, in a bucket or ``hf://``. Or directories of
    `bert-jax examples`."""
    output: PathText
    """Directory of the results: a file for each part of the input, and ``_manifest.json``."""
    result: ResultKind = "auto"
    """`head`: the output of the task head. `vector`: a vector per text, or for late interaction a
    list `vectors` with a vector per token. `auto`: the head, if the model has one."""
    text: str = "text"
    """Column of the texts."""
    pair: str | None = None
    """Column of the second texts."""
    id: str | None = None
    """Column of the ids. Default: `id` if it exists, otherwise file and position: the document ids
    of `bert-jax examples`."""
    columns: Strings = ()
    """Columns of the input to copy. "*" copies all."""
    keep: str | None = None
    """Condition on the columns of the result: ``score >= 3`` or ``label == "good" and
    probabilities["good"] > 0.9``. Other rows are dropped and counted."""
    format: OutputFormat = "parquet"
    """Format of the results."""
    on_error: OnError = "stop"
    """`skip`: skip and count rows and files that cannot be read."""
    prompt: Literal["query", "passage"] | None = None
    """Vectors: the prefix that the model was trained with."""
    pool: Pool | None = None
    """Vectors: how a text's vector is computed. Default: as trained, or `mean`."""
    layers: str | None = None
    """Vectors: layers to combine, see `bert-jax features --layers`."""
    max_length: int | None = pydantic.Field(default=None, ge=4)
    """Maximum number of pieces per text; longer texts are cut. Default: as trained, at most the
    model's positions."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of parameters and activations. `auto`: bfloat16 on TPU and GPU, float32 on
    CPU."""
    batch_tokens: int | None = pydantic.Field(default=None, ge=64, le=1 << 22)
    """Maximum number of positions in a device's batch, padding included. Default: 16,384; on a
    CPU 2,048."""
    part_bytes: int = pydantic.Field(default=256 << 20, ge=1 << 10)
    """Larger files are cut into parts of about this size. A part is the unit of work, and of loss
    if a machine fails. Packed files are not cut."""
    workers: int | None = pydantic.Field(default=None, ge=1)
    """Number of processes that read and encode text. On a CPU, they also run the model. Default:
    one per core."""
    engine: Literal["local", "beam"] = "local"
    """`local`: processes of this machine, or of all machines of a job. `beam`: Apache Beam."""
    beam: BeamSection = BeamSection()
    """Runner and options of Apache Beam."""
    dollars_per_hour: float | None = pydantic.Field(default=None, ge=0)
    """Price of this machine in US dollars per hour, for the progress line and the report."""
