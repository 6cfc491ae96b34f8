"""`bert-jax stop`: ends a job and deletes its machines, with or without a supervisor."""

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.lock import lock_at
from bert_jax.launch.job import find_job, read_job
from bert_jax.launch.launchers import launcher_for
from bert_jax.launch.retry_policy import read_state
from bert_jax.launch.supervisor import Supervisor
from bert_jax.verbs.watch import Say


def stop(job: str, *, bucket: str | None = None, say: Say = print) -> None:
    """Ends a job: its run saves, then its machines are deleted.

    If a supervisor watches the job, the supervisor ends the job at its next poll. Otherwise this
    process ends the job.

    Args:
        job: the job's directory or name.
        bucket: bucket of a job given by name. Default: ``$BERT_JAX_BUCKET``.
        say: callback for output lines.

    Raises:
        UserError: there is no such job.
    """
    files = find_job(job, bucket=bucket)
    if (state := read_state(files)).outcome is not None and state.current is None:
        raise UserError(
            "job.ended",
            f"this job has ended: {state.outcome} {state.message}",
            place=files.directory,
        )
    write_whole(files.stop, "{}\n")
    section, lock = read_job(files).submit, lock_at(files.lease, say=say)
    if not lock.take():
        seconds = section.poll_seconds
        say(f"its supervisor ({lock.holder}) will end it within {seconds:.0f} s")
        return
    try:
        Supervisor(files, launcher_for(section), lock, say=say).run()
    finally:
        lock.give_back()
