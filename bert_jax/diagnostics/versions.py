"""The versions of Python and of the libraries that a run needs."""

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bert_jax.diagnostics.findings import Finding, ok, problem

_VERSIONS: Final = (
    *("bert-jax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain"),
    *("tensorflow-datasets", "tokenizers", "sentencepiece", "numpy"),
)
_OPTIONAL: Final = frozenset({"libtpu", "tensorflow-datasets"})


def check_versions() -> Iterator[Finding]:
    """Compares what is installed with what this package asks for."""
    yield ok("python", f"{platform.python_version()} on {platform.platform()}")
    requirements = _requirements()
    for name in _VERSIONS:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in _OPTIONAL:
                yield problem(
                    name, "not installed; allowed: pip install . in the checkout of bert_jax"
                )
            continue
        allowed = requirements.get(name)
        if allowed is None or allowed.contains(found, prereleases=True):
            yield ok(name, found)
        else:
            yield problem(name, f"found {found}, allowed: {allowed}")


def _requirements() -> dict[str, SpecifierSet]:
    """Returns the versions that this package asks for: ``{"jax": SpecifierSet(">=0.10.0"), …}``."""
    try:
        texts = metadata.requires("bert-jax") or []
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return {}
    return {each.name: each.specifier for each in map(Requirement, texts)}


def is_installed(name: str) -> bool:
    """Says whether a distribution of that name is installed."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
