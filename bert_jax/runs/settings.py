"""Reads the settings in a run directory. Imports no JAX, so that errors appear quickly."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.encoders.registry import read_model_section
from bert_jax.errors import UserError, all_of, did_you_mean
from bert_jax.files.read import read_text
from bert_jax.files.remote import is_remote, within
from bert_jax.files.seal import refuse_changed_yaml
from bert_jax.files.yaml_file import MAX_BYTES, parse_yaml
from bert_jax.model.section import PRETRAINED_HEADS, HeadsSection, ModelSection
from bert_jax.parallel.section import MeshSection
from bert_jax.section import need

CONFIG: Final = "config.yaml"
PROVENANCE: Final = "provenance.json"
REPORT: Final = "report.html"
RUN: Final = "a run directory of `bert-jax pretrain`, `finetune` or `import`"
RUN_OR_CHECKPOINT: Final = f"{RUN}, or a Hugging Face or google-research/bert checkpoint"
_MOST_NAMED: Final = 3
# Settings that earlier versions wrote, with the values that have no effect.
_REMOVED: Final[Mapping[str, tuple[Any, ...]]] = {"example_log": (False, True)}


def read_settings(root: epath.Path) -> dict[str, Any]:
    """Returns the values of a run's config.yaml; raises UserError if it is missing or changed."""
    path = root / CONFIG
    if not path.exists():
        raise missing_run(root)
    text = read_text(path, limit=MAX_BYTES)
    refuse_changed_yaml(text, where=str(path))
    settings = parse_yaml(text, str(path))
    if not isinstance(settings, dict):
        raise UserError.wrong("run.no_keys", "no keys", "the file of a run", place=path)
    return _without_removed(settings)


def _without_removed(values: Any) -> Any:
    """Drops the settings of `_REMOVED` from nested settings."""
    if isinstance(values, list):
        return [_without_removed(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {
        key: _without_removed(value)
        for key, value in values.items()
        if value not in _REMOVED.get(key, ())
    }


def read_model(root: epath.Path, settings: Mapping[str, Any]) -> ModelSection:
    """Returns the section "model" of a run; raises UserError if it is missing or invalid."""
    values = need(settings.get("model"), "model", "pretrain")
    return read_model_section(values, source=str(root / CONFIG))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings that pretraining and fine-tuning share."""

    seed: int
    run_dir: str
    mesh: MeshSection
    config: Mapping[str, Any]  # whole configuration as plain values, for config.yaml
    allow_data_change: bool = False  # whether the data of an interrupted run may change
    started: float = dataclasses.field(default_factory=time.time)  # Unix time of the start


def missing_run(root: epath.Path, *, allowed: str = RUN) -> UserError:
    """Returns the error for a directory that is not a run; suggests runs nearby."""
    found = f"no {CONFIG} in it" if root.is_dir() else "no such directory"
    if root.exists() and not root.is_dir():
        found = "a file"
    importable = allowed == RUN and (root / "config.json").exists()
    remedy = "; `bert-jax import` makes a run of it" if importable else _other_runs(root)
    return UserError(
        "run.missing",
        f"{found}{'' if root.exists() else within(root)}; allowed: {allowed}{remedy}",
        place=root,
    )


def describe(heads: HeadsSection) -> str:
    """Returns the heads of a model in words, such as ``no head but a pooler``."""
    found = [name for head, name in PRETRAINED_HEADS.items() if getattr(heads, head)]
    if heads.text_head is not None:
        found.append(heads.text_head.title)
    elif heads.task is not None:
        found.append(f"a {heads.task.replace('_', '-')} head")
    if heads.of_pretraining == {"pooler"} and len(found) == 1:
        return "no head but a pooler"
    attention = " with left-to-right attention" if heads.causal else ""
    return f"{all_of(found)}{attention}" if found else "no head and no pooler"


def require_mlm_head(heads: HeadsSection, *, name: str) -> None:
    """Raises UserError if a model cannot predict masked tokens; `name` is for the message."""
    if not heads.mlm:
        found = f"{name} has {describe(heads)}. Use a run with an MLM head."
        raise UserError("run.no_mlm_head", found, place="fill-mask")
    if heads.causal:
        found = f"{name} predicts the next token. Use another checkpoint."
        raise UserError("run.causal", found, place="fill-mask")


def _other_runs(root: epath.Path) -> str:
    """Returns a hint with runs in or beside a local directory, or ``""`` if there are none."""
    if is_remote(root):
        return ""
    for above in root.parents:
        if (above / CONFIG).is_file():
            return f'; did you mean "{above}"?'
    places = [place for place in (root, root.parent, epath.Path("runs")) if place.is_dir()]
    folders = [folder for place in places for folder in sorted(place.iterdir())]
    runs = {folder.name: str(folder) for folder in folders if (folder / CONFIG).is_file()}
    if near := did_you_mean(root.name, runs):
        name = near.split('"')[1]
        return near.replace(name, runs[name])
    return f"; runs there: {', '.join(list(runs.values())[:_MOST_NAMED])}" if runs else ""
