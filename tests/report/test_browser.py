import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bert_jax.report.finetuning import page as finetuning_page
from tests.report import test_examples as dataset
from tests.report.records import example, inputs, numbers

REGRESSION = inputs(
    problem="regression",
    labels=("score",),
    records={"dev": numbers(40)},
    attention=[example(), example()],
)
PAGES = {
    "finetuning": lambda: finetuning_page.render(REGRESSION),
    "dataset": dataset.page,
}


@pytest.mark.browser
@pytest.mark.parametrize(("name", "charts"), [("finetuning", 6), ("dataset", 1)])
def test_every_chart_renders_under_the_policy(name: str, charts: int, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "Chromium is not installed"
    html = PAGES[name]()
    (tmp_path / "page.html").write_text(html)
    found = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            f"--user-data-dir={tmp_path}", "--enable-logging=stderr",
            "--virtual-time-budget=60000", "--dump-dom", f"file://{tmp_path}/page.html",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )  # fmt: skip
    assert [line for line in found.stderr.splitlines() if "CONSOLE" in line] == []
    assert 'data-charts="ready"' in found.stdout
    assert len(re.findall(r'<svg [^>]*class="marks"', found.stdout)) == charts
