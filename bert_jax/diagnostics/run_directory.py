"""Checks that a run directory is complete and undamaged."""

from collections.abc import Iterator
from typing import Any, Final

from etils import epath

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.reader import is_google_bert, open_google_bert
from bert_jax.diagnostics.findings import Finding, checked, ok, problem, warn
from bert_jax.errors import UserError, differing
from bert_jax.files.line_log import parse_lines
from bert_jax.files.read import read_bytes
from bert_jax.runs.run_directory import CHECKPOINTS, open_run, read_run_provenance
from bert_jax.train.checkpoint_manifest import foreign_files, read_manifest
from bert_jax.train.checkpoint_retention import CheckpointDirectory
from bert_jax.train.metrics_writer import METRICS, is_figures
from bert_jax.train.restore import RollbackLog
from bert_jax.train.time_account import describe_goodput, read_goodput

_TRAIN: Final = "train"


def check_run(run_dir: str) -> Iterator[Finding]:
    """Verifies every file of a run directory; see `bert_jax.verbs.doctor.run_findings`."""
    root = epath.Path(run_dir)
    provenance: dict[str, Any] = {}

    def check_configuration() -> str:
        open_run(root)
        provenance.update(read_run_provenance(root))
        return "config.yaml, tokenizer and provenance.json agree"

    yield checked("configuration", check_configuration)
    yield from _check_checkpoints(root / CHECKPOINTS)
    if (root / METRICS).exists():
        yield checked("metrics", lambda: _check_metrics(root / METRICS))
    try:
        RollbackLog(root)
    except UserError as error:
        yield problem("rollbacks", str(error))
    if (account := read_goodput(root)) is not None:
        yield ok("where the time went", describe_goodput(account))
    datasets = provenance.get("datasets")
    if isinstance(datasets, dict):
        for path, fingerprint in datasets.items():
            yield _check_dataset(str(path), str(fingerprint))


def _check_checkpoints(path: epath.Path) -> Iterator[Finding]:
    """Compares every file of every checkpoint with its manifest."""
    try:
        found = CheckpointDirectory(path, say=lambda line: None)
    except UserError as error:
        yield problem("checkpoints", str(error))
        return
    for step, entry in sorted(found.entries.items()):
        topic, wrong = f"checkpoint {step}", found.problem(step)
        if wrong is not None:
            yield (problem if entry.finished else warn)(topic, wrong)
            continue
        manifest = read_manifest(path / str(step), step=step)
        size = sum(record.size for record in manifest.files.values())
        parts = ", ".join(manifest.parts)
        yield ok(topic, f"complete: {parts}, {len(manifest.files)} files, {size:,} bytes")
        if foreign := foreign_files(path / str(step), manifest):
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            yield warn(topic, f"{foreign[0]}{more} is not part of the checkpoint and is ignored")
    if not found.steps():
        yield problem("checkpoints", f"no complete checkpoint in {path}")


def _check_metrics(path: epath.Path) -> str:
    parsed = parse_lines(read_bytes(path), is_figures)
    good, damaged = len(parsed.good), len(parsed.damaged)
    if damaged:
        raise UserError(
            "metrics.damaged", f"{damaged} of {good + damaged} lines are damaged", place=path
        )
    return f"{good} lines"


def _check_dataset(path: str, fingerprint: str) -> Finding:
    """Verifies every byte of a dataset, and compares its fingerprint with the run's."""
    topic = f"dataset {path}"
    try:
        if is_google_bert(path):
            found = open_google_bert(path, _TRAIN).fingerprint
        elif not epath.Path(path).exists():
            return warn(topic, "missing, so it was not compared")
        else:
            found = open_dataset(path, _TRAIN).fingerprint
            for split in read_provenance(path).splits:
                open_dataset(path, split).verify()
    except UserError as error:
        return problem(topic, str(error))
    if found == fingerprint:
        return ok(topic, "equals the training data")
    there, wanted = differing(found, fingerprint)
    return problem(
        topic,
        f"differs from the training data (found {there}, expected {wanted})",
    )
