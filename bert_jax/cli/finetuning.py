"""The verbs `finetune`, `predict`, `score`, `features` and `mine`."""

import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import click

from bert_jax.cli import base
from bert_jax.errors import UserError
from bert_jax.parallel.stop_signal import INTERRUPTED

copied_option = click.option(
    "--copy",
    "copied",
    metavar="COLUMN",
    multiple=True,
    help='Many files: column of the input to copy; "*" copies all.',
)
keep_option = click.option(
    "--keep", metavar="CONDITION", help="Many files: rows to keep, such as 'score >= 3'."
)


def _is_directory(output: str) -> bool:
    """Returns whether an output is a directory of results, so that the input is many files."""
    return not PurePath(output).suffix


def _refuse_options(options: Mapping[str, Any], *names: str) -> None:
    """Raises UserError for options of a single file."""
    for name in names:
        if options[name]:
            option = f"--{name.replace('_', '-')}"
            raise UserError.wrong(
                "score.option", f"with many files ({options[name]})", "with one file", place=option
            )


def _refuse_files_options(copied: tuple[str, ...], keep: str | None) -> None:
    """Raises UserError for options of many files."""
    for option, found in (("--copy", copied), ("--keep", keep)):
        if found:
            raise UserError.wrong(
                "score.option", "with one file", "with a directory as output", place=option
            )


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option("--seeds", type=int, help="Number of seeds to run and compare.")
@base.data_change_option
@base.verb
def finetune(
    config: str, overrides: tuple[str, ...], seeds: int | None, allow_data_change: bool
) -> None:
    """Fine-tune on GLUE, SQuAD, NER, multiple choice or your table. Repeat the command to resume.

    Exit codes: 0 done, 1 bad loss or gradients, 2 wrong configuration or data, 3 saved and stopped
    by a signal, 4 lost or missing process, 43 a step hangs.
    """
    loaded = base.read_config(config, overrides)
    from bert_jax.tasks.sweep_grid import check_seeds
    from bert_jax.verbs.run_settings import finetune_settings

    if loaded.finetune is not None:
        check_seeds(loaded.finetune.sweep, seeds)  # before JAX starts
    started = base.process_started()
    settings = finetune_settings(loaded, allow_data_change=allow_data_change, started=started)
    with base.starting_jax():
        from bert_jax.verbs.finetune import finetune_with
    if finetune_with(settings, seeds=seeds, console=base.progress_console()).interrupted:
        sys.exit(INTERRUPTED)


@base.cli.command()
@click.argument("run_dir", type=base.PATH)
@click.argument("output", type=base.PATH)
@click.option(
    "--input",
    "input_path",
    type=base.DATA_PATH,
    metavar="FILE",
    help="Input file; of a search also a directory. [default: the task's test files]",
)
@click.option("--submission", is_flag=True, help="Write the benchmark's submission files.")
@click.option("--probabilities", is_flag=True, help="In a .csv, add a column for each label.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    help="Action for malformed rows of a table. [default: finetune.task.on_error of the run]",
)
@copied_option
@keep_option
@base.checkpoint_option
@base.batch_size_option
@base.platform_option
@base.force_option
@base.mesh_option
@base.verb
def predict(
    run_dir: str,
    output: str,
    platform: str,
    mesh_settings: tuple[str, ...],
    copied: tuple[str, ...],
    keep: str | None,
    **options: Any,
) -> None:
    """Predict with a fine-tuned run. OUTPUT: a .jsonl, a .csv, or a directory.

    A directory is for --submission, or for an --input of many files: a folder or a glob in quotes,
    as for `bert-jax score`.
    """
    from rich.console import Console

    mesh = base.mesh_section(platform, mesh_settings)
    base.require_run(run_dir, mesh)
    if options["input_path"] is not None and not options["submission"] and _is_directory(output):
        _refuse_options(options, "probabilities", "batch_size", "force")
        with base.starting_jax():
            from bert_jax.verbs.score import predict_files
        settings = {"columns": copied, "keep": keep, "on_error": options["on_error"]}
        predict_files(
            run_dir,
            options["input_path"],
            output,
            checkpoint=options["checkpoint"],
            mesh=mesh,
            console=base.progress_console(),
            settings={name: value for name, value in settings.items() if value},
        )
        return
    _refuse_files_options(copied, keep)
    with base.starting_jax():
        from bert_jax.verbs.predict import predict as run
    run(run_dir, output, mesh=mesh, console=Console(), **options)


@base.cli.command()
@base.config_argument
@base.overrides_argument
@base.verb
def score(config: str, overrides: tuple[str, ...]) -> None:
    """Run a model over a corpus. Repeat the command to finish missing parts.

    Exit codes: 0 done, 1 stopped, 2 wrong configuration or data.
    """
    loaded = base.read_config(config, overrides)
    if loaded.score is not None:
        from bert_jax.diagnostics.inputs import require_inputs, score_inputs

        require_inputs(score_inputs(loaded.score), loaded.mesh)
    with base.starting_jax():
        from bert_jax.verbs.score import score_with
    score_with(loaded, console=base.progress_console())


