"""``python -m bert_jax.planning.worker FOLDER``: compiles one step; request and result are JSON.

A process of its own: libtpu reads its settings once, and a compiler that runs out of memory takes
nothing else with it.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.planning.request import CannotPlan, CompileRequest

REQUEST: Final = "request.json"
RESULT: Final = "result.json"
LOG: Final = "log"
_LONGEST: Final = 500  # characters of a reason: the compiler names operands and results


def main(folder: str) -> None:
    """Reads a request from a folder and writes ``{"step": …}`` into it.

    ``{"refused": …}`` is a user's mistake, ``{"unable": …}`` a topology unknown to this libtpu,
    ``{"failed": …, "traceback": …}`` another error, such as the compiler's.
    """
    request = CompileRequest.model_validate_json(Path(folder, REQUEST).read_bytes())
    from bert_jax.planning.compilation.step import STEP, compile_step

    result: dict[str, Any] = {}
    try:
        result["step"] = STEP.dump_python(compile_step(request), mode="json")
    except CannotPlan as error:
        result = {"unable": str(error)}
    except UserError as error:
        result = {"refused": str(error)}
    except Exception as error:
        result = {"failed": _reason(error), "traceback": traceback.format_exc()}
    Path(folder, RESULT).write_text(json.dumps(result), encoding="utf-8")
    # After a quick step the compiler continues to generate code, and an exit waits for it.
    os._exit(0)


def _reason(error: Exception) -> str:
    """Returns the first line of an error, and the second if the first ends in a colon.

    The compiler's errors end in an address or a dump, and may begin with a mere name:
    ``"RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory in …"``.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(lines[: 2 if lines[0].rstrip().endswith(":") else 1])
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


if __name__ == "__main__":
    main(*sys.argv[1:])
