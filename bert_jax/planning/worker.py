"""``python -m bert_jax.planning.worker``: compiles one step; request in, result out, as JSON.

A process of its own: libtpu reads its settings once, and a compiler that runs out of memory takes
nothing else with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.planning.request import CompileRequest


def main(output: str) -> None:
    """Reads a request from standard input and writes ``{"step": …}`` or ``{"refused": …}``."""
    request = CompileRequest.model_validate_json(sys.stdin.buffer.read())
    from bert_jax.planning.compiled_step import STEP, compile_step

    try:
        result = {"step": STEP.dump_python(compile_step(request), mode="json")}
    except UserError as error:
        result = {"refused": str(error)}
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
