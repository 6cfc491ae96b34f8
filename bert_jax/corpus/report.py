"""The page about a scored corpus."""

from bert_jax.corpus.job import Job
from bert_jax.corpus.run import ScoreResult


def write_report(job: Job, result: ScoreResult) -> None:
    """Writes ``report.html`` to the output directory."""
