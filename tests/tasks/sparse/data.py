"""A configuration that trains a sparse encoder on pairs of made-up texts."""

from pathlib import Path
from typing import Any

from bert_jax.model.section import HeadsSection
from tests.tasks.runs import tiny_run
from tests.tasks.search.data import embedding_config


def sparse_config(directory: Path, *, rows: int = 160, **changes: Any) -> dict[str, Any]:
    """Returns `embedding_config` for the task `sparse`, from a model with an MLM head."""
    values = embedding_config(directory, rows=rows, kind="sparse", **changes)
    heads = HeadsSection(pooler=False, next_sentence=False)
    values["finetune"]["init_from"] = str(tiny_run(directory / "origin", heads=heads))
    return values
