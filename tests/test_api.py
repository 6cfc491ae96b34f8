"""The package's functions stay what they are, whatever else is imported."""

from __future__ import annotations

import subprocess
import sys

_IMPORT_EVERYTHING = """
import importlib, inspect, pkgutil
import bert_jax

for module in pkgutil.walk_packages(bert_jax.__path__, "bert_jax."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
verbs = [name for name in bert_jax.__all__ if name != "__version__"]
assert len(verbs) >= 12, verbs
print(*(name for name in verbs if not inspect.isfunction(getattr(bert_jax, name))))
"""


def test_no_module_hides_a_verb() -> None:
    # Importing a submodule sets an attribute of its package: one named like a verb replaces it.
    found = subprocess.run(
        [sys.executable, "-c", _IMPORT_EVERYTHING], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [], "a module or package has the name of a verb"
