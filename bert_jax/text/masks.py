"""[MASK] in the texts of users."""

from typing import Final

from bert_jax.errors import UserError

MASK: Final = "[MASK]"


def split_at_masks(text: str) -> list[str]:
    """Returns the parts of a text around its masks: ``"a [MASK] ." -> ["a ", " ."]``.

    Raises:
        UserError: there is no mask.
    """
    parts = text.split(MASK)
    if len(parts) == 1:
        raise UserError(f'fill-mask: "{text}" has no {MASK} in it, allowed: one or more')
    return parts
