"""Stores the evaluations of a run's checkpoints: one file per checkpoint and split.

``evaluation.json`` has the evaluation of the checkpoint that ``auto`` selects, on the run's own
held-out split. All other evaluations are in ``evaluations/<split>-<step>.json``, or in
``evaluations/<split>-<step>-ema.json`` for the moving average of the parameters.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import pydantic

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, shown
from bert_jax.runs.run_directory import EVALUATIONS, Run

EVALUATION: Final = "evaluation.json"


class Evaluation(NamedTuple):
    """Metrics of one checkpoint on one split."""

    step: int
    dataset: str  # path of the dataset; for a fine-tuned run, equal to `split`
    split: str
    examples: int
    scores: Mapping[str, float]
    # Ranking metric of the best constant answer on the first split; only for fine-tuned runs
    constant_score: float | None = None
    failure: str | None = None  # why the run learnt nothing, or None


_EVALUATION: Final = pydantic.TypeAdapter(Evaluation)


def own_split(run: Run) -> str:
    """Returns the split on which a run's checkpoints are compared."""
    return "dev" if run.is_fine_tuned else "validation"


def write_evaluation(
    run: Run, evaluation: Evaluation, *, selected: bool, own_data: bool, ema: bool = False
) -> None:
    """Writes an evaluation into a run directory.

    `selected`: whether ``auto`` selects the evaluated checkpoint. `own_data`: whether the dataset
    belongs to the run's configuration. `ema`: whether the moving average was evaluated.
    """
    if selected and own_data and not ema and evaluation.split == own_split(run):
        path = run.directory / EVALUATION
    else:
        name = f"{evaluation.split}-{evaluation.step}" + "-ema" * ema
        if not own_data:
            name = re.sub(r"[^\w.-]+", "_", evaluation.dataset).strip("_") + "-" + name
        path = run.directory / EVALUATIONS / f"{name}.json"
    write_whole(path, json.dumps(evaluation._asdict(), indent=2).encode())


def read_evaluation(run: Run, *, step: int | None = None, ema: bool = False) -> Evaluation | None:
    """Returns the evaluation of a checkpoint on the run's own held-out split, or None.

    If `step` is None, uses the checkpoint that ``auto`` selected at its last evaluation. With
    `ema`, returns the evaluation of its moving average. Raises UserError if the file is damaged.
    """
    other = f"{EVALUATIONS}/{own_split(run)}-{step}"
    for name in [f"{other}-ema.json"] if ema else [EVALUATION, f"{other}.json"]:
        path = run.directory / name
        if not path.exists():
            continue
        try:
            found = _EVALUATION.validate_python(read_json_object(path), strict=True)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            message = f"found {shown(first['input'])}, but {first['msg'].lower()}"
            place = f"{path}: {'.'.join(map(str, first['loc']))}"
            raise UserError("evaluation.damaged", message, place=place) from None
        if found.split == own_split(run) and step in (None, found.step):
            return found
    return None
