"""Loads the dump of a bad step with the lines of docs/reliability.md."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.project import ROOT


class Loaded(NamedTuple):
    """A dump."""

    record: dict[str, Any]  # content of dump.json
    tensors: dict[str, np.ndarray]

    @property
    def bad_tensors(self) -> list[str]:
        """Names of tensors that are not finite."""
        return [name for name, tensor in self.tensors.items() if not np.isfinite(tensor).all()]

    @property
    def bad_gradients(self) -> list[str]:
        """Names of parameters whose gradient is not finite."""
        norms = self.record["gradient_norms"].items()
        return [name for name, of in norms if not np.isfinite([float(norm) for norm in of]).all()]


def loaded_as_documented(folder: Path) -> Loaded:
    """Runs the block of the page for a dump. It prints bad tensors and gradients."""
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert "runs/base/bad_step_1200" in block
    found: dict[str, Any] = {}
    block = block.replace("runs/base/bad_step_1200", str(folder))
    exec(compile(block, "reliability.md", "exec"), found)
    return Loaded(found["record"], found["tensors"])
