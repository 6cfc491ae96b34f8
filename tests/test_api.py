"""The public names of the package do not depend on other imports."""

import inspect
from pathlib import Path
from typing import Any

import pydantic

import bert_jax
from bert_jax.config import RunConfig
from bert_jax.validation import sections_of


def test_no_module_hides_a_name() -> None:
    # Importing a submodule sets an attribute of its package, which would hide a verb of that name.
    inside = {path.stem for path in Path(bert_jax.__path__[0]).iterdir()}
    assert inside & {*bert_jax.__all__} == set()
    assert len(bert_jax.__all__) >= 60


def test_every_exported_name_has_a_docstring() -> None:
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
