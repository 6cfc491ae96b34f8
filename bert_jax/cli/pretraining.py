"""The verbs `new`, `vocab`, `examples`, `pretrain`, `evaluate`, `fill-mask`, `report`, `demo`."""

import sys
from typing import Any

import click

from bert_jax.cli import base
from bert_jax.parallel.stop_signal import INTERRUPTED


@base.cli.command()
@click.argument("kind")
@click.argument("path", type=base.PATH, metavar="[FILE]", required=False)
@base.force_option
@base.verb
def new(kind: str, path: str | None, force: bool) -> None:
    """Write a commented configuration to start from, to KIND.yaml or FILE.

    KIND, for fine-tuning: table, glue, ner, squad or embedding (sentences). For pretraining: laptop
    (a first model in minutes), pretrain (BERT), modernbert or continue (from a checkpoint). score:
    run a model over a corpus.
    """
    from bert_jax.verbs.new import new as run

    click.echo(f"{run(kind, path, force=force)}: written. Edit it for your data.")


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option(
    "--extend",
    metavar="CHECKPOINT",
    help="Add new words to this run's or checkpoint's vocabulary; OUTPUT is a new run.",
)
@base.force_option
@base.verb
def vocab(config: str, overrides: tuple[str, ...], extend: str | None, force: bool) -> None:
    """Train a tokenizer: text → tokenizer directory. Or extend the vocabulary of a checkpoint."""
    if extend is not None:
        overrides = (*overrides, f"vocab.extend={extend}")
    loaded = base.read_config(config, overrides)
    from bert_jax.verbs.vocab import vocab as run

    tokenizer = run(loaded, force=force, console=base.progress_console())
    assert loaded.vocab is not None
    click.echo(f"{tokenizer.vocab_size} pieces in {loaded.vocab.output}")


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option("--report", is_flag=True, help="Write OUTPUT.report.html about the dataset.")
@click.option("--inspect", type=click.IntRange(1), metavar="N", help="Print N examples.")
@click.option(
    "--tfrecords",
    type=base.PATH,
    metavar="DIR",
    help="Also write TFRecords in the format of google-research/bert.",
)
@base.verb
def examples(config: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Make a dataset: text + tokenizer → two-span examples. Options add a report or an export.

    If the dataset exists, it is kept, and the text is not read.
    """
    loaded = base.read_config(config, overrides)
    from bert_jax.verbs.examples import ExtraOutputs
    from bert_jax.verbs.examples import examples as run

    run(loaded, extra=ExtraOutputs(**options), console=base.progress_console())


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option(
    "--init-from",
    type=base.MODEL_PATH,
    metavar="MODEL",
    help="Start from the network and the parameters of this run or model.",
)
@base.data_change_option
@base.verb
def pretrain(config: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Pretrain: dataset → checkpoints. Repeat the command to resume.

    Exit codes: 0 done, 1 bad loss or gradients, 2 wrong configuration, 3 saved and stopped by a
    signal, 4 lost or missing process, 43 a step hangs.
    """
    loaded = base.read_config(config, overrides)
    from bert_jax.verbs.run_settings import pretrain_settings

    settings = pretrain_settings(loaded, started=base.process_started(), **options)
    with base.starting_jax():
        from bert_jax.verbs.pretrain import pretrain_with
    if pretrain_with(settings, console=base.progress_console()).interrupted:
        sys.exit(INTERRUPTED)


@base.cli.command()
@click.argument("run_dir", type=base.PATH)
@click.option(
    "--dataset", type=base.PATH, metavar="DIR", help="Dataset. [default: the run's dataset]"
)
@click.option(
    "--split",
    help="Split: validation; of a fine-tuned run: dev, test. [default: validation or dev]",
)
@base.checkpoint_option
@base.ema_option
@base.batch_size_option
@base.platform_option
@base.mesh_option
@base.verb
def evaluate(run_dir: str, platform: str, mesh_settings: tuple[str, ...], **options: Any) -> None:
    """Evaluate a run's checkpoint on held-out examples of pretraining or of its task."""
    mesh = base.mesh_section(platform, mesh_settings)
    base.require_run(run_dir, mesh)
    with base.starting_jax():
        from bert_jax.verbs.evaluate import evaluate as run
    run(run_dir, mesh=mesh, **options)


@base.cli.command("fill-mask")
@click.argument("run_dir", type=base.PATH)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--top-k", default=5, show_default=True, help="Candidates per [MASK].")
@base.checkpoint_option
@base.ema_option
@base.verb
@base.first_process_only
def fill_mask(run_dir: str, texts: tuple[str, ...], **options: Any) -> None:
    """Show the most probable words for each [MASK]."""
    from rich.console import Console

    from bert_jax.diagnostics.inputs import require_fill_mask_inputs

    require_fill_mask_inputs(run_dir, texts)
    with base.starting_jax():
        from bert_jax.verbs.fill_mask import fill_mask as run
    run(run_dir, texts, console=Console(), **options)


@base.cli.command()
@click.argument("runs", type=base.PATH, nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--output",
    type=base.PATH,
    metavar="FILE",
    help="Page to write. [default: RUN/report.html; of several runs comparison.html]",
)
@base.verb
@base.first_process_only
def report(runs: tuple[str, ...], output: str | None) -> None:
    """Write a page about a pretraining run, or compare several.

    The page has curves, scores, filled masks and settings. `pretrain` writes it at its end.
    """
    from rich.console import Console

    for run_dir in runs:
        base.require_run(run_dir)
    with base.starting_jax(on_cpu=True):
        from bert_jax.verbs.report import write_report as run
    run(runs, output=output, console=Console())


@base.cli.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--dir",
    "directory",
    type=base.PATH,
    metavar="DIR",
    default="runs/demo",
    show_default=True,
    help="Directory for all outputs.",
)
@base.verb
def demo(overrides: tuple[str, ...], directory: str) -> None:
    """Run the whole workflow in minutes on a laptop, with Python's documentation as text."""
    with base.starting_jax():
        from bert_jax.verbs.demo import demo as run
    run(directory, overrides=overrides, console=base.progress_console())
