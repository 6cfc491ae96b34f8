"""`doctor` and `pretrain` warn if words have too many pieces for their masks."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.text import load_wordpiece
from tests.corpus import SPECIAL
from tests.project import ok, project_config, write_config

WARNING = r"dataset32: whole_word masks (\d+\.\d)% of its budget, and nothing in (\d+\.\d)% of"


def project(root: Path, *, letters: int) -> dict[str, Any]:
    """Makes examples whose words all have as many pieces as letters; returns a configuration."""
    rng, pieces = np.random.default_rng(1), list("abcdef")
    lines = [
        " ".join("".join(rng.choice(pieces, letters)) for _ in range(30 // letters))
        for _ in range(200)
    ]
    (root / "text").mkdir()
    (root / "text" / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    (root / "vocab.txt").write_text("\n".join([*SPECIAL, *pieces, *(f"##{p}" for p in pieces)]))
    load_wordpiece(root / "vocab.txt", lower_case=True).save(root / "tokenizer")
    values = project_config(root)
    del values["vocab"]
    values["examples"] |= {"kind": "doc_sentences", "validation_fraction": 0.0}
    del values["examples"]["dupe_factor"]
    values["objective"] = {"kind": "roberta", "masking": {"unit": "whole_word"}}
    values["mesh"] = {"platform": "cpu"}
    values["optimizer"]["warmup_steps"] = 0
    phase = {"dataset": str(root / "dataset32"), "seq_length": 32, "steps": 1, "batch_size": 8}
    values["train"] = {"phases": [phase], "log_every": 1}
    ok("examples", write_config(root / "run.yaml", values))
    return values


def test_masks_far_below_their_budget_are_a_warning(tmp_path: Path) -> None:
    project(tmp_path, letters=3)  # the budget is 5 pieces: one word
    found = re.search(f"warn +masks: .*{WARNING}", ok("doctor", tmp_path / "run.yaml"))
    assert found is not None
    assert 55 < float(found[1]) < 65
    assert float(found[2]) == 0.0
    trained = re.search(WARNING, ok("pretrain", tmp_path / "run.yaml"))
    assert trained is not None
    assert trained.groups() == found.groups()


def test_masks_near_their_budget_are_no_warning(tmp_path: Path) -> None:
    project(tmp_path, letters=1)
    said = ok("doctor", tmp_path / "run.yaml")
    assert re.search(r"ok +masks: .*dataset32: whole_word masks 100\.0% of its budget", said)
