"""What tests of the planner share."""

import sys
from collections.abc import Iterator

import pytest

from tests.forked.forks import forked_python


@pytest.fixture(scope="module")
def compilers_forked() -> Iterator[None]:
    """The processes that `plan` compiles in need no imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forked_python())
        yield
