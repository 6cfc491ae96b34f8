"""Jobs on machines that are asked for, and what they are at; the latter of any run."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

import bert_jax
from bert_jax.cli import base
from bert_jax.parallel.stop_signal import INTERRUPTED

# Options whose setting of the section `submit` has another name.
_SETTINGS: Final = {
    "max_cost": "limits.cost",
    "max_hours": "limits.hours",
    "retries": "limits.retries",
    "wait_hours": "limits.wait_hours",
}

job_argument = click.argument("job", type=base.PATH)
target_argument = click.argument("target", type=base.PATH, metavar="RUN_DIR|JOB")
bucket_option = click.option(
    "--bucket",
    type=base.PATH,
    metavar="gs://BUCKET",
    help="Of the job. [default: $BERT_JAX_BUCKET]",
)
yes_option = click.option("--yes", is_flag=True, help="Ask nothing: every answer is yes.")
project_option = click.option("--project", help="Google Cloud's. [default: gcloud's own]")
cluster_option = click.option("--cluster", help="Of GKE, by name.")


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option(
    "--on",
    multiple=True,
    metavar="NAME",
    help="v5litepod-16, v5e:4x4, v4-32 …, or local; several are tried in turn.",
)
@click.option("--hosts", type=int, help="Processes of --on local.")
@click.option("--slices", type=int, multiple=True, help="Of each topology.")
@click.option(
    "--bucket", type=base.PATH, metavar="gs://BUCKET", help="Of job and run; local: a directory."
)
@project_option
@click.option("--zone", multiple=True, help="Several are tried in turn.")
@click.option("--spot", is_flag=True, help="Cheaper, and may be taken back.")
@cluster_option
@click.option("--launcher", metavar="NAME", help="queued-resources or gke.")
@click.option("--name", help="Of the job. [default: the run directory's]")
@click.option("--max-cost", type=float, metavar="DOLLARS", help="Then it is stopped.")
@click.option("--no-limit", is_flag=True, help="Without --max-cost: it may cost any amount.")
@click.option("--max-hours", type=float, help="Then it is stopped.")
@click.option("--retries", type=int, help="Restarts of machines. [default: 100]")
@click.option("--wait-hours", type=float, help="For capacity, then elsewhere.")
@click.option(
    "--verb",
    type=click.Choice(["pretrain", "finetune"]),
    default="pretrain",
    show_default=True,
    help="That hosts run.",
)
@click.option("--prices", type=base.PATH, metavar="FILE", help="Your own price list.")
@click.option("--no-plan", is_flag=True, help="Do not compile first: does it fit, what it costs.")
@click.option("--dry-run", is_flag=True, help="Print cost and limits, do nothing; no network.")
@click.option("--full", is_flag=True, help="With --dry-run: all files and requests too.")
@click.option("--watch", is_flag=True, help="To the end: recreate what is taken back, delete all.")
@yes_option
@base.verb
def submit(
    config: str,
    overrides: tuple[str, ...],
    verb: Any,
    prices: str | None,
    no_limit: bool,
    no_plan: bool,
    dry_run: bool,
    full: bool,
    watch: bool,
    yes: bool,
    **settings: Any,
) -> None:
    """Run a configuration on machines that are asked for: Cloud TPU, GKE or this one.

    Exit codes: 0 done, or asked for without --watch; 1 the run failed or a limit was reached;
    2 a mistake; 3 interrupted. Nothing is left that bills, unless you said so.
    """
    from bert_jax.verbs.submit import rehearse

    loaded = base.read_config(config, [*overrides, *_as_overrides(settings)])
    if dry_run:
        click.echo(rehearse(loaded, verb=verb, prices=prices, full=full), nl=False)
        return
    try:
        state = bert_jax.submit(
            loaded,
            verb=verb,
            watch=watch,
            prices=prices,
            no_limit=no_limit,
            planned=not no_plan,
            confirm=None if yes else _confirm,
            say=click.echo,
        )
    except KeyboardInterrupt:  # click would make it an exit code of 1, which is a failed run's
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    if watch and state.outcome != "done":
        sys.exit(INTERRUPTED)


@base.cli.command()
@job_argument
@bucket_option
@yes_option
@base.verb
def watch(job: str, bucket: str | None, yes: bool) -> None:
    """Watch a job that nobody watches to its end. Exit codes as of submit."""
    state = bert_jax.watch(job, bucket=bucket, confirm=None if yes else _confirm, say=click.echo)
    if state.outcome != "done":
        sys.exit(INTERRUPTED)


@base.cli.command()
@job_argument
@bucket_option
@click.option("--yes", is_flag=True, help="Changes nothing: stop asks no question.")
@base.verb
def stop(job: str, bucket: str | None, yes: bool) -> None:
    """End a job: its run saves, its machines are deleted. It asks no question."""
    bert_jax.stop(job, bucket=bucket, say=click.echo)


@base.cli.command()
@click.option("--stop-orphans", is_flag=True, help="Delete what nobody watches and nobody needs.")
@bucket_option
@project_option
@cluster_option
@yes_option
@base.verb
def jobs(stop_orphans: bool, yes: bool, **settings: Any) -> None:
    """Show what exists for jobs, and what of it bills, whoever made it."""
    from bert_jax.verbs.jobs import describe_jobs

    overrides = _as_overrides(settings)
    config = bert_jax.parse_config({"submit": {}}, overrides, source="options")
    found = bert_jax.jobs(
        config.submit,
        stop_orphans=stop_orphans,
        confirm=None if yes else _confirm,
        say=lambda line: click.echo(line, err=True),
    )
    for line in describe_jobs(found):
        click.echo(line)


@base.cli.command()
@target_argument
@bucket_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@base.verb
def status(target: str, bucket: str | None, as_json: bool) -> None:
    """Show how a job or a run is: machines, step, speed, goodput, restarts, dollars, ETA."""
    from bert_jax.verbs.status import describe_status
    from bert_jax.verbs.status import status as run

    found = run(target, bucket=bucket)
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        click.echo("\n".join(describe_status(found)))


@base.cli.command()
@target_argument
@bucket_option
@click.option("--worker", type=click.IntRange(0), default=0, show_default=True, help="The host.")
@click.option("--attempt", type=click.IntRange(1), help="Whose host. [default: the last one's]")
@click.option("--follow", "-f", is_flag=True, help="Go on until the host's run is over.")
@base.verb
def logs(target: str, bucket: str | None, worker: int, attempt: int | None, follow: bool) -> None:
    """Show what a host of a job has printed."""
    for content in bert_jax.logs(
        target, worker=worker, attempt=attempt, follow=follow, bucket=bucket
    ):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _as_overrides(options: Mapping[str, Any]) -> list[str]:
    """Returns the settings that options stand for; JSON is YAML too."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if given.pop("spot", False):
        given["provisioning"] = "spot"
    return [
        f"submit.{_SETTINGS.get(name, name)}={json.dumps(value)}" for name, value in given.items()
    ]


def _confirm(question: str) -> bool:
    """Asks at a terminal; elsewhere there is nobody who could say yes."""
    return sys.stdin.isatty() and click.confirm(question, err=True)
