"""Runs byte-level BPE with the ``fastokens`` library, which the extra ``fast`` installs.

It encodes about ten times as much text in the same time as the ``tokenizers`` library.
"""

import importlib.util
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import tokenizers

from bert_jax.narration import tell
from bert_jax.text.pipeline_limits import parts_of

WORTH: Final = 1 << 20  # characters that `tokenizers` encodes while `fastokens` opens a file
_NORMALIZERS: Final = ("NFC", "Lowercase")
_ANY_STEP: Final = {"type": "Sequence", "normalizers": []}
# White space of several definitions, marks, joiners, contractions and numbers.
_ODD: Final = (
    *("", " ", "  ", "   a", "a   ", "\n\n a\n b", "a\t\tb\r\n", "a \u3000 b", "\u00a0a \u00a0 b"),
    *("\x1c\x85\u2003\u2028\u200b\ufeff \u180e", "e\u0301 \u1100\u1161\u11a8 \u0958\u212b\u0344"),
    *("I'll don't WE'RE 's'd 'Sx ''t", "3.14 ½²٣① x1y22 1\u00a02", "!?... --- (a).", "a_b C++ @c"),
    *("👨\u200d👩\u200d👧\ufe0f😀🏽", "\x00\x01\x7f\x80\xad\ufffd\U0010ffff", "İßΣς ſK ﬁ"),
)
_RUNS: Final = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 5000)
# Each byte of UTF-8, and characters of each block.
_CHARACTERS: Final = "".join(
    map(chr, (*range(0x800), *range(0x801, 0xD800, 31), *range(0xE000, 0x110000, 499)))
)


class FastPipeline:
    """A pipeline of ``fastokens`` with the ids of the ``tokenizers`` library."""

    def __init__(self, content: str, *, threads: int) -> None:
        """Opens the content of a ``tokenizer.json``. Raises ValueError if it is not supported."""
        from fastokens import Tokenizer  # optional

        if threads == 1:
            # The library reads this once in a process, at its first text.
            os.environ["FASTOKENS_BPE_THREADS"] = "1"
        self._pipeline = Tokenizer.from_json_str(content)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32."""
        flat, bounds = self._pipeline.encode_batch_flat(list(texts), split_special_tokens=True)
        ids = np.frombuffer(flat, "<u4").astype(np.int32)
        starts = np.frombuffer(bounds, "<u8").tolist()
        return [ids[start:end] for start, end in itertools.pairwise(starts)]


def open_fast(
    spec: dict[str, Any], library: tokenizers.Tokenizer, *, threads: int, source: str
) -> FastPipeline | None:
    """Returns a pipeline whose ids equal the library's, or None.

    Prints a line if the ids of texts that are hard to divide differ.

    Args:
        spec: a ``tokenizer.json`` in which only the special pieces are special.
        library: the same pipeline in the ``tokenizers`` library.
        threads: number of threads that may encode.
        source: name of the file in the line.
    """
    if importlib.util.find_spec("fastokens") is None or not supports(spec):
        return None
    # With a normalizer, both libraries look for normalized added tokens after all others.
    spec = {**spec, "normalizer": spec["normalizer"] or _ANY_STEP}
    texts = [*_probes(spec)]
    wanted = library.encode_batch_fast(texts, add_special_tokens=False)
    try:
        fast = FastPipeline(json.dumps(spec), threads=threads)
        found = fast.encode(texts)
    except ValueError as error:
        tell(f"{source}: tokenizers encodes it, since fastokens cannot ({str(error)[:200]})")
        return None
    if any(ids.tolist() != each.ids for ids, each in zip(found, wanted, strict=True)):
        tell(f"{source}: tokenizers encodes it, since fastokens gives some texts other ids")
        return None
    return fast


def supports(spec: dict[str, Any]) -> bool:
    """Returns whether ``fastokens`` is known to give the ids of ``tokenizers``.

    They differ if added tokens take the spaces after them, and for other pre-tokenizers.
    """
    steps = spec["pre_tokenizer"]
    return (
        spec["model"]["type"] == "BPE"
        and steps["type"] == "ByteLevel"
        and steps.get("use_regex", True)
        and all(
            step.get("type") in _NORMALIZERS for step in parts_of(spec["normalizer"], "normalizers")
        )
        and not any(token["rstrip"] for token in spec["added_tokens"])
    )


def _probes(spec: dict[str, Any]) -> Iterator[str]:
    """Yields texts that are hard to divide: added tokens, white space, scripts, bytes and runs."""
    yield from _ODD
    for start in range(0, len(_CHARACTERS), 32):
        block = _CHARACTERS[start : start + 32]
        yield block
        yield f"a{' 1'.join(block)} {'! '.join(block)}"
    for letter in "a 1!\né東\u0301😀":
        yield from (f"b{letter * count}c" for count in _RUNS)
    for token in spec["added_tokens"]:
        text = token["content"]
        yield f"a{text}b {text} {text.upper()} {text.lower()}  {text}{text}. {text[:-1]} {text[1:]}"
