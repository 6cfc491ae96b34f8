"""The exit codes of the command line, by kind of error."""

from typing import Final

from bert_jax.errors import LoaderWorkerKilled, OutOfMemory, PeerLost, RunStopped, UserError
from bert_jax.parallel.channel import PEER_LOST

# Other exceptions exit with `UNCAUGHT`, the watchdog with 43 (`bert_jax.train.watchdog`).
EXIT_CODES: Final = {RunStopped: 1, UserError: 2, PeerLost: PEER_LOST}
# After these errors, exit handlers may wait forever.
AT_ONCE: Final = (LoaderWorkerKilled, OutOfMemory)
# Client libraries of storage and hubs. The user can fix most of their errors: exit code 2.
_CLIENTS: Final = {
    *("aiobotocore", "aiohttp", "azure", "botocore"),
    *("httpx", "httpx2", "huggingface_hub"),
}


def exit_code(error: Exception) -> int | None:
    """Returns the exit code of an expected error, or None for any other error."""
    if type(error).__module__.partition(".")[0] in _CLIENTS:
        return EXIT_CODES[UserError]
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), None)
