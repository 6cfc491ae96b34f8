"""Translates a configuration's paths for the hosts, and uploads a task's files."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from etils import epath

from bert_jax.data.loader.mixing_section import with_paths
from bert_jax.errors import UserError
from bert_jax.files.download import CHECKED
from bert_jax.files.hub import is_dataset_file
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.interop.sources import is_hub_name
from bert_jax.tasks.glue.files import TASKS
from bert_jax.tasks.glue.tfds import NAME as TFDS
from bert_jax.train.evaluation_section import held_out_key

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
_MAX_NAME: Final = 36


def on_bucket(path: str, key: str, bucket: str) -> str:
    """Returns a path that every host can read. Relative paths are relative to the bucket.

    ``on_bucket("runs/base", "run_dir", "gs://b") -> "gs://b/runs/base"``

    Raises UserError if the path is local and absolute, or outside the bucket.
    """
    if is_remote(path):
        return path
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise UserError.wrong(
            "submit.local_path", path, "gs://… or a path in the bucket", place=key
        )
    return f"{bucket.rstrip('/')}/{path.removeprefix('./')}"


def for_hosts(config: Mapping[str, Any], bucket: str) -> dict[str, Any]:
    """Returns a configuration with paths that hosts can read. Keeps the paths of its task.

    Raises UserError if a path is local and absolute, or outside the bucket.
    """
    found = dict(config)
    for key in ("run_dir", "tokenizer"):
        if found.get(key) is not None:
            found[key] = on_bucket(found[key], key, bucket)
    if (train := found.get("train")) is not None:
        phases = [
            _phase(phase, f"train.phases.{i}", bucket) for i, phase in enumerate(train["phases"])
        ]
        found["train"] = train | {"phases": phases}
        evaluation = train.get("evaluation") or {}
        if (held_out := evaluation.get("dataset")) is not None:
            held_out = on_bucket(held_out, held_out_key(""), bucket)
            found["train"]["evaluation"] = evaluation | {"dataset": held_out}
        if sets := evaluation.get("sets"):
            placed = {name: on_bucket(sets[name], held_out_key(name), bucket) for name in sets}
            found["train"]["evaluation"] = evaluation | {"sets": placed}
    if (finetune := found.get("finetune")) is not None:
        models = {
            key: on_bucket(finetune[key], f"finetune.{key}", bucket)
            for key in ("init_from", "distill_from")
            if finetune.get(key) is not None
        }
        found["finetune"] = finetune | models
    if (score := found.get("score")) is not None:
        model = score["model"]
        found["score"] = score | {
            "model": model if is_hub_name(model) else on_bucket(model, "score.model", bucket),
            "input": [on_bucket(path, "score.input", bucket) for path in score["input"]],
            "output": on_bucket(score["output"], "score.output", bucket),
        }
    if (teacher := (found.get("objective") or {}).get("teacher")) is not None:
        place = on_bucket(teacher, "objective.teacher", bucket)
        found["objective"] = found["objective"] | {"teacher": place}
    return found


def _phase(phase: Mapping[str, Any], key: str, bucket: str) -> dict[str, Any]:
    """Returns a phase with paths of datasets that hosts can read."""

    def place(path: str) -> str:
        return on_bucket(path, f"{key}.dataset", bucket)

    found = {**phase, "dataset": with_paths(phase["dataset"], place)}
    mixing = phase.get("mixing") or {}
    if mixing.get("until"):
        found["mixing"] = mixing | {"until": with_paths(mixing["until"], place)}
    return found


def name_of(run_dir: str) -> str:
    """Returns a job's name from its run directory: ``runs/BERT_base.2 -> bert-base-2``."""
    last = run_dir.rstrip("/").rpartition("/")[2].lower()
    name = _NOT_IN_NAMES.sub("-", last).strip("-")
    name = name if name[:1].isalpha() else f"run-{name}".rstrip("-")
    return name[:_MAX_NAME].rstrip("-")


LARGEST_BYTES: Final = 1 << 30
"""Maximum total size of the files uploaded with a job."""

_KEYS: Final = ("train", "dev", "test", "data")


@dataclasses.dataclass(frozen=True)
class Upload:
    """Files of this machine to copy into one directory in the bucket."""

    files: Mapping[str, Path]  # local files by name
    target: str  # directory, named by the files' hash, so that equal files are uploaded once


def task_paths(task: Mapping[str, Any]) -> dict[str, str]:
    """Returns the files and directories of a task by key, without TFDS and Hub datasets."""
    named = {key: task.get(key) or TFDS for key in _KEYS}
    return {key: path for key, path in named.items() if path != TFDS and not is_dataset_file(path)}


def for_upload(task: Mapping[str, Any], bucket: str) -> tuple[dict[str, Any], list[Upload]]:
    """Returns the task with paths in the bucket, and the uploads that it needs.

    Paths that exist on this machine are uploaded. All other paths are relative to the bucket.
    `task`: `finetune.task` as JSON values. Raises UserError if the files exceed `LARGEST_BYTES`, a
    path is a directory of another task than GLUE, the data come from TFDS, or `on_bucket` refuses
    a path.
    """
    if task.get("data") == TFDS:
        remedy = f"found {TFDS}, which hosts lack. Use the original files."
        raise UserError("submit.task_tfds", remedy, place="finetune.task.data")
    changed, uploads, total = dict(task), [], 0
    for key, path in task_paths(task).items():
        files = {} if is_remote(path) else _files(task, Path(path).expanduser())
        if not files:
            changed[key] = on_bucket(path, f"finetune.task.{key}", bucket)
            continue
        total += sum(file.stat().st_size for file in files.values())
        if total > LARGEST_BYTES:
            found, allowed = f"{total / 2**20:,.1f} MiB", f"{LARGEST_BYTES >> 20}, or gs:// paths"
            place = f"finetune.task.{key}"
            raise UserError.wrong("submit.upload_size", found, allowed, place=place)
        target = f"{bucket.rstrip('/')}/files/{CHECKED}{sha256_of_files(files)}"
        name, first = next(iter(files.items()))
        if key == "data":
            target = changed[key] = f"{target}/{first.parent.name}"
        else:
            changed[key] = f"{target}/{name}"
        uploads.append(Upload(files, target))
    return changed, uploads


def upload(uploads: Sequence[Upload], *, say: Callable[[str], None]) -> None:
    """Copies files into the bucket, except files that are already there.

    Raises UserError if the bucket cannot be written, RunStopped if it does not answer.
    """
    for entry in uploads:
        for name, path in entry.files.items():
            target = epath.Path(entry.target) / name
            if not target.exists():  # an object in a bucket is never partial
                say(f"uploading {path} ({path.stat().st_size / 1e6:.1f} MB)")
                epath.Path(path).copy(target)


def _files(task: Mapping[str, Any], path: Path) -> dict[str, Path]:
    """Returns the files of a local path by name, empty if it does not exist."""
    if path.is_file():
        return {path.name: path}
    if not path.is_dir():
        return {}
    if "name" not in task:  # only GLUE's directories are flat
        allowed = "files, or a gs://… path"
        raise UserError.wrong("submit.task_directory", "a directory", allowed, place=path)
    inside = path / TASKS[task["name"]].directory
    root = inside if inside.is_dir() else path
    return {file.name: file for file in sorted(root.iterdir()) if file.is_file()}
