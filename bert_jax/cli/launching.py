"""The verbs `submit`, `watch`, `stop`, `jobs`, `status` and `logs`."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

import bert_jax
from bert_jax.cli import base
from bert_jax.parallel.stop_signal import INTERRUPTED

# Options that set a nested key of the section `submit`.
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
    help="Bucket of the job. [default: $BERT_JAX_BUCKET]",
)
yes_option = click.option("--yes", is_flag=True, help="Answer yes to all questions.")
project_option = click.option("--project", help="Google Cloud project. [default: from gcloud]")
cluster_option = click.option("--cluster", help="Name of the GKE cluster.")


@base.cli.command()
@base.config_argument
@base.overrides_argument
@click.option(
    "--on",
    multiple=True,
    metavar="NAME",
    help="v5litepod-16, v5e:4x4, v4-32 …, or local. If repeated, tried in order.",
)
@click.option("--hosts", type=int, help="Number of processes with --on local.")
@click.option("--slices", type=int, multiple=True, help="Number of slices of each topology.")
@click.option(
    "--bucket",
    type=base.PATH,
    metavar="gs://BUCKET",
    help="Bucket of the job, or a directory with --on local.",
)
@project_option
@click.option("--zone", multiple=True, help="Zone. If repeated, tried in order.")
@click.option("--spot", is_flag=True, help="Use cheaper, preemptible machines.")
@cluster_option
@click.option("--launcher", metavar="NAME", help="Launcher: queued-resources or gke.")
@click.option("--name", help="Name of the job. [default: from the run directory]")
@click.option("--max-cost", type=float, metavar="DOLLARS", help="Stop the job at this cost.")
@click.option("--no-limit", is_flag=True, help="Allow any cost, without --max-cost.")
@click.option("--max-hours", type=float, help="Stop the job after this time.")
@click.option("--retries", type=int, help="Maximum restarts of machines. [default: 100]")
@click.option("--wait-hours", type=float, help="Maximum wait for capacity per request.")
@click.option(
    "--verb",
    type=click.Choice(["pretrain", "finetune", "score"]),
    default="pretrain",
    show_default=True,
    help="Verb that hosts run.",
)
@click.option("--prices", type=base.PATH, metavar="FILE", help="Your own price list.")
@click.option("--no-plan", is_flag=True, help="Skip the estimate of memory and cost.")
@click.option("--dry-run", is_flag=True, help="Print cost and limits only; no network.")
@click.option("--full", is_flag=True, help="With --dry-run: also print files and requests.")
@click.option(
    "--watch", is_flag=True, help="Replace lost machines, and delete all machines at the end."
)
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
    """Run a configuration on new machines: Cloud TPU, GKE or this machine.

    Exit codes: 0 done, or machines requested without --watch; 1 the run failed or reached a limit;
    2 wrong settings; 3 interrupted. With --watch, deletes all machines unless you choose to keep
    them.
    """
    from bert_jax.verbs.submit import dry_run_text

    loaded = base.read_config(config, [*overrides, *_as_overrides(settings)])
    if dry_run:
        click.echo(dry_run_text(loaded, verb=verb, prices=prices, full=full), nl=False)
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
    except KeyboardInterrupt:  # click would exit with 1, the code of a failed run
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
    """Watch a job to its end, if no other process does. Exit codes: as for submit."""
    state = bert_jax.watch(job, bucket=bucket, confirm=None if yes else _confirm, say=click.echo)
    if state.outcome != "done":
        sys.exit(INTERRUPTED)


@base.cli.command()
@job_argument
@bucket_option
@click.option("--yes", is_flag=True, help="Has no effect: stop asks no question.")
@base.verb
def stop(job: str, bucket: str | None, yes: bool) -> None:
    """End a job: save its run, delete its machines. Asks no question."""
    bert_jax.stop(job, bucket=bucket, say=click.echo)


@base.cli.command()
@click.option("--stop-orphans", is_flag=True, help="Delete machines that no job needs.")
@bucket_option
@project_option
@cluster_option
@yes_option
@base.verb
def jobs(stop_orphans: bool, yes: bool, **settings: Any) -> None:
    """List the machines of all jobs and users, and whether they cost money."""
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
    """Show the state of a job or run: machines, step, speed, goodput, restarts, cost, ETA."""
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
@click.option("--worker", type=click.IntRange(0), default=0, show_default=True, help="Host index.")
@click.option("--attempt", type=click.IntRange(1), help="Attempt number. [default: the last]")
@click.option("--follow", "-f", is_flag=True, help="Print later output until the run ends.")
@base.verb
def logs(target: str, bucket: str | None, worker: int, attempt: int | None, follow: bool) -> None:
    """Show the output of a job's host."""
    for content in bert_jax.logs(
        target, worker=worker, attempt=attempt, follow=follow, bucket=bucket
    ):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _as_overrides(options: Mapping[str, Any]) -> list[str]:
    """Turns options into overrides ``submit.KEY=VALUE`` with JSON values."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if given.pop("spot", False):
        given["provisioning"] = "spot"
    return [
        f"submit.{_SETTINGS.get(name, name)}={json.dumps(value)}" for name, value in given.items()
    ]


def _confirm(question: str) -> bool:
    """Asks the user a question. Without a terminal, the answer is no."""
    return sys.stdin.isatty() and click.confirm(question, err=True)
