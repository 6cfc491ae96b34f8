"""Setup for every test: eight simulated devices, and runtime checks of annotated shapes."""

import ctypes
import gc
import os
import sys
import tempfile
from importlib import metadata

import pytest

# Tracing and importing create millions of live objects. Scanning them for cycles takes a fifth of
# the time. `pytest_collection_finish` enables the collector again, with a larger threshold.
gc.disable()

# Set before JAX is imported, because its backend reads them once. Child processes inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # otherwise libtpu queries the metadata server
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# These options reduce compile time, because programs run for milliseconds only. Partitioning is
# unchanged. Without MLIR's fusion emitters, a step compiles in a quarter of the CPU time. jax 0.12
# always uses them.
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if metadata.version("jaxlib").startswith("0.10."):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(_FLAGS)
# `make` sets this variable too. Without it, a training verb would restart its process.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
# Tests and their child processes share one compilation cache. Workers of pytest-xdist inherit the
# directory of their parent process.
COMPILED = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="bert_jax_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
    # Also one cache of imported models, which earlier code may have written. pip keeps its own.
    os.environ.setdefault("PIP_CACHE_DIR", os.path.expanduser("~/.cache/pip"))
    os.environ["XDG_CACHE_HOME"] = os.path.join(COMPILED.name, "cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
# JAX records one source line per operation instead of ten.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "1"
# With small models, threads of PyTorch and NumPy mostly wait for each other. They would take a
# third of the CPU time of tests that compare with Hugging Face.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Hugging Face's libraries must not contact a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import psutil
from jaxtyping import install_import_hook

# Install the hook before the modules are imported, because it rewrites them while they load.
# Implicit rank promotion stays allowed, because layers add biases to activations of higher rank.
# The annotated shapes catch wrong promotions.
install_import_hook("bert_jax.model", "beartype.beartype")

# Import these after the hook, because they import the models.
from tests.compiler_pair import compiler_pair  # noqa: F401  (a fixture of every compile check)
from tests.executables import forget_executables, keep_executables
from tests.project import project  # noqa: F401  (a fixture for every test)

keep_executables()

LARGE = 1_600_000_000  # bytes of a worker above which it drops compiled programs
LONG = ("chaos", "feature_extraction", "processes")  # folders


def pytest_xdist_auto_num_workers() -> int:
    """Returns the workers for ``-n auto``, at most 8.

    There is one more than cores, because tests of several processes often wait.
    """
    return min(8, (os.cpu_count() or 1) + 1)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs long files first, so that all processes have work until the end.

    One process runs a whole file (``--dist loadfile``), so that the file's tests share fixtures.
    Files with slow tests and folders in `LONG` run first. Other files run in reverse order of path.
    """
    for item in items:
        if item.path.parent.name in ("processes", "chaos"):
            item.add_marker("slow")
    items.sort(key=lambda item: item.path.as_posix(), reverse=True)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow and item.path.parent.name not in LONG)


def pytest_collection_finish() -> None:
    """Enables garbage collection again, but excludes all objects created so far."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Gives unused memory back after each file: glibc keeps freed arrays and programs."""
    if (nextitem is None or nextitem.path != item.path) and sys.platform == "linux":
        if psutil.Process().memory_info().rss > LARGE:
            forget_executables()
            jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def pytest_unconfigure() -> None:
    """Removes the compilation cache."""
    if COMPILED is not None:
        COMPILED.cleanup()
