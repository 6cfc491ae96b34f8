"""``python -m bert_jax.parallel.probe tpu`` tests whether a run finds a platform on this machine.

It runs in its own process, so that the caller opens no device.
"""

import json
import os
import subprocess
import sys
from typing import Final

from bert_jax.errors import UserError, error_from_json, error_to_json
from bert_jax.parallel.section import MeshSection, Platform, no_device

_REFUSED: Final = 2
_ENVIRONMENT: Final = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def missing_platform(platform: Platform) -> UserError | None:
    """Returns the error with which a run would fail here, or None if the platform exists."""
    if platform in ("auto", "cpu"):
        return None
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.parallel.probe", platform],
        env=os.environ | _ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = done.stdout.splitlines() or done.stderr.splitlines() or ["no message"]
    if done.returncode == _REFUSED:
        error = error_from_json(json.loads(lines[-1]))
        assert isinstance(error, UserError)
        return error
    return no_device(platform, lines[-1])


def main(platform: Platform) -> int:
    """Opens the devices and returns the exit code. Prints an error as JSON."""
    from bert_jax.parallel.mesh import initialise

    try:
        initialise(MeshSection(platform=platform, compilation_cache=None))
    except UserError as error:
        print(json.dumps(error_to_json(error)))  # noqa: T201 (the caller reads it)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))  # pyright: ignore[reportArgumentType]
