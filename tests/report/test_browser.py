import re
from pathlib import Path

import pytest

from bert_jax.report.finetuning import page as finetuning_page
from bert_jax.report.pretraining import page as pretraining_page
from tests.browser import render
from tests.report import test_examples as dataset
from tests.report.records import example, inputs, numbers, pretraining_run

REGRESSION = inputs(
    problem="regression",
    labels=("score",),
    records={"dev": numbers(40)},
    attention=[example(), example()],
)
PAGES = {
    "finetuning": lambda: finetuning_page.render(REGRESSION),
    "pretraining": lambda: pretraining_page.render([pretraining_run()], footer=""),
    "comparison": lambda: pretraining_page.render(
        [pretraining_run("a"), pretraining_run("b")], footer=""
    ),
    "dataset": dataset.page,
}


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "charts"), [("finetuning", 6), ("pretraining", 6), ("comparison", 9), ("dataset", 1)]
)
def test_every_chart_renders_under_the_policy(name: str, charts: int, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGES[name]())
    found = render(f"file://{tmp_path}/page.html", profile=tmp_path)
    assert 'data-charts="ready"' in found
    assert len(re.findall(r'<svg [^>]*class="marks"', found)) == charts
