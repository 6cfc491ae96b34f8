"""Which attention a run will compute; apart, since the kernels take a while to load."""

import jax

from bert_jax.diagnostics.findings import Finding, ok, problem
from bert_jax.errors import UserError
from bert_jax.model.config import AttentionName
from bert_jax.model.execution import choose_attention


def check_attention(asked: AttentionName, *, longest: int) -> Finding:
    """Says which attention the train step computes here for rows of so many tokens, and why."""
    try:
        found = choose_attention(asked, jax.devices()[0], longest=longest)
    except UserError as error:
        return problem("attention", str(error))
    return ok("attention", f"{found.name}: {found.why}")
