"""`bert-jax watch`: takes up a job that nobody watches."""

from bert_jax.launch.job import find_job
from bert_jax.launch.launchers import launcher_for
from bert_jax.launch.supervisor_state import SupervisorState, read_job
from bert_jax.launch.watching import Confirm, Say, conclude, watch_job


def watch(
    job: str, *, bucket: str | None = None, confirm: Confirm | None = None, say: Say = print
) -> SupervisorState:
    """Watches a job to its end: recreates what was taken back, deletes everything at the end.

    ``watch("gs://b/jobs/base").outcome -> "done"``

    Args:
        job: its directory, or its name.
        bucket: for a name; None for ``$BERT_JAX_BUCKET``.
        confirm: asks the user a question, on Ctrl-C; None: every answer is yes.
        say: called with each line of news.

    Returns:
        What was done; without an outcome if the user left it running.

    Raises:
        UserError: there is no such job, or another process watches it.
        RunStopped: the run failed, or a limit was reached; nothing is left that bills.
    """
    say(f"{job}: reading the state of the job")
    files = find_job(job, bucket=bucket)
    found = read_job(files)
    launcher = launcher_for(found.submit)
    state = watch_job(files, launcher, say=say, confirm=confirm or (lambda question: True))
    if state.outcome is not None:
        say(conclude(state, files, dollars=state.dollars(found.placements, state.seen)))
    return state
