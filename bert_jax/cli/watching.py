"""Looking at jobs and runs from anywhere."""

import sys

import click

from bert_jax.cli.base import cli, verb

target_argument = click.argument("target", metavar="RUN_DIR|JOB")
bucket_option = click.option(
    "--bucket", metavar="gs://BUCKET", help="Of a job's name. [default: $BERT_JAX_BUCKET]"
)


@cli.command()
@target_argument
@bucket_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@verb
def status(target: str, bucket: str | None, as_json: bool) -> None:
    """Show how a job or a run is: machines, step, speed, goodput, restarts, dollars, ETA."""
    from bert_jax.launch.status_text import describe_status
    from bert_jax.verbs.status import status as run

    found = run(target, bucket=bucket)
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        click.echo("\n".join(describe_status(found)))


@cli.command()
@target_argument
@bucket_option
@click.option("--worker", type=click.IntRange(0), default=0, show_default=True, help="The host.")
@click.option("--attempt", type=click.IntRange(1), help="Whose host. [default: the last one's]")
@click.option("--follow", "-f", is_flag=True, help="Go on until the host's run is over.")
@verb
def logs(target: str, bucket: str | None, worker: int, attempt: int | None, follow: bool) -> None:
    """Show what a host of a job has printed."""
    from bert_jax.verbs.logs import logs as run

    for content in run(target, worker=worker, attempt=attempt, follow=follow, bucket=bucket):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
