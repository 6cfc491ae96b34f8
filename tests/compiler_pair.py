"""The pair of jax and libtpu that may check compilation for TPUs: the pair that hosts install."""

import importlib.metadata
import importlib.util
import sys

import pytest
from packaging.requirements import Requirement

from bert_jax.files.host_lock import host_lock

compiles_for_tpus = pytest.mark.usefixtures("compiler_pair")


@pytest.fixture(scope="session")
def compiler_pair() -> None:
    """Skips tests without libtpu. With another pair than the hosts', the tests fail."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu needs Linux x86-64")
    check_pair()


def check_pair() -> None:
    """Asserts that jax and libtpu are the hosts', or a pair for Pythons older than the hosts'.

    The newest jax needs the hosts' Python. On older Pythons, libtpu must be the version that
    ``jax[tpu]`` requires.
    """
    own = {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    of_jax = map(Requirement, importlib.metadata.requires("jax") or ())
    (required,) = [each.specifier for each in of_jax if each.name == "libtpu"]
    assert own["libtpu"] in required, f"jax {own['jax']} requires libtpu{required}, found {own}"
    lock = host_lock("tpu")
    if sys.version_info[:2] >= tuple(map(int, lock.python.split("."))):
        hosts = {name: lock.versions[name] for name in own}
        assert own == hosts, f"hosts install {hosts}, found {own}"
