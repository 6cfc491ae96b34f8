"""Vocabularies: pieces in the order of their ids, with BERT's special pieces."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from etils import epath

from bert_jax.errors import UserError, commas, one_of
from bert_jax.files.read import read_text, shown


class SpecialPieces(NamedTuple):
    """The texts of the five special pieces, by role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES = SpecialPieces(
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
)
_SLOTS_BEFORE_UNK = 99  # number of unused pieces before [UNK]; ids 1 to 99 in 2018 vocabularies


class SpecialIds(NamedTuple):
    """The ids of the five special pieces, by role."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


def reserved_pieces(unused_slots: int) -> list[str]:
    """Returns the pieces before the learned ones, in the order of the 2018 vocabularies.

    ``reserved_pieces(2)`` -> ``[PAD] [unused0] [unused1] [UNK] [CLS] [SEP] [MASK]``. With 99 or
    more unused slots, [UNK] has id 100, [CLS] 101, [SEP] 102 and [MASK] 103; slots after the 99th
    follow [MASK].
    """
    slots = [f"[unused{number}]" for number in range(unused_slots)]
    before, after = slots[:_SLOTS_BEFORE_UNK], slots[_SLOTS_BEFORE_UNK:]
    return [PAD, *before, UNK, CLS, SEP, MASK, *after]


def find_special(
    vocabulary: Sequence[str], source: str, *, pieces: Sequence[str] = SPECIAL_PIECES
) -> SpecialIds:
    """Returns the ids of the special pieces. Raises UserError at ``source`` if one is missing."""
    ids = {piece: token_id for token_id, piece in enumerate(vocabulary)}
    missing = [piece for piece in pieces if piece not in ids]
    if missing:
        raise UserError(
            "vocabulary.special_missing",
            f"found no {commas(missing)}, allowed: a vocabulary with all of {commas(pieces)}",
            place=source,
        )
    return SpecialIds(*(ids[piece] for piece in pieces))


def in_order_of_ids(ids: Mapping[str, int], *, place: object) -> list[str]:
    """Returns pieces in the order of their ids. Raises UserError if the ids have a gap."""
    if not ids or sorted(ids.values()) != list(range(len(ids))):
        raise UserError(
            "tokenizer.ids", "the ids of the pieces are not 0, 1, 2, …", place=str(place)
        )
    return sorted(ids, key=ids.__getitem__)


def read_vocabulary(path: epath.Path) -> list[str]:
    """Reads a ``vocab.txt`` of the 2018 release: a piece per line, from id 0.

    A piece of non-ASCII white space is kept, such as U+2028 in the Chinese vocabulary; no text is
    encoded as its id. Raises UserError if the file is missing, empty or not UTF-8, has a blank line
    before others, a repeated piece, or a space beside a piece: google-research/bert drops it, and
    Hugging Face does not.
    """
    lines = read_text(path).rstrip("\r\n").split("\n")
    if lines == [""]:
        raise UserError.wrong(
            "vocabulary.empty", "an empty file", "a vocabulary, one piece per line", place=path
        )
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        piece = line.strip() or line
        if line.strip(" \t") != line and piece.strip():
            raise UserError(
                "vocabulary.white_space",
                f"found {shown(line)}, allowed: a piece without spaces beside it",
                place=f"{path}: line {number}",
            )
        if not piece or (piece.isspace() and piece.isascii()):
            raise UserError(
                "vocabulary.blank_line",
                "found a blank line, allowed: one piece per line",
                place=f"{path}: line {number}",
            )
        if piece in line_of:
            raise UserError(
                "vocabulary.piece_twice",
                f'found "{piece}" in lines {line_of[piece]} and {number}, allowed: once',
                place=path,
            )
        line_of[piece] = number
    return list(line_of)


def split_at_masks(text: str, *masks: str) -> list[str]:
    """Returns the parts of a text around its masks: ``"a [MASK] .", "[MASK]" -> ["a ", " ."]``.

    `masks` are the accepted spellings. Raises UserError if the text has no mask.
    """
    first, *others = masks
    for other in others:
        text = text.replace(other, first)
    parts = text.split(first)
    if len(parts) == 1:
        raise UserError.wrong(
            "fill_mask.no_mask", f'no {one_of(masks)} in "{text}"', "one or more", place="fill-mask"
        )
    return parts
