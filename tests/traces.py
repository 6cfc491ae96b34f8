"""Records the names of the functions that JAX traces."""

import contextlib
from collections.abc import Iterator

import jax

_TRACE = "/jax/core/compile/jaxpr_trace_duration"


@contextlib.contextmanager
def traces() -> Iterator[list[str]]:
    """Yields the names of functions traced in the block, in order of completion."""
    found: list[str] = []

    def heard(event: str, seconds: float, *, fun_name: str = "", **_: object) -> None:
        if event == _TRACE:
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
