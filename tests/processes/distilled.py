"""``python -m tests.processes.distilled RUN STEPS VERB …`` runs a verb with a frozen teacher.

STEPS has the teacher's checkpoint in RUN for each process: ``8,8``.
"""

import re
import sys
from pathlib import Path

from bert_jax.cli import main
from bert_jax.objectives import masked_lm as masked_language_model
from tests.objectives.distilled import Distilled

if __name__ == "__main__":
    run, steps = sys.argv.pop(1), sys.argv.pop(1).split(",")
    index = re.search(r"process_index=(\d)", " ".join(sys.argv))
    Distilled.teacher = (Path(run), int(steps[int(index[1]) if index else 0]))
    masked_language_model.MaskedLanguageModel = Distilled
    main()
