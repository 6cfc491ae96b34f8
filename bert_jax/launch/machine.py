"""What a machine is told when it starts: where its job lies, and which attempt it is of.

The same names everywhere. On Cloud TPU they are attributes of the instance's metadata, lower case
with hyphens (``bert-jax-job``); in containers and on this machine they are environment variables.
`tpu_setup/startup.sh` turns the former into the latter and starts `python -m bert_jax.launch.host`.
"""

from typing import Final

from bert_jax.launch.job import Attempt

JOB: Final = "BERT_JAX_JOB"  # the job's directory: ``gs://bucket/jobs/NAME``
ATTEMPT: Final = "BERT_JAX_ATTEMPT"  # its number; what was asked for is in the job's directory
# Which host of the attempt, over all its slices, from 0. On a Cloud TPU the script works it out:
# slice × hosts of a slice + worker of the slice.
WORKER: Final = "BERT_JAX_WORKER"
# ``127.0.0.1:PORT``, where processes of `on: local` meet. A TPU finds it by itself.
COORDINATOR: Final = "BERT_JAX_COORDINATOR"
# A Python that has bert-jax installed: in containers and on this machine. Unset, the script makes
# an environment and installs the staged wheel into it.
PYTHON: Final = "BERT_JAX_PYTHON"
# A local directory for the environment, caches, datasets; unset: the script's own choice.
HOME: Final = "BERT_JAX_HOME"
BEAT_SECONDS: Final = "BERT_JAX_BEAT_SECONDS"  # between heartbeats of a host; unset: 60
# Before a host starts its run again for the first time; unset: 5. It doubles.
PAUSE_SECONDS: Final = "BERT_JAX_PAUSE_SECONDS"
ALL: Final = (JOB, ATTEMPT, WORKER, COORDINATOR, HOME, BEAT_SECONDS, PAUSE_SECONDS)  # the agent's


def metadata(attempt: Attempt) -> dict[str, str]:
    """Returns the attributes of the metadata of an attempt's machines, but for the script."""
    return {attribute(name): value for name, value in environment(attempt).items()}


def attribute(name: str) -> str:
    """Returns what one of the variables is called in metadata: ``bert-jax-job``."""
    return name.lower().replace("_", "-")


def environment(attempt: Attempt) -> dict[str, str]:
    """Returns the same as environment variables, for containers."""
    return {JOB: str(attempt.job.directory), ATTEMPT: str(attempt.number)}
