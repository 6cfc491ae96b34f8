"""What all verbs share: the group they belong to, their options, how a mistake ends."""

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
    "--checkpoint",
    default="auto",
    help="last, best, or a step. [default: the best of a fine-tuned run, else the last]",
)
batch_size_option = click.option(
    "--batch-size", type=int, help="Rows at a time; changes no figure."
)
data_change_option = click.option(
    "--allow-data-change",
    is_flag=True,
    help="Resume although the data differ from those that the run has read.",
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


def process_started() -> float:
    """Returns when this process began, before Python: seconds since 1970."""
    import psutil

    return psutil.Process().create_time()


def main() -> None:
    """The console script."""
    cli()
