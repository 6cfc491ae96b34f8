"""Which exit code an error has, as the console script ends with it."""

import importlib
import sys

import pytest

from bert_jax.cli import main
from bert_jax.errors import PeerLost, RunStopped, UserError

MESSAGE = "Gloo connectFullMesh failed"


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError, 70), (RunStopped, 1), (UserError, 2), (PeerLost, 4)],
)
def test_only_an_uncaught_exception_ends_with_70(
    error: type[Exception],
    code: int,
    debug: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **values: object) -> None:
        raise error(MESSAGE)

    monkeypatch.setattr(importlib.import_module("bert_jax.verbs.status"), "status", fail)
    monkeypatch.setattr(sys, "argv", ["bert-jax", "status", "run", *debug])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    said = capsys.readouterr().err
    assert MESSAGE in said
    assert ("Traceback" in said) == (bool(debug) or code == 70)
