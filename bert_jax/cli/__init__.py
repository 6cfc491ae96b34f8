"""The verbs: ``bert-jax VERB CONFIG.yaml [key=value …]``.

Verbs import their libraries when they run, so that ``--help``, usage errors and the first line of a
run appear at once.
"""

import signal
import sys
from typing import Final

_TRAINING_VERBS: Final = ("pretrain", "finetune")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:2] and sys.argv[1] in _TRAINING_VERBS:
        # Block signals until `listen`.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        from bert_jax.parallel.stop_signal import STOP

        # Install the handler before slow imports. Hold signals until the configuration is read:
        # before that, it is unknown whether the run has other processes to inform.
        STOP.listen(owns_process=True, hold=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    from bert_jax.cli.commands import cli
    from bert_jax.cli.exit_codes import AT_ONCE, exit_code
    from bert_jax.errors import UNCAUGHT

    try:
        cli()
    except Exception as error:
        sys.excepthook(
            type(error), error, error.__traceback__
        )  # in a job, the hook ends all processes
        code = exit_code(error) or UNCAUGHT
        if isinstance(error, AT_ONCE):
            from bert_jax.parallel.channel import end_now

            end_now(code)
        sys.exit(code)
    except SystemExit as end:
        patience = sys.modules.get("bert_jax.files.storage_retries")
        loader = sys.modules.get("bert_jax.data.loader.loader")
        retrying = patience is not None and patience.OUTAGE.given_up()
        reading = loader is not None and loader.STUCK.is_set()
        if (retrying or reading) and isinstance(end.code, int):
            from bert_jax.parallel.channel import end_now

            end_now(end.code)  # exit handlers would wait for threads that retry or read
        raise
