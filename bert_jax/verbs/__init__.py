"""The verbs of the command line: one module per verb, with a function of the verb's name."""

import contextlib
import sys
from collections.abc import Iterator

from bert_jax.errors import KeyedError, UserError, first_line
from bert_jax.narration import doing


@contextlib.contextmanager
def starting_jax(*, on_cpu: bool = False) -> Iterator[None]:
    """Shows a progress line while the imports of the block load JAX, which takes seconds.

    With `on_cpu`, JAX opens no accelerator. Verbs that only convert files use it, because libtpu
    prints errors on a machine without a TPU.
    """
    with contextlib.nullcontext() if "jax" in sys.modules else doing("starting JAX", at_once=True):
        try:
            yield
        except ValueError as error:
            if isinstance(error, KeyedError) or " environment '" not in str(error):
                raise
            # JAX reads its environment variables at the import: "invalid truth value 'x' for …"
            raise UserError(
                "environment.value", f"JAX does not start: {first_line(error)}"
            ) from error
        if on_cpu:
            import jax

            jax.config.update("jax_platforms", "cpu")
