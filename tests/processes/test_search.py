"""Two processes train models of search like one: negatives come from both."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.metrics_writer import read_metrics
from tests.processes.hosts import start
from tests.processes.test_finetune import alone
from tests.project import write_config
from tests.tasks.rerank.data import rerank_config
from tests.tasks.search.data import embedding_config
from tests.tasks.sparse.data import sparse_config

late_interaction_config = functools.partial(
    embedding_config,
    kind="late_interaction",
    query_expansion="unattended",
    query_length=7,
    skip_punctuation=True,
)


@pytest.mark.parametrize(
    ("config_of", "predicted"),
    [
        (embedding_config, None),
        (sparse_config, None),
        (late_interaction_config, None),
        (rerank_config, 40),
    ],
)
def test_two_processes_train_like_one(
    config_of: Callable[..., dict[str, Any]], predicted: int | None, tmp_path: Path
) -> None:
    """70 pairs or lists do not fill the last batch of 32. Lists differ in size."""
    values = config_of(tmp_path, rows=70)
    values["mesh"] = {"platform": "cpu"}
    values["finetune"] |= {"epochs": 1, "log_every": 1, "accumulation": 2}
    config = write_config(tmp_path / "config.yaml", values)
    one, two = tmp_path / "one", tmp_path / "two"
    alone("finetune", config, f"run_dir={one}", directory=tmp_path)
    split = ("mesh.data=2", "mesh.fsdp=1")
    with start("finetune", config, f"run_dir={two}", *split, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
        assert "best: step" in job[0].out
    for expected, found in zip(read_metrics(one), read_metrics(two), strict=True):
        kind = expected.pop("kind")
        assert found.pop("kind") == kind
        if kind not in ("speed", "goodput"):
            assert found == pytest.approx(expected, rel=1e-4)
    if predicted is not None:
        assert (one / "predictions/dev.jsonl").read_text().count("\n") == predicted
