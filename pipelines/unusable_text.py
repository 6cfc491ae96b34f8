"""A mistake that makes finished work worthless."""

from bert_jax.errors import UserError


class UnusableText(UserError):
    """The text cannot become a dataset, whatever other settings say.

    No run can resume what was made of it: the corrected one has other text.
    """
