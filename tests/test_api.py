"""The package's names stay what they are, whatever else is imported."""

import inspect
import subprocess
import sys
from typing import Any

import pydantic

import bert_jax
from bert_jax.config import RunConfig
from bert_jax.validation import sections_of

_IMPORT_EVERYTHING = """
import importlib, inspect, pkgutil
import bert_jax

for module in pkgutil.walk_packages(bert_jax.__path__, "bert_jax."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
verbs = [name for name in bert_jax.__all__ if name != "__version__"]
assert len(verbs) >= 60, verbs
print(*(name for name in verbs if inspect.ismodule(getattr(bert_jax, name))))
"""


def test_no_module_hides_a_name() -> None:
    # Importing a submodule sets an attribute of its package: one named like a verb replaces it.
    found = subprocess.run(
        [sys.executable, "-c", _IMPORT_EVERYTHING], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [], "a module or package has the name of something exported"


def test_every_exported_name_is_there_with_a_docstring() -> None:
    for name in bert_jax.__all__:
        found = getattr(bert_jax, name)
        assert name in dir(bert_jax)
        if name != "__version__" and not isinstance(found, type) and not callable(found):
            raise AssertionError(f"{name} is neither a class nor a function")
        assert name == "__version__" or inspect.getdoc(found), name


def test_every_section_of_a_configuration_is_exported() -> None:
    found: set[type[pydantic.BaseModel]] = set()

    def walk(section: type[pydantic.BaseModel]) -> None:
        if section not in found:
            found.add(section)
            for field in section.model_fields.values():
                below: Any
                for below in sections_of(field.annotation):
                    walk(below)

    walk(RunConfig)
    missing = {section.__name__ for section in found} - set(bert_jax.__all__)
    assert not missing, "bert_jax/__init__.py does not export them"
