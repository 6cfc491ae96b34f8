"""Whether evaluation fits where training does, by what is known of the train step alone.

A batch of evaluation has by default the rows of a microbatch. Forward a step keeps no more of them
than training does forward and backward. So beside the trained state and the parameters' copy that
evaluations have, the train step's temporaries are the most that an evaluation needs.
"""

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.request import CompileRequest


def surely_fits(request: CompileRequest, train: CompiledStep) -> bool:
    """Returns whether the evaluation of a train step's phase fits, for all that is known of that.

    `request` is the train step's, which fits.
    """
    phase = request.train.phases[request.phase]
    if train.memory is None or request.train.evaluation_rows(phase) > phase.microbatch:
        return False
    available = parse_topology(request.topology).accelerator.device_hbm_bytes
    return train.memory.peak + train.copy_bytes <= available