@base.cli.command()
@click.argument("run_dir", type=base.PATH)
@click.argument("input_path", type=base.PATH, metavar="INPUT")
@click.argument("output", type=base.PATH)
@click.option(
    "--layers",
    metavar="NAME",
    help="embeddings, second-to-last, last, sum-last-four, concat-last-four or sum-all; or numbers "
    "like 3,5 (0: embeddings). [default: the trained embedding; without one, concat-last-four, or "
    "last for fewer than four layers]",
)
@click.option(
    "--level",
    type=click.Choice(["token", "word", "sentence"]),
    default="sentence",
    show_default=True,
    help="Unit of text for each vector.",
)
@click.option(
    "--pool",
    type=click.Choice(["mean", "cls", "last"]),
    help="How a sentence vector is computed. [default: as trained, or mean]",
)
@click.option(
    "--prompt",
    type=click.Choice(["query", "passage"]),
    help="Prefix of the texts, as in training. [default: none]",
)
@click.option("--column", metavar="NAME", help="Table column with the texts.")
@click.option("--pair-column", metavar="NAME", help="Table column with the second texts.")
@click.option("--max-length", type=int, help="Maximum pieces per text; longer texts are truncated.")
@click.option("--batch-size", default=32, show_default=True, help="Rows per batch.")
@copied_option
@keep_option
@base.checkpoint_option
@base.platform_option
@base.force_option
@base.verb
@base.first_process_only
def features(
    run_dir: str,
    input_path: str,
    output: str,
    platform: str,
    copied: tuple[str, ...],
    keep: str | None,
    **options: Any,
) -> None:
    """Write the contextual embeddings of every text: INPUT → OUTPUT.

    INPUT may be many files, a folder or a glob in quotes, as for `bert-jax score`. OUTPUT is then a
    directory.
    """
    from rich.console import Console

    mesh = base.mesh_section(platform, ())
    base.require_run(run_dir, mesh)
    if _is_directory(output) and options["level"] == "sentence":
        _refuse_options(options, "force")
        with base.starting_jax():
            from bert_jax.verbs.score import score_files
        names = {"layers", "pool", "prompt", "max_length", "checkpoint"}
        settings = {name: options[name] for name in names}
        settings |= {"text": options["column"], "pair": options["pair_column"], "keep": keep}
        settings |= {"model": run_dir, "input": input_path, "output": output, "columns": copied}
        score_files(
            {name: value for name, value in settings.items() if value} | {"result": "vector"},
            mesh=mesh,
            console=base.progress_console(),
        )
        return
    _refuse_files_options(copied, keep)
    with base.starting_jax():
        from bert_jax.verbs.features import features as run
    run(run_dir, input_path, output, mesh=mesh, console=Console(), **options)


@base.cli.command()
@click.argument("model", type=base.MODEL_PATH)
@click.argument("table", type=base.DATA_PATH)
@click.argument("output", type=base.PATH)
@click.option("--anchor", metavar="COLUMN", default="anchor", show_default=True, help="Anchors.")
@click.option(
    "--positive", metavar="COLUMN", default="positive", show_default=True, help="Texts that fit."
)
@click.option(
    "--corpus", type=base.DATA_PATH, help="More texts: a file or folder. [default: the positives]"
)
@click.option(
    "--corpus-column", metavar="COLUMN", default="text", show_default=True, help="Its texts."
)
@click.option(
    "--negatives",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Negatives of a pair. Pairs with fewer are dropped.",
)
@click.option(
    "--range",
    "ranks",
    metavar="MIN:MAX",
    help="Ranks of candidates. [default: the first; with other limits ten times as many]",
)
@click.option("--margin", type=float, help="Least distance to the lowest score of the positives.")
@click.option(
    "--relative-margin",
    type=click.FloatRange(min=0),
    metavar="SHARE",
    help="The same as a share of that score, such as 0.05.",
)
@click.option("--min-score", type=float, help="Lowest score of a negative.")
@click.option("--max-score", type=float, help="Highest score of a negative.")
@click.option(
    "--sample",
    type=click.Choice(["top", "random"]),
    default="top",
    show_default=True,
    help="Candidates to take.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of --sample random.")
@click.option("--triplets", is_flag=True, help="Write a row for each negative.")
@click.option(
    "--reranker", type=base.MODEL_PATH, help="A cross-encoder that scores pairs and candidates."
)
@click.option("--batch-size", default=32, show_default=True, help="Rows per batch.")
@base.checkpoint_option
@base.platform_option
@base.force_option
@base.verb
@base.first_process_only
def mine(model: str, table: str, output: str, platform: str, **options: Any) -> None:
    """Add hard negatives to pairs of texts: TABLE → OUTPUT, a .parquet or .jsonl.

    MODEL encodes the texts. The most similar ones that are no positives become negatives.
    """
    from rich.console import Console

    mesh = base.mesh_section(platform, ())
    with base.starting_jax():
        from bert_jax.verbs.mine import mine as run
    run(model, table, output, mesh=mesh, console=Console(), **options)
