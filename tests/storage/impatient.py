"""``python -m tests.storage.impatient GIVE_UP STOPPING VERB …`` runs a verb with short limits.

GIVE_UP: seconds without an answer after which a request fails. STOPPING: the same limit after a
signal to stop.
"""

import sys

from bert_jax.cli import main
from bert_jax.files import storage_retries

if __name__ == "__main__":
    storage_retries.GIVE_UP_SECONDS = float(sys.argv.pop(1))
    storage_retries.STOPPING_SECONDS = float(sys.argv.pop(1))
    main()
