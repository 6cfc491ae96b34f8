"""A configuration's paths as hosts reach them."""

import re
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.files.remote import absolute, is_remote

_NO_NAME: Final = re.compile(r"[^a-z0-9]+")
_LONGEST: Final = 36


def on_bucket(path: str, key: str, bucket: str) -> str:
    """Returns a path that every host reaches: a relative one counts from the bucket.

    ``on_bucket("runs/base", "run_dir", "gs://b") -> "gs://b/runs/base"``

    Raises:
        UserError: it is a local one that starts at the root, or leaves the bucket.
    """
    if is_remote(path):
        return path
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise UserError(
            f"{key}: found {path}, which hosts cannot reach; allowed: gs://…, or a path below the "
            f"bucket, such as data/{path.rstrip('/').rpartition('/')[2]}"
        )
    return f"{bucket.rstrip('/')}/{path.removeprefix('./')}"


def for_hosts(config: Mapping[str, Any], bucket: str) -> dict[str, Any]:
    """Returns a configuration in which every path of a run lies in the bucket, ``gs://…``.

    Those of a fine-tuning task are `bert_jax.launch.task_files`'.

    Raises:
        UserError: as `on_bucket`.
    """
    found = dict(config)
    for key in ("run_dir", "tokenizer"):
        if found.get(key) is not None:
            found[key] = on_bucket(found[key], key, bucket)
    if (train := found.get("train")) is not None:
        phases = [
            phase | {"dataset": on_bucket(phase["dataset"], f"train.phases.{at}.dataset", bucket)}
            for at, phase in enumerate(train["phases"])
        ]
        found["train"] = train | {"phases": phases}
        if (saved := train.get("executables")) is not None:
            found["train"]["executables"] = on_bucket(saved, "train.executables", bucket)
    if (finetune := found.get("finetune")) is not None:
        start = on_bucket(finetune["init_from"], "finetune.init_from", bucket)
        found["finetune"] = finetune | {"init_from": start}
    return found


def for_this_machine(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration whose run directory is the same wherever it is read."""
    return dict(config) | {"run_dir": absolute(config["run_dir"])}


def name_of(run_dir: str) -> str:
    """Returns a job's name made of its run directory's: ``runs/BERT_base.2 -> bert-base-2``."""
    last = run_dir.rstrip("/").rpartition("/")[2].lower()
    name = _NO_NAME.sub("-", last).strip("-")
    name = name if name[:1].isalpha() else f"run-{name}".rstrip("-")
    return name[:_LONGEST].rstrip("-")
