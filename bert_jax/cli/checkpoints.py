"""The verbs `import`, `export` and `doctor`."""

import sys
from pathlib import Path
from typing import Any

import click

from bert_jax.cli import base
from bert_jax.errors import UserError


@base.cli.command("import")
@click.argument("source", type=base.MODEL_PATH)
@click.argument("run_dir", type=base.PATH)
@click.option(
    "--tokenizer",
    type=base.PATH,
    metavar="DIR",
    help="Tokenizer directory, if the checkpoint has no tokenizer.",
)
@click.option(
    "--uncased/--cased",
    "lower_case",
    default=None,
    help="Casing of a vocab.txt without a tokenizer_config.json, or of ALBERT's spiece.model.",
)
@base.force_option
@base.verb
@base.first_process_only
def import_checkpoint(source: str, run_dir: str, **options: Any) -> None:
    """Read another program's checkpoint: SOURCE → RUN_DIR.

    SOURCE is a directory of Hugging Face, sentence-transformers or google-research/bert, or a model
    on a hub: google-bert/bert-base-uncased[@REVISION].
    """
    from rich.console import Console

    with base.starting_jax(on_cpu=True):
        from bert_jax.verbs.import_checkpoint import import_checkpoint as run
    run(source, run_dir, console=Console(), **options)


@base.cli.command()
@click.argument("run_dir", type=base.PATH)
@click.argument("output", type=base.PATH)
@click.option(
    "--to",
    type=click.Choice(["hf", "tf", "stablehlo"]),
    default="hf",
    show_default=True,
    help="Hugging Face (with sentence-transformers' files for sentence embeddings), "
    "google-research/bert (TensorFlow 1) or StableHLO.",
)
@click.option(
    "--as",
    "kind",
    metavar="CLASS",
    help="Hugging Face class to export. [default: the task's class for a fine-tuned model, "
    "otherwise the class with the most of its heads]",
)
@click.option("--outputs", metavar="NAMES", help="Outputs of a StableHLO program, comma-separated.")
@click.option("--push", "push_to", metavar="OWNER/NAME", help="Also upload OUTPUT to a hub.")
@click.option("--public", is_flag=True, help="With --push: make a new model public.")
@base.checkpoint_option
@base.ema_option
@base.force_option
@base.verb
@base.first_process_only
def export(run_dir: str, output: str, outputs: str | None, public: bool, **options: Any) -> None:
    """Write a checkpoint in another program's format: RUN_DIR → OUTPUT."""
    from rich.console import Console

    if public and options["push_to"] is None:
        raise UserError("export.public", "allowed only with --push", place="--public")
    base.require_run(run_dir)
    with base.starting_jax(on_cpu=True):
        from bert_jax.verbs.export import export as run
    run(
        run_dir,
        output,
        outputs=None if outputs is None else outputs.split(","),
        private=not public,
        console=Console(),
        **options,
    )


@base.cli.command()
@click.argument("models", type=base.MODEL_PATH, nargs=-1, required=True, metavar="MODEL...")
@click.option("--output", type=base.PATH, required=True, metavar="RUN_DIR", help="A new run.")
@click.option(
    "--weights", metavar="W,W,...", help="Weight of each model, with the sum 1. [default: equal]"
)
@click.option("--last", type=int, metavar="N", help="Average the last N checkpoints of one run.")
@base.checkpoint_option
@base.ema_option
@base.force_option
@base.verb
@base.first_process_only
def average(models: tuple[str, ...], output: str, weights: str | None, **options: Any) -> None:
    """Average the parameters of several models: MODEL MODEL... → RUN_DIR.

    A MODEL is a run directory, a directory of Hugging Face, or a model on a hub.
    """
    from rich.console import Console

    try:
        shares = None if weights is None else [float(each) for each in weights.split(",")]
    except ValueError:
        raise UserError.wrong(
            "average.number", weights, "numbers such as 0.75,0.25", place="--weights"
        ) from None
    with base.starting_jax(on_cpu=True):
        from bert_jax.verbs.average import average as run
    run(models, output, weights=shares, console=Console(), **options)


@base.cli.command()
@click.argument("config", type=base.PATH, metavar="[CONFIG | RUN_DIR]", required=False)
@base.overrides_argument
@click.option(
    "--first-hour",
    "report_file",
    type=base.PATH,
    metavar="FILE",
    help="With CONFIG: describe this machine, train up to 100 steps, and write a report.",
)
@click.option(
    "--init-from",
    type=base.MODEL_PATH,
    metavar="MODEL",
    help="With CONFIG: check it for `pretrain --init-from MODEL`.",
)
@base.verb
def doctor(
    config: str | None,
    overrides: tuple[str, ...],
    report_file: str | None,
    init_from: str | None,
) -> None:
    """Check installed software, devices, and the inputs of a run before it starts.

    With a run directory: verify every file in it. Exit codes: 0 no problem, 1 a file is damaged, a
    run would fail, or an answer of --first-hour differs from what we expect.
    """
    from rich.console import Console

    of_run = bool(config) and not overrides and _is_directory(config)
    loaded = base.read_config(config, overrides) if config and not of_run else None
    if init_from is not None and (report_file or loaded is None or loaded.train is None):
        raise UserError(
            "doctor.init_from",
            "allowed only with a configuration of pretraining, and without --first-hour",
            place="--init-from",
        )
    if report_file is not None:
        if loaded is None:
            raise UserError(
                "first_hour.config",
                "missing. Give a configuration of pretraining, such as run.yaml.",
                place="CONFIG",
            )
        from bert_jax.verbs.first_hour import first_hour

        sys.exit(0 if first_hour(loaded, report_file, console=Console()) else 1)
    from bert_jax.diagnostics.findings import show
    from bert_jax.parallel.section import MeshSection
    from bert_jax.verbs.doctor import config_findings, machine_findings, run_findings

    if config and of_run:
        findings = run_findings(config)
    else:
        findings = (
            machine_findings(MeshSection())
            if loaded is None
            else config_findings(loaded, init_from=init_from)
        )
    report = show(findings, Console())
    sys.exit(0 if report.ok else 1)


def _is_directory(path: str) -> bool:
    if "://" not in path:
        return Path(path).is_dir()
    from etils import epath

    return epath.Path(path).is_dir()
