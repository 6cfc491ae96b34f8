"""Errors of libraries that mean that the memory is full, and those that do not."""

import errno

import jax
import numpy as np
import pytest

from bert_jax.parallel.memory import Memory, advising, device_memory, host_memory, out_of_memory
from tests.project import refuses


def exhausted(text: str) -> jax.errors.JaxRuntimeError:
    return jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {text}")


# Messages of runtimes and compilers: CPU, GPU, TPU.
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Out of memory allocating 9267353732 bytes.", "8.6 GiB"),
        ("Out of memory while trying to allocate 8.50GiB.", "8.5 GiB"),
        (
            "Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 0",
            "3.0 GiB",
        ),
        (
            "Error allocating device buffer: Attempting to allocate 15.65G. That was not possible. "
            "There are 11.08G free.; (0x0x0_HBM0)",
            "15.7 GiB",
        ),
        (
            "Attempting to reserve 10.51G at the bottom of memory. That was not possible. There "
            "are 8.97G free, 0B reserved, and 8.97G reservable.",
            "10.5 GiB",
        ),
        (
            "Ran out of memory in memory space hbm. Used 18.09G of "
            "15.48G hbm. Exceeded hbm capacity by 2.61G.",
            "18.1 GiB of 15.5 GiB",
        ),
    ],
)
def test_messages_of_full_devices_are_read(text, found):
    error = out_of_memory(exhausted(text))
    assert error is not None
    assert error.key == "memory.full"
    assert found in str(error)


@pytest.mark.parametrize(
    "error",
    [
        exhausted("Quota exceeded for quota metric 'Requests'"),
        exhausted(
            "Ran out of memory in memory space vmem while allocating on stack. Scoped allocation "
            "with size 18.00M and limit 16.00M exceeded scoped vmem limit by 2.00M."
        ),
        jax.errors.JaxRuntimeError("INTERNAL: allocating 12 bytes failed"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("cannot allocate 3 bytes"),
    ],
)
def test_other_errors_are_not_of_memory(error):
    assert out_of_memory(error) is None


def test_real_errors_of_numpy_and_jax_get_advice():
    for allocate in (
        lambda: np.zeros(1 << 50, np.int8),
        lambda: jax.numpy.zeros(1 << 50, jax.numpy.int8).block_until_ready(),
    ):
        with refuses("memory.full", place="this host", advice="Use less."), advising("Use less."):
            allocate()


def test_the_smallest_limit_counts():
    host, device = host_memory(), device_memory()
    assert 0 < host.free <= host.total
    assert isinstance(device, Memory)
    assert device.owner == host.owner
