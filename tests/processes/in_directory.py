"""``python -m tests.processes.in_directory DIRECTORY VERB …`` runs a verb in a directory.

Two hosts may have different files at the same relative path, and different packages.
"""

import os
import sys

from bert_jax.cli import main

if __name__ == "__main__":
    os.chdir(sys.argv.pop(1))
    sys.path.append(os.getcwd())
    os.environ["XDG_CACHE_HOME"] = os.path.abspath("cache")
    main()
