"""The page about a scored corpus."""

from bert_jax.corpus.job import Job
from bert_jax.corpus.run import JobResult


def write_report(job: Job, result: JobResult) -> None:
    """Writes ``report.html`` to the output directory."""
