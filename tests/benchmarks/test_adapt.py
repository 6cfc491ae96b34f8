"""``python -m benchmarks.adapt``: arms with equal FLOPs, and the published table."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.adapt import ARMS, MARK, Study, command_line, read_records, table
from benchmarks.equal_flops import all_flops_per_row, total_flops
from benchmarks.marked_table import inserted
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.corpus import SPECIAL, WORDS
from tests.interop.hf_checkpoints import fresh_run
from tests.project import ROOT


def test_all_arms_have_equal_flops(tmp_path: Path) -> None:
    fresh_run(tmp_path / "start", WordPieceTokenizer([*SPECIAL, *WORDS], lower_case=True))
    paths = {"start": tmp_path / "start", "domain": "d", "general": "g", "into": tmp_path / "runs"}
    words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    asked = command_line().parse_args([*words, "--budget", "2e9", "--seq-length", "32"])
    study, phases = Study(asked), dict[str, Any]()
    for arm in ARMS:
        config = study.config(arm, arm, seed=1, rate=1e-3, ema=0.98)
        assert total_flops(config) == pytest.approx(asked.budget, rel=0.1)
        assert config.train is not None
        phases[arm] = config.train.phases
        flops = [
            phase.total_rows * each
            for phase, each in zip(phases[arm], all_flops_per_row(config), strict=True)
        ]
        assert config.optimizer.decay_fraction is not None
        decay = config.optimizer.decay_fraction * config.train.total_steps
        # The rate decays over the last half of the FLOPs, which is never causal.
        assert decay * flops[-1] / phases[arm][-1].steps == pytest.approx(sum(flops) / 2, rel=0.1)
    assert [len(each) for each in phases.values()] == [1, 1, 2, 2]
    mixed = {"d": 0.8, "g": 0.2}
    assert [each[-1].dataset for each in phases.values()] == ["d", mixed, "d", mixed]


def test_the_page_shows_the_committed_results() -> None:
    records = read_records(ROOT / "benchmarks" / "adapt.jsonl")
    assert inserted(ROOT / "docs" / "results" / "adapt.md", MARK) == list(table(records))
