"""The parameters that a run takes over from another run (`--init-from`)."""

from typing import Final, NamedTuple

import jax
from jax.sharding import Mesh
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.runs.checkpoints import open_checkpoints
from bert_jax.runs.directory import open_run
from bert_jax.task import Params
from bert_jax.train.state import DrawParams, abstract_params, define_model

# The parts of a pretraining model that an import may lack.
HEADS: Final = {
    "pooler": "the pooler",
    "mlm": "the MLM head",
    "next_sentence": "the next-sentence head",
}


class ParameterOrigin(NamedTuple):
    """Another run, and where to say what of it is used."""

    run_dir: str
    mesh: Mesh
    console: Console

    def take_over(self, abstract: Params, draw: DrawParams) -> Params:
        """Returns the origin's parameters on the mesh, and fresh ones of parts that it lacks.

        An import may lack heads, which then start fresh; a head of the origin's that pretraining
        has no use for is left out. Both are said in a line.

        Raises:
            UserError: no checkpoint, or one of another architecture.
        """
        origin = open_run(self.run_dir)
        wanted = abstract_params(define_model(origin.build), self.mesh)
        shared = [part for part in abstract if part in wanted]
        wanted |= {part: abstract[part] for part in shared}
        with open_checkpoints(origin.directory) as checkpoints:
            step = checkpoints.latest_params()
            if step is None:
                raise UserError(f"--init-from: {self.run_dir} has no checkpoint")
            found = checkpoints.restore_params(wanted, step=step)
        lacking = [part for part in HEADS if part in abstract and part not in shared]
        self._say([HEADS[part] for part in lacking], "start fresh")
        self._say([f"the {part} head" for part in found if part not in abstract], "left out")
        fresh = draw({part: abstract[part] for part in lacking})
        return fresh | {part: found[part] for part in shared}

    def _say(self, heads: list[str], what: str) -> None:
        if heads and jax.process_index() == 0:
            self.console.print(
                f"--init-from {self.run_dir}: {what}: {', '.join(heads)}",
                markup=False,
                soft_wrap=True,
            )
