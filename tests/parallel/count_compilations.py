"""``python -m tests.parallel.count_compilations VERB …``: the command line, with JAX's own counts.

Prints a last line of JSON: programs asked of the persistent cache, and found there.
"""

from __future__ import annotations

import collections
import json
import sys

import jax

from bert_jax.cli import cli


def main(arguments: list[str]) -> None:
    """Runs a verb and prints the counts."""
    counts: collections.Counter[str] = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: counts.update([event]))
    try:
        cli(arguments, standalone_mode=False)
    finally:
        print()
        found = {
            "asked": counts["/jax/compilation_cache/compile_requests_use_cache"],
            "hits": counts["/jax/compilation_cache/cache_hits"],
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
