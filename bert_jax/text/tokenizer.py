"""What every tokenizer can do: the protocol that the rest of the project codes against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from etils import epath

from bert_jax.errors import UserError

CONFIG_FILE = "tokenizer_config.json"


class SpecialIds(NamedTuple):
    """The ids of BERT's five special pieces."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into ids and back.

    ``tokenizer.encode("unaffable")`` -> ``[14477, 20961, 3468]`` (the uncased 2018 vocabulary:
    ``un ##aff ##able``). No method adds special pieces, and special pieces written in the text
    are ordinary text: ``"[SEP]"`` is three words.
    """

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        ...

    @property
    def special(self) -> SpecialIds:
        """Where BERT's special pieces are."""
        ...

    @property
    def is_continuation(self) -> np.ndarray:
        """Marks the pieces that continue a word: bool ``[vocab_size]``."""
        ...

    @property
    def hash(self) -> str:
        """SHA-256 over vocabulary and settings: equal where the tokenizers behave alike."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``, without special pieces."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text; special pieces show, except padding."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the pieces as the vocabulary spells them."""
        ...

    def save(self, directory: epath.PathLike) -> None:
        """Writes a directory that ``load_tokenizer`` opens."""
        ...


def spell(vocabulary: Sequence[str], ids: Sequence[int]) -> list[str]:
    """Returns the piece of each id.

    Args:
        vocabulary: the pieces, in the order of their ids.
        ids: the ids to look up.

    Returns:
        One piece for each id.

    Raises:
        UserError: an id is not in the vocabulary. Negative ones are refused too: Python would count
            from the end and spell a wrong piece.
    """
    size = len(vocabulary)
    for token_id in ids:
        if not 0 <= token_id < size:
            raise UserError(
                f"token id: found {token_id}, allowed: 0 to {size - 1} (vocabulary size)"
            )
    return [vocabulary[token_id] for token_id in ids]
