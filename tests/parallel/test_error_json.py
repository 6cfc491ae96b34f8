"""An error keeps its key, values and text when it is sent to another process as JSON."""

import json
from pathlib import Path

import pytest

from bert_jax.errors import (
    Diverged,
    KeyedError,
    NoCredentials,
    PeerLost,
    RunStopped,
    UserError,
    error_from_json,
    error_to_json,
)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (UserError, UserError),
        (NoCredentials, UserError),
        (RunStopped, RunStopped),
        (Diverged, RunStopped),
        (PeerLost, PeerLost),
    ],
)
def test_an_error_keeps_key_values_and_line(
    kind: type[UserError | RunStopped | PeerLost], raised: type[KeyedError]
) -> None:
    error = kind("area.kind", "1,200 rows, {a}", place=Path("runs/mine"))
    found = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert type(found) is raised
    assert found.line() == error.line()
    assert (found.key, found.place) == ("area.kind", "runs/mine")
