"""The page about a scored corpus: totals, results, rows near the threshold, slow parts."""

import heapq
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from bert_jax.corpus.job import Job
from bert_jax.corpus.keep import Condition, Threshold
from bert_jax.corpus.results import PROBABILITIES, Tags
from bert_jax.corpus.run import ScoreResult
from bert_jax.corpus.score_part import PartRecord
from bert_jax.corpus.summary import BIN, CorpusSummary, Histogram, value_column
from bert_jax.files.atomic import write_whole
from bert_jax.report.charts import histogram
from bert_jax.report.rendering import SHOWN, Chart, Share, flat, render_page
from bert_jax.version import __version__

REPORT: Final = "_report.html"
_SLOWEST: Final = 10


def write_report(job: Job, result: ScoreResult, *, speed: str | None) -> None:
    """Writes ``_report.html`` to the output directory.

    `speed` describes the work of this command, if it had any. Raises UserError if the page cannot
    be written.
    """
    write_whole(job.output / REPORT, render(job, result.records, speed=speed).encode())


def render(job: Job, records: Sequence[PartRecord], *, speed: str | None) -> str:
    """Returns the page as one self-contained HTML document."""
    section, results = job.settings.section, job.settings.results
    threshold = _threshold(job)
    column = value_column(results.schema.names, threshold)
    summary = CorpusSummary.of(record.summary for record in records)
    words = isinstance(results, Tags)
    documents = sum(record.read for record in records)
    labelled = sum(summary.labels.values()) if words else documents
    values = None
    if column is not None and summary.histogram.counts:
        marked = threshold if threshold is not None and threshold.column == column else None
        values = _chart(summary.histogram, _name(column), marked)
    unread = [record for record in records if record.skipped or record.damage]
    settings = {name: value for name, value in job.fingerprint.items() if "." not in name}
    return render_page(
        "corpus.html",
        title=f"Scores of {PurePath(section.output).name}",
        about=f"Model: {section.model}. Output: {section.output}",
        figures=_figures(job, records),
        footer=f"Written by bert_jax {__version__}. This file is self-contained.",
        values=values,
        labelled="words" if words else "documents",
        label_count=len(summary.labels),
        labels=[
            (name, Share(count / labelled, count / labelled), count)
            for name, count in list(summary.labels.items())[:SHOWN]
        ],
        threshold=threshold and {"name": _name(threshold.column), "value": f"{threshold.value:g}"},
        near=sorted(summary.near, key=lambda row: -row.value),
        unread=[
            (record.output, record.skipped, " ".join(filter(None, [*record.notes, record.damage])))
            for record in unread[:SHOWN]
        ],
        unread_count=len(unread),
        speed=speed,
        slowest=[
            (r.output, r.read, r.tokens, r.seconds, r.read / r.seconds if r.seconds else "–")
            for r in heapq.nlargest(_SLOWEST, records, key=lambda record: record.seconds)
        ],
        part_count=len(records),
        settings=flat({"score": section.model_dump(mode="json", exclude_none=True), **settings}),
    )


def _threshold(job: Job) -> Threshold | None:
    section = job.settings.section
    if section.keep is None:
        return None
    # The names of copied columns were checked when the parts were read.
    return Condition(section.keep, columns=None).threshold


def _figures(job: Job, records: Sequence[PartRecord]) -> list[tuple[str, str]]:
    def total(name: str) -> int:
        return sum(getattr(record, name) for record in records)

    read, written = total("read"), total("written")
    figures = [("documents", f"{read:,}")]
    if job.settings.section.keep is not None:
        share = f" ({written / read:.1%})" if read else ""
        figures += [("kept", f"{written:,}{share}"), ("dropped", f"{total('dropped'):,}")]
    figures += [
        (name, f"{total(key):,}")
        for name, key in (("skipped", "skipped"), ("cut texts", "cut"))
        if total(key)
    ]
    return [*figures, ("tokens", f"{total('tokens'):,}"), ("parts", f"{len(records):,}")]


def _name(column: tuple[str, ...]) -> str:
    """Returns a column as in a condition: ``score``, ``probabilities["good"]``."""
    if column == (PROBABILITIES,):
        return "highest probability"
    return column[0] + "".join(f'["{field}"]' for field in column[1:])


def _chart(values: Histogram, name: str, threshold: Threshold | None) -> Chart:
    first, last = min(values.counts), max(values.counts)
    width = BIN * 2**values.doublings
    return histogram(
        f"Documents by {name}",
        [values.counts.get(at, 0) for at in range(first, last + 1)],
        edges=[float(f"{at * width:.6g}") for at in range(first, last + 2)],
        x_label=name,
        mark=None if threshold is None else (threshold.value, "threshold"),
    )
