"""Compares a run with the stored curve of the same recipe.

A reference curve is a small JSON file with the validation loss of several seeds. It belongs to all
runs with the same recipe: model, objective, optimizer, phases, training data and held-out data. The
seed, the devices and the precision do not count.
"""

import hashlib
import importlib.resources
import json
import math
from collections.abc import Iterator
from typing import Any, Final

from etils import epath

from bert_jax.diagnostics.findings import Finding, ok, warn
from bert_jax.errors import UserError
from bert_jax.files.read import parse_json_object
from bert_jax.objectives.of_run import default_objective
from bert_jax.objectives.train_section import TrainSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.runs.run_directory import Run, read_run_provenance
from bert_jax.section import Section
from bert_jax.train.metrics_writer import VALIDATION, read_metrics
from bert_jax.validation import validate

TOPIC: Final = "reference curve"
METRIC: Final = "mlm_loss"
DEVIATIONS: Final = 4.0  # allowed distance from the mean, in standard deviations of the seeds
LEAST: Final = 0.01  # smallest allowed distance, as a share of the mean
_VERB: Final = "doctor"
# Settings without an effect on the results of training.
_HARMLESS: Final = {"accumulation", "dataset"}


class CurvePoint(Section):
    """The loss of all seeds after a step."""

    step: int
    """Optimizer steps."""
    flops: float
    """Model FLOPs of the steps."""
    mean: float
    """Mean over the seeds."""
    deviation: float
    """Standard deviation over the seeds."""


class ReferenceCurve(Section):
    """The validation loss of a recipe."""

    name: str
    """Name in messages."""
    recipe: str
    """Result of `recipe_hash`."""
    seeds: tuple[int, ...]
    """Seeds of the runs."""
    points: tuple[CurvePoint, ...]
    """Evaluations, by step."""

    def allowed(self, point: CurvePoint) -> float:
        """Returns the allowed distance of a run's loss from a point."""
        squares = [each.deviation**2 for each in self.points]
        pooled = math.sqrt(math.fsum(squares) / len(squares))
        return max(DEVIATIONS * max(pooled, point.deviation), LEAST * point.mean)


def recipe_hash(run: Run) -> str:
    """Returns a hash of everything that determines a run's validation losses, except the seed.

    Settings with their default value do not count, so new settings do not change the hash. Raises
    UserError if a section of the run's configuration is invalid.
    """
    train = run.section("train", TrainSection, verb=_VERB)
    provenance = read_run_provenance(run.directory)

    def changed(section: Section, exclude: set[str]) -> dict[str, Any]:
        return section.model_dump(mode="json", exclude_defaults=True, exclude=exclude)

    evaluation = train.evaluation
    content = {
        "tokenizer": run.tokenizer.hash,
        "model": [run.architecture.kind, changed(run.architecture, set())],
        "objective": changed(default_objective(run, verb=_VERB), {"teacher"}),
        "optimizer": changed(run.section("optimizer", OptimizerSection, verb=_VERB), set()),
        "phases": [
            [
                changed(phase, _HARMLESS),
                provenance.get("datasets", {}).get(phase.dataset),
                provenance.get("validation", {}).get(phase.dataset),
            ]
            for phase in train.phases
        ],
        "evaluation": evaluation and [evaluation.examples, evaluation.seed],
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_curves(folder: str | None = None) -> Iterator[ReferenceCurve]:
    """Yields the curves of a folder, by default of the package.

    Raises UserError if a file is damaged, or the folder does not exist.
    """
    if folder is None:
        root: Any = importlib.resources.files("bert_jax.configs") / "curves"
        if not root.is_dir():
            return
    elif not (root := epath.Path(folder)).is_dir():
        raise UserError(
            "curves.missing",
            "found {found}, allowed: an existing folder with reference curves",
            place="--curves",
            found=f"{folder:.200}",
        )
    for file in sorted(root.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            try:
                values = parse_json_object(file.read_text(encoding="utf-8"))
            except UserError as error:
                raise error.located(str(file)) from error
            yield validate(ReferenceCurve, values, source=str(file))


def check_curve(run: Run, folder: str | None = None) -> Iterator[Finding]:
    """Yields a finding if there is a curve of the run's recipe, see `read_curves`.

    ``ok("reference curve", "as expected: …")``, or a warning with the first step that differs.
    """
    if not run.has("train"):
        return
    recipe = recipe_hash(run)
    for curve in read_curves(folder):
        if curve.recipe == recipe:
            yield _compare(run, curve)


def _compare(run: Run, curve: ReferenceCurve) -> Finding:
    lines = read_metrics(run.directory, kind=VALIDATION)
    losses = {line["step"]: line[METRIC] for line in lines if METRIC in line}
    common = [point for point in curve.points if point.step in losses]
    if not common:
        return ok(TOPIC, f'no evaluation yet to compare with "{curve.name}"')
    for point in common:
        loss, allowed = losses[point.step], curve.allowed(point)
        if abs(loss - point.mean) > allowed:
            low, high = point.mean - allowed, point.mean + allowed
            return warn(
                TOPIC,
                f'left "{curve.name}" at step {point.step:,}: {METRIC} is {loss:.3f}, expected '
                f"{low:.3f} to {high:.3f}",
            )
    last = common[-1]
    return ok(
        TOPIC,
        f'as expected: {METRIC} is {losses[last.step]:.3f} at step {last.step:,}, "{curve.name}" '
        f"has {last.mean:.3f} ± {last.deviation:.3f} over {len(curve.seeds)} seeds",
    )
