"""The verb `plan`: memory, time and cost of a run before it starts."""

import sys
from pathlib import Path
from typing import Any

import click

from bert_jax.cli import base
from bert_jax.errors import UserError


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option(
    "--topology",
    "topologies",
    multiple=True,
    required=True,
    metavar="NAME",
    help="v3:4x4, v5litepod-16, v4-32 …. If repeated, plans each.",
)
@click.option(
    "--slices", type=click.IntRange(1), help="Slices of each topology. [default: mesh.slices]"
)
@click.option(
    "--vocab-size",
    type=click.IntRange(6),
    help="Vocabulary size, if the tokenizer is not trained yet.",
)
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(4),
    multiple=True,
    metavar="TOKENS",
    help="Tokens of a row, with score. If repeated, plans each. [default: score.max_length]",
)
@click.option("--prices", type=base.PATH, metavar="FILE", help="Your own price list.")
@click.option("--exact", is_flag=True, help="Also generate code, for exact cycles. Takes minutes.")
@click.option("--fresh", is_flag=True, help="Ignore cached results.")
@click.option("--details", is_flag=True, help="Print all: memory, work, collectives, cycles.")
@click.option(
    "--suggest/--no-suggest",
    default=None,
    help="Search for settings that fit. [default: only if the run does not fit]",
)
@click.option("--html", type=base.PATH, metavar="FILE", help="Write a page with charts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@base.verb
def plan(
    config: str,
    overrides: tuple[str, ...],
    topologies: tuple[str, ...],
    prices: str | None,
    details: bool,
    lengths: tuple[int, ...],
    suggest: bool | None,
    html: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compile a run for TPU topologies, without a TPU: estimate memory, speed and cost.

    A configuration with score and without train: documents per second, and the cost of a billion.

    Exit codes: 0 the run fits every topology, 1 it does not fit or the compiler failed, 2 wrong
    configuration.
    """
    from rich.console import Console

    from bert_jax.files.atomic import require_other_file, write_whole
    from bert_jax.planning.prices import load_prices

    if html is not None:
        require_other_file(html, [config, prices])
        if Path(html).is_dir():  # before minutes of compilation
            raise UserError.wrong("output.directory", "a directory", "a file", place=html)
    price_list = load_prices(prices)
    settings = base.read_config(config, overrides)
    # A file or pipe has no width: use one that fits the tables.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    if settings.score is not None and settings.train is None:
        from bert_jax.planning import show_inference
        from bert_jax.verbs.plan_score import plan_score

        if suggest:
            raise UserError.wrong("plan.suggest", "with score", "with train", place="--suggest")
        del options["exact"]  # always
        found = plan_score(settings, topologies, lengths=lengths, **options)
        if html is not None:
            write_whole(html, show_inference.render(found, price_list, title=config))
        if as_json:
            click.echo(show_inference.as_json(found, price_list))
        else:
            show_inference.show(found, price_list, console=console, details=details)
        sys.exit(0 if all(each.fits for each in found) else 1)
    if lengths:
        raise UserError.wrong("plan.length", "with train", "with score", place="--length")
    from bert_jax.planning.show import plans_as_json, render_plans, show_plans
    from bert_jax.verbs.plan import plan as run

    plans = run(settings, topologies, suggest=suggest, **options)
    if html is not None:
        write_whole(html, render_plans(plans, price_list, title=config))
    if as_json:
        click.echo(plans_as_json(plans, price_list))
    else:
        show_plans(plans, price_list, console=console, details=details, suggestions=bool(suggest))
    sys.exit(0 if all(found.fits for found in plans) else 1)
