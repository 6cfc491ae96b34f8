"""The longest time that a command says nothing.

    python -m benchmarks.silence bert-jax demo --dir /tmp/demo

Prints one JSON line: seconds to the first line, the longest silence and between which lines it was,
seconds in all; the command's exit code becomes this one's. The command's output is a pipe, where a
live line cannot help: what is measured are lines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time


def main() -> int:
    """Runs the command of the command line."""
    started = heard = time.monotonic()
    longest, between, before = 0.0, ("", ""), "(start)"
    first: float | None = None
    process = subprocess.Popen(
        sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    for line in process.stdout:
        now = time.monotonic()
        first = now - started if first is None else first
        if now - heard > longest:
            longest, between = now - heard, (before, line.strip())
        heard, before = now, line.strip()
        print(f"{now - started:7.1f} {line}", end="", file=sys.stderr)
    code = process.wait()
    ended = time.monotonic()
    if ended - heard > longest:
        longest, between = ended - heard, (before, "(end)")
    figures = {
        "first_line_s": None if first is None else round(first, 2),
        "longest_silence_s": round(longest, 2),
        "between": between,
        "seconds": round(ended - started, 1),
    }
    print(json.dumps({"command": sys.argv[1:], **figures}))
    return code


if __name__ == "__main__":
    sys.exit(main())
