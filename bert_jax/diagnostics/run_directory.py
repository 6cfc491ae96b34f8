"""Whether a run directory holds what was written to it."""

from collections.abc import Mapping
from typing import Final

from etils import epath

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.reader import is_google_bert, open_google_bert
from bert_jax.diagnostics.findings import Finding, ok, problem, warn
from bert_jax.errors import UserError
from bert_jax.files.json_lines import parse_lines, pieces
from bert_jax.files.read import read_bytes, read_json_object
from bert_jax.runs.directory import CHECKPOINTS, PROVENANCE, open_run
from bert_jax.train.checkpoint_directory import CheckpointDirectory
from bert_jax.train.manifest import foreign_files, read_manifest
from bert_jax.train.time_account import describe_goodput, read_goodput
from bert_jax.train.writer import METRICS, is_figures

_TRAIN: Final = "train"


def check_run(run_dir: str) -> list[Finding]:
    """Reads a run directory from end to end: configuration, checkpoints, metrics, datasets.

    Args:
        run_dir: of `pretrain`, `finetune` or `import`, local or gs://; nothing in it is changed.

    Returns:
        What was found. A problem is a finding and never an exception.
    """
    root = epath.Path(run_dir)
    provenance: Mapping[str, object] = {}
    findings: list[Finding] = []
    try:
        run = open_run(root)
        provenance = read_json_object(root / PROVENANCE)
        if provenance.get("tokenizer_hash") != run.tokenizer.hash:
            raise UserError(f"{root / PROVENANCE}: made with another tokenizer than {root} holds")
        findings.append(ok("configuration", "config.yaml, tokenizer and provenance.json agree"))
    except UserError as error:
        findings.append(problem("configuration", str(error)))
    findings += _check_checkpoints(root / CHECKPOINTS)
    findings += _check_metrics(root / METRICS)
    if (account := read_goodput(root)) is not None:
        findings.append(ok("where the time went", describe_goodput(account)))
    datasets = provenance.get("datasets")
    if isinstance(datasets, dict):
        for path, fingerprint in datasets.items():
            findings += _check_dataset(str(path), str(fingerprint))
    return findings


def _check_checkpoints(path: epath.Path) -> list[Finding]:
    """Compares every file of every checkpoint with what was saved."""
    try:
        found = CheckpointDirectory(path, say=lambda line: None)
    except UserError as error:
        return [problem("checkpoints", str(error))]
    findings = []
    for step in found.listed():
        wrong = found.problem(step)
        if wrong is not None:
            level = problem if found.was_finished(step) else warn
            findings.append(level(f"checkpoint {step}", wrong))
            continue
        manifest = read_manifest(path / str(step), step=step)
        size = sum(record.size for record in manifest.files.values())
        text = f"whole: {', '.join(manifest.parts)}, {len(manifest.files)} files, {size:,} bytes"
        findings.append(ok(f"checkpoint {step}", text))
        if foreign := foreign_files(path / str(step), manifest):
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            text = f"{foreign[0]}{more} belongs to no checkpoint; nothing reads it"
            findings.append(warn(f"checkpoint {step}", text))
    if not found.steps():
        findings.append(problem("checkpoints", f"none that is whole in {path}"))
    return findings


def _check_metrics(path: epath.Path) -> list[Finding]:
    files = [path] if path.exists() else []
    files += pieces(path)
    good = damaged = 0
    try:
        for file in files:
            parsed = parse_lines(read_bytes(file), is_figures)
            good, damaged = good + len(parsed.good), damaged + len(parsed.damaged)
    except UserError as error:
        return [problem("metrics", str(error))]
    if damaged:
        return [problem("metrics", f"{damaged} of {good + damaged} lines of {path} are damaged")]
    return [ok("metrics", f"{good} lines")] if files else []


def _check_dataset(path: str, fingerprint: str) -> list[Finding]:
    """Compares a dataset with what the run was trained on, every byte of it."""
    topic = f"dataset {path}"
    try:
        if is_google_bert(path):
            found = open_google_bert(path, _TRAIN).fingerprint
        elif not epath.Path(path).exists():
            return [warn(topic, "is not there, so it cannot be compared")]
        else:
            found = open_dataset(path, _TRAIN).fingerprint
            for split in read_provenance(path).splits:
                open_dataset(path, split).verify()
        if found != fingerprint:
            return [
                problem(
                    topic,
                    f"is not what the run was trained on ({fingerprint[:12]}, found {found[:12]})",
                )
            ]
    except UserError as error:
        return [problem(topic, str(error))]
    return [ok(topic, "is what the run was trained on")]
