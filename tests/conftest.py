"""What every test stands on: eight simulated devices, and shapes checked as they are written."""

import gc
import os
import tempfile

import pytest

# Tracing and importing make millions of objects that live: looking through them again and again for
# cycles costs a fifth of the time. On again, at a larger threshold, once the tests are collected.
gc.disable()

# Before JAX is first imported: its backend reads these once. Child processes inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # libtpu is installed and would ask for a TPU's metadata
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# XLA partitions the real programs; machine code is generated for compile time, since it runs for
# milliseconds. Without MLIR's fusion emitters a train step compiles in a quarter of the CPU time.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
# As `make` sets it; a training verb that finds none would start itself a second time.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
# What one test, or one process that a test starts, has compiled, the next need not. Workers of
# pytest-xdist inherit the directory of the process that started them.
COMPILED = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="bert_jax_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
# A line of the program where JAX would write down ten for every operation.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "1"
# PyTorch's and NumPy's threads spend more on waiting for each other than models of these sizes
# take: a third of the CPU time of tests beside Hugging Face's.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Hugging Face's libraries must not look for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

from jaxtyping import install_import_hook

# Before the modules are first imported: the hook rewrites them as they are loaded. Implicit rank
# promotion stays allowed: biases are added to activations of higher rank throughout, as in every
# Flax layer, and the annotated shapes catch what "raise" is there to catch.
install_import_hook("bert_jax.model", "beartype.beartype")

# After the hook, since they import the models.
from tests.executables import keep_executables
from tests.project import project  # noqa: F401  (a fixture for every test)

keep_executables()

LONG = ("chaos", "feature_extraction", "processes")  # folders


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files that take long first, so that at the end no process waits for another's long file.

    One process runs a file (``--dist loadfile``), so that what many of its tests look at is made
    once. After those with slow tests, or many that take seconds each, come verbs and training, and
    last the light files of data.
    """
    items.sort(key=lambda item: item.path.as_posix(), reverse=True)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow and item.path.parent.name not in LONG)


def pytest_collection_finish() -> None:
    """Collects garbage again, but not among what has been imported."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_unconfigure() -> None:
    """Leaves nothing behind."""
    if COMPILED is not None:
        COMPILED.cleanup()
