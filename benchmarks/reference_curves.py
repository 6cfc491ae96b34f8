"""Writes the curves that `bert-jax doctor RUN` compares runs with."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.finished_runs import RunFolder, RunRecord, mean_curve
from bert_jax.diagnostics.reference_curve import CurvePoint, ReferenceCurve, recipe_hash
from bert_jax.files.atomic import write_whole
from bert_jax.runs.run_directory import open_run


def write_curve(
    path: Path, name: str, records: Sequence[RunRecord], folder: RunFolder
) -> ReferenceCurve:
    """Writes the curve of runs that differ only in their seeds.

    Raises:
        ValueError: the runs have several recipes.
    """
    recipes = {recipe_hash(open_run(folder.run_dir(record.name))) for record in records}
    if len(recipes) > 1:
        raise ValueError(f"{name}: the runs have {len(recipes)} recipes")
    points = [
        CurvePoint(
            step=measured.step,
            flops=measured.flops,
            mean=round(loss.mean, 4),
            deviation=round(loss.deviation, 4),
        )
        for measured, loss in mean_curve(records)
    ]
    curve = ReferenceCurve(
        name=name,
        recipe=recipes.pop(),
        seeds=tuple(record.seed for record in records),
        points=tuple(points),
    )
    write_whole(path, curve.model_dump_json(indent=1) + "\n")
    return curve
