"""``python -m benchmarks.objectives`` on a small text, with very small models."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.equal_flops import total_flops
from benchmarks.finished_runs import RunFolder
from benchmarks.marked_table import begins, inserted
from benchmarks.objectives.__main__ import main
from benchmarks.objectives.configs import Configs
from benchmarks.objectives.page import MARK, table
from benchmarks.objectives.settings import NAMES, StudySection, load_study
from benchmarks.objectives.study import RECORDS, read_study
from tests.corpus import write_corpus
from tests.tasks.sequences import write_lines

BUDGET = 4e8
# The objectives that are trained here, with their teachers. Others are only configured,
# because compiling is slow; tests/objectives/ trains every objective.
RUN = ("distilled",)
SETTINGS = {
    "objectives": list(RUN),
    "seeds": [5],
    "budgets": [BUDGET],
    "layers": 2,
    "student_layers": 1,
    "hidden_size": 16,
    "heads": 2,
    "embedding_size": 8,
    "vocab_size": 200,
    "layout": "sentences",
    "validation_fraction": 0.1,
    "dupe_factor": 2,
    "seq_length": 32,
    "batch_size": 8,
    "tasks": {
        "sst2": {
            "config": "finetune/sst2",
            "overrides": ["finetune.epochs=1", "finetune.max_length=32"],
            "data": "SST-2",
            "metric": "accuracy",
        }
    },
}


def write_sst2(directory: Path) -> None:
    """Writes sentences whose label is the word that they contain."""
    rng = np.random.default_rng(0)
    rows = [
        f"the {'dog' if label else 'mill'} saw the {rng.choice(['river', 'stone'])} {label}"
        for label in rng.integers(0, 2, 96)
    ]
    lines = ["sentence\tlabel", *("\t".join(row.rsplit(" ", 1)) for row in rows)]
    directory.mkdir(parents=True)
    write_lines(directory / "train.tsv", lines[:65])
    write_lines(directory / "dev.tsv", [lines[0], *lines[65:]])


@pytest.mark.chaos
def test_objectives_are_compared_at_equal_flops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "text.txt", documents=range(60))
    write_sst2(tmp_path / "glue" / "SST-2")
    settings, page = tmp_path / "settings.yaml", tmp_path / "page.md"
    settings.write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
    page.write_text(f"# Results\n\n{begins(MARK)}<!-- end -->\n", encoding="utf-8")
    into = tmp_path / "runs"
    command = ["--corpus", str(tmp_path / "text.txt"), "--glue", str(tmp_path / "glue")]
    command += ["--into", str(into), "--settings", str(settings), "--page", str(page)]
    main(command)
    records = read_study(into)
    assert [record.objective for record in records] == [*RUN]
    assert (into / "results" / f"mlm-{BUDGET:g}-seed5.json").exists()  # the teacher
    for record in records:
        assert 0.8 * BUDGET < record.flops <= BUDGET
        assert record.validation[-1]["step"] == record.steps
        assert 0 < record.scores["sst2"]["accuracy"] <= 1
        assert min(record.seconds, record.finetune_seconds) > 0
    study = load_study(settings)
    shown = list(table(study, records))
    assert inserted(page, MARK) == shown
    assert len(shown) == 2 + 2 + len(RUN)
    check_other_configurations(study, into, steps={each.objective: each.steps for each in records})

    before = (into / RECORDS).read_bytes()
    capsys.readouterr()
    main(command)  # nothing is run again
    # A missing result is made again from its finished runs.
    (into / "results" / f"distilled-{BUDGET:g}-seed5.json").unlink()
    main(command)
    assert (into / RECORDS).read_bytes() == before
    assert not {"run", "fine-tune"} & {
        line.split(" ")[0] for line in capsys.readouterr().out.splitlines()
    }


def check_other_configurations(study: StudySection, into: Path, *, steps: dict[str, int]) -> None:
    """Checks the runs of all objectives by their configurations."""
    configs = Configs(study, RunFolder(into), ["text.txt"])
    made = {name: configs.pretraining(name, name, seed=5, flops=BUDGET) for name in NAMES}
    flops = {name: total_flops(config) for name, config in made.items()}
    assert all(0.8 * BUDGET < each <= BUDGET for each in flops.values())
    lengths = {name: made[name].train.total_steps for name in NAMES}  # pyright: ignore
    assert {name: lengths[name] for name in RUN} == {name: steps[name] for name in RUN}
    # The generator, the decoder at every token and the teacher cost FLOPs.
    assert all(lengths["mlm"] > lengths[name] for name in ("electra", "causal+mlm", "distilled"))
    rates = {name: made[name].optimizer.learning_rate for name in NAMES}  # pyright: ignore
    assert rates["electra"] < rates["mlm"] == rates["distilled"]
    kinds = {name: configs.examples(name).examples.kind for name in NAMES}  # pyright: ignore
    assert (kinds["mlm+nsp"], kinds["albert"], kinds["mlm"]) == ("nsp", "sop", "full_sentences")


def test_a_wrong_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("budget: [1]\n", encoding="utf-8")
    command = ["--corpus", "x", "--glue", "y", "--into", str(tmp_path)]
    with pytest.raises(SystemExit) as caught:
        main([*command, "--settings", str(settings)])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert str(settings) in error
    assert "budgets" in error
