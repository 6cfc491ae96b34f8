"""``python -m tests.parallel.count_compilations VERB …`` runs a verb and counts compilations.

The last line is JSON: how often each program was compiled or read from the persistent cache, and
the cache's requests and hits.
"""

import collections
import json
import sys
from typing import Any

import jax

from bert_jax.cli.commands import cli


def main(arguments: list[str]) -> None:
    """Runs a verb and prints the counts."""
    events: collections.Counter[str] = collections.Counter()
    programs: collections.Counter[str] = collections.Counter()

    def heard(event: str, _: float, **facts: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            programs[facts["fun_name"]] += 1

    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        cli(arguments, standalone_mode=False)
    finally:
        found = {
            "asked": events["/jax/compilation_cache/compile_requests_use_cache"],
            "hits": events["/jax/compilation_cache/cache_hits"],
            "programs": programs,
        }
        print(f"\n{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
