"""The verbs: ``bert-jax VERB CONFIG.yaml [key=value …]``.

Every verb imports what it needs when it runs, so that ``--help`` and a user's typing mistake
answer at once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from bert_jax.errors import RunStopped, UserError

# Stopped by a signal and saved: whoever started it should start it again.
INTERRUPTED = 3

config_argument = click.argument("config", type=str)
overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
debug_option = click.option("--debug", is_flag=True, help="Show the traceback of a mistake.")
checkpoint_option = click.option(
    "--checkpoint", default="last", show_default=True, help="last, best, or a step."
)
force_option = click.option("--force", is_flag=True, help="Replace what is there.")
platform_option = click.option(
    "--platform",
    type=click.Choice(["auto", "cpu", "gpu", "tpu"]),
    default="auto",
    show_default=True,
    help="Devices to use.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="bert-jax")
def cli() -> None:
    """Pretrain BERT on Cloud TPU pods in JAX/Flax, from raw text to a trained model."""


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Adds --debug, and turns a user's mistake into one line and exit code 2."""

    @debug_option
    @functools.wraps(function)
    def run(*args: Any, debug: bool, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except (UserError, RunStopped) as error:
            if debug:
                raise
            click.echo(f"bert-jax: {' '.join(str(error).split())}", err=True)
            sys.exit(2 if isinstance(error, UserError) else 1)

    return run


@cli.command()
@config_argument
@overrides_argument
@verb
def vocab(config: str, overrides: tuple[str, ...]) -> None:
    """Train a tokenizer: text → tokenizer directory."""
    from bert_jax.config import load_config
    from bert_jax.verbs.vocab import vocab as run

    loaded = load_config(config, overrides)
    tokenizer = run(loaded)
    assert loaded.vocab is not None
    click.echo(f"{tokenizer.vocab_size} pieces in {loaded.vocab.output}")


@cli.command()
@config_argument
@overrides_argument
@verb
def examples(config: str, overrides: tuple[str, ...]) -> None:
    """Make a dataset: text + tokenizer → two-span examples."""
    from bert_jax.config import load_config
    from bert_jax.verbs.examples import examples as run

    run(load_config(config, overrides))


@cli.command()
@config_argument
@overrides_argument
@click.option(
    "--init-from", metavar="RUN_DIR", help="Start from this run's parameters, all else fresh."
)
@verb
def pretrain(config: str, overrides: tuple[str, ...], init_from: str | None) -> None:
    """Pretrain: dataset → checkpoints. The same command again resumes.

    Exit codes: 0 done, 1 the loss was not finite, 2 a mistake in the configuration, 3 stopped by a
    signal and saved.
    """
    from bert_jax.config import load_config
    from bert_jax.verbs.pretrain import pretrain as run

    outcome = run(load_config(config, overrides), init_from=init_from)
    if outcome.interrupted:
        sys.exit(INTERRUPTED)


@cli.command()
@click.argument("run_dir")
@click.option("--dataset", metavar="DIR", help="Instead of the one the run was trained on.")
@click.option("--split", default="validation", show_default=True)
@checkpoint_option
@click.option("--batch-size", type=int, help="Rows at a time; changes no figure.")
@platform_option
@verb
def evaluate(
    run_dir: str,
    dataset: str | None,
    split: str,
    checkpoint: str,
    batch_size: int | None,
    platform: str,
) -> None:
    """Evaluate a run's checkpoint on held-out examples."""
    from bert_jax.parallel.mesh import MeshSection
    from bert_jax.verbs.evaluate import evaluate as run

    run(
        run_dir,
        dataset=dataset,
        split=split,
        checkpoint=checkpoint,
        batch_size=batch_size,
        mesh=MeshSection.model_validate({"platform": platform}),
    )


@cli.command("fill-mask")
@click.argument("run_dir")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--top-k", default=5, show_default=True, help="Candidates per [MASK].")
@checkpoint_option
@verb
def fill_mask(run_dir: str, texts: tuple[str, ...], top_k: int, checkpoint: str) -> None:
    """Show the most probable words for each [MASK]."""
    from rich.console import Console

    from bert_jax.verbs.fill_mask import fill_mask as run

    run(run_dir, texts, top_k=top_k, checkpoint=checkpoint, console=Console())


@cli.command()
@click.argument("run_dir")
@click.argument("input_path", metavar="INPUT")
@click.argument("output")
@click.option(
    "--layers",
    default="concat-last-four",
    show_default=True,
    metavar="NAME",
    help="embeddings, second-to-last, last, sum-last-four, concat-last-four, sum-all; numbers like "
    "3,5 (0: embeddings); or mix, which --probe learns.",
)
@click.option(
    "--level",
    type=click.Choice(["token", "word", "sentence"]),
    default="sentence",
    show_default=True,
    help="What a vector stands for.",
)
@click.option("--pool", type=click.Choice(["cls", "mean"]), help="Of a sentence; mean if not said.")
@click.option("--column", metavar="NAME", help="Where the texts of a table are.")
@click.option("--pair-column", metavar="NAME", help="Where their second texts are.")
@click.option("--probe", metavar="NAME", help="Also predict this column by logistic regression.")
@click.option("--max-length", type=int, help="Pieces; longer texts are cut.")
@click.option("--batch-size", default=32, show_default=True, help="Rows; changes no feature.")
@checkpoint_option
@platform_option
@force_option
@verb
def features(
    run_dir: str,
    input_path: str,
    output: str,
    layers: str,
    level: Any,
    pool: Any,
    column: str | None,
    pair_column: str | None,
    probe: str | None,
    max_length: int | None,
    batch_size: int,
    checkpoint: str,
    platform: str,
    force: bool,
) -> None:
    """Write contextual embeddings of every text: INPUT → OUTPUT."""
    from rich.console import Console

    from bert_jax.parallel.mesh import MeshSection
    from bert_jax.verbs.features import features as run

    run(
        run_dir,
        input_path,
        output,
        layers=layers,
        level=level,
        pool=pool,
        column=column,
        pair_column=pair_column,
        probe_column=probe,
        max_length=max_length,
        batch_size=batch_size,
        checkpoint=checkpoint,
        mesh=MeshSection.model_validate({"platform": platform}),
        force=force,
        console=Console(),
    )


@cli.command("import")
@click.argument("source")
@click.argument("run_dir")
@click.option("--tokenizer", metavar="DIR", help="For a checkpoint that brings none.")
@click.option(
    "--uncased/--cased", "lower_case", default=None, help="Of a bare vocab.txt, as in 2018."
)
@force_option
@verb
def import_checkpoint(
    source: str, run_dir: str, tokenizer: str | None, lower_case: bool | None, force: bool
) -> None:
    """Read a Hugging Face or 2018 TensorFlow checkpoint: SOURCE → RUN_DIR."""
    from rich.console import Console

    from bert_jax.verbs.import_checkpoint import import_checkpoint as run

    run(
        source,
        run_dir,
        tokenizer=tokenizer,
        lower_case=lower_case,
        force=force,
        console=Console(),
    )


@cli.command()
@click.argument("run_dir")
@click.argument("output")
@click.option(
    "--to",
    type=click.Choice(["hf", "tf", "stablehlo"]),
    default="hf",
    show_default=True,
    help="The format.",
)
@click.option(
    "--as", "kind", metavar="CLASS", help="Hugging Face's class; else what the heads allow."
)
@click.option("--outputs", metavar="NAMES", help="Of a StableHLO program, with commas between.")
@checkpoint_option
@force_option
@verb
def export(
    run_dir: str,
    output: str,
    to: Any,
    kind: str | None,
    outputs: str | None,
    checkpoint: str,
    force: bool,
) -> None:
    """Write a checkpoint for others: RUN_DIR → OUTPUT."""
    from rich.console import Console

    from bert_jax.verbs.export import export as run

    run(
        run_dir,
        output,
        to=to,
        kind=kind,
        outputs=None if outputs is None else outputs.split(","),
        checkpoint=checkpoint,
        force=force,
        console=Console(),
    )


@cli.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--dir", "directory", default="runs/demo", show_default=True, help="Where it all goes."
)
@verb
def demo(overrides: tuple[str, ...], directory: str) -> None:
    """Everything above in minutes on a laptop, on this Python's own documentation."""
    from bert_jax.verbs.demo import demo as run

    run(directory, overrides=overrides)


@cli.command()
@click.argument("config", required=False)
@overrides_argument
@verb
def doctor(config: str | None, overrides: tuple[str, ...]) -> None:
    """Say what is installed, which devices there are, and what will go wrong."""
    from rich.console import Console

    from bert_jax.config import RunConfig, load_config
    from bert_jax.verbs.doctor import doctor as run
    from bert_jax.verbs.doctor import render

    loaded = load_config(config, overrides) if config else RunConfig()
    report = run(config=loaded.mesh, run_dir=loaded.run_dir)
    render(report, Console())
    sys.exit(0 if report.ok else 1)


def main() -> None:
    """The console script."""
    cli()


if __name__ == "__main__":
    main()
