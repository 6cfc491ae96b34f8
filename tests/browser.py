"""Renders a page in Chromium."""

import shutil
import subprocess
from pathlib import Path


def render(url: str, *, profile: Path) -> str:
    """Returns the page's HTML after its scripts have run. Asserts that they log nothing."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "Chromium is not installed"
    found = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            f"--user-data-dir={profile}", "--enable-logging=stderr",
            "--virtual-time-budget=60000", "--dump-dom", url,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )  # fmt: skip
    assert [line for line in found.stderr.splitlines() if "CONSOLE" in line] == []
    return found.stdout
