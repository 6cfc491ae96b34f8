"""Small SQuAD files, and a tokenizer that can spell every ASCII word."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.tasks.family import DataRequest, Family
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.text.vocabulary import SPECIAL_PIECES
from bert_jax.text.wordpiece import WordPieceTokenizer

WORDS = "the tower of paris was built in who when un ##aff ##able"
LETTERS = string.ascii_lowercase + string.digits + "έςσ"


def letters_tokenizer(*, lower_case: bool = True) -> WordPieceTokenizer:
    """Returns a tokenizer with few words. It splits other ASCII words into letters."""
    letters = LETTERS + ("" if lower_case else string.ascii_uppercase + "é")
    later = [f"##{letter}" for letter in letters]
    signs = [*string.punctuation, *"世界中国北京。"]
    vocabulary = [*SPECIAL_PIECES, *WORDS.split(), *letters, *later, *signs]
    return WordPieceTokenizer(list(dict.fromkeys(vocabulary)), lower_case=lower_case)


def question(
    id: str, text: str, *answers: tuple[str, int], impossible: bool | None = None
) -> dict[str, Any]:
    """Returns a question in the format of SQuAD files."""
    found: dict[str, Any] = {
        "id": id,
        "question": text,
        "answers": [{"text": answer, "answer_start": start} for answer, start in answers],
    }
    return found if impossible is None else found | {"is_impossible": impossible}


def squad(
    *paragraphs: tuple[str, Sequence[dict[str, Any]]], version: str = "1.1"
) -> dict[str, Any]:
    """Returns the content of a file with one article."""
    found = [{"context": text, "qas": list(qas)} for text, qas in paragraphs]
    return {"version": version, "data": [{"title": "Towers", "paragraphs": found}]}


def write(path: Path, content: Any) -> str:
    """Writes JSON and returns the path."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def open_one(
    path: str,
    *,
    role: str = "dev",
    max_length: int = 64,
    max_query_length: int = 16,
    tuned: dict[str, float] | None = None,
    lower_case: bool = True,
    **settings: Any,
) -> Family:
    """Opens a SQuAD file as the data of `role`."""
    section = SquadSection(**{role: path}, max_query_length=max_query_length, **settings)
    tokenizer = letters_tokenizer(lower_case=lower_case)
    opening = DataRequest(tokenizer, max_length, seed=0, roles=(role,), tuned=tuned or {})
    return section.open(opening)
