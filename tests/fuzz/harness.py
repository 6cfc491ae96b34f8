"""Damaged and hostile files that hypothesis makes from small valid files.

The tests check one property for every kind of file: reading gives a value or a one-line
`UserError`, within limits of time and memory.
"""

import copy
import json
import resource
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError

MOST_SECONDS: Final = 60  # CPU seconds for a file of kilobytes, on a busy machine
MOST_BYTES: Final = 512 << 20
MOST_CHARACTERS: Final = 2500  # longest message

SHORT: Final = 40
LONG: Final = 10_000
both_forms = pytest.mark.parametrize(
    "inputs", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)], ids=["short", "long"]
)

# Bytes that are likely to break readers.
TOKENS: Final = [
    *(
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\t",
        b'"',
        b"'",
        b",",
        b"\\",
        b"\\ud800",
    ),
    *(b"{", b"}", b"[", b"]", b"[" * 2000, b'{"a":' * 2000, b"<", b">", b"&", b"</", b"<![CDATA["),
    *(b"-1", b"0", b"1e999", b"nan", b"NaN", b"Infinity", b"9" * 5000, b"0x1p3", b"true", b"null"),
    *(b"!!int x", b"&a ", b"*a", b"<<: *a", b"? ", b"- ", b": ", b"2024-99-99", b"%", b"| "),
    *(b"../../x", b"/etc/passwd", b"{{", b"}}", b"{{a|b=" * 50, b"[[", b"''", b"{|", b"&#xD800;"),
    *(b"&#x110000;", b"\x80" * 12, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\xf0\x9f\x98\x80"),
    *(b"x" * 5000, b"\\ud800"),
]

# Values of an unexpected type or size.
VALUES: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63),
    *(10**39, 10**60, 100_000, "", "x", "0", "-1", "\0", "\ud800", "a" * 3000, "../x", "/dev/zero"),
    *([], {}, [[]], [None], [0], ["x"], {"": 0}, {"a": {"a": None}}, [1] * 300, "tfds", "uint16"),
]


@st.composite
def damaged(draw: Any, whole: bytes) -> bytes:
    """Draws the bytes of a valid file, damaged one to four times."""
    content = whole
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.sampled_from([1, 1, 2, 4, 16, 200])))
        match draw(st.integers(0, 6)):
            case 0 | 1 if at < len(content):  # a bit flips
                flipped = content[at] ^ 1 << draw(st.integers(0, 7))
                content = content[:at] + bytes([flipped]) + content[at + 1 :]
            case 2:
                content = content[:at]
            case 3:
                content = content[:at] + content[end:]
            case 4:  # a range of bytes is repeated elsewhere
                other = draw(st.integers(0, len(content)))
                content = content[:other] + content[at:end] + content[other:]
            case 5:
                content = content[:at] + draw(st.sampled_from(TOKENS)) + content[at:]
            case _:
                content = content[:at] + draw(st.binary(max_size=20)) + content[end:]
    return content


@st.composite
def flipped(draw: Any, whole: bytes) -> bytes:
    """Draws the bytes of a valid file with one to three flipped bits."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        content[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


@st.composite
def confused(draw: Any, whole: Any) -> Any:
    """Draws nested values with up to three changed, removed or added values."""
    content = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = content
        while True:
            if not isinstance(node, dict | list) or not node:
                break
            keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
            key = draw(st.sampled_from(keys))
            below = node[key]
            if isinstance(below, dict | list) and below and draw(st.integers(0, 3)):
                node = below
                continue
            change = draw(st.integers(0, 5))
            if change == 0:
                del node[key]
            elif change == 1 and isinstance(node, dict):
                node[draw(st.sampled_from(["", "x", "a.b", "\0", "0"]))] = below
            else:
                node[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
            break
    return content


def json_of(whole: Any) -> st.SearchStrategy[bytes]:
    """Draws JSON with other values, or with damaged text."""
    text = json.dumps(whole).encode()
    return st.one_of(confused(whole).map(lambda value: json.dumps(value).encode()), damaged(text))


def survives(read: Callable[[Any], object], inputs: st.SearchStrategy[Any], count: int) -> None:
    """Checks the property for `count` inputs. `read` writes an input to a file and reads it."""

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def check(content: Any) -> None:
        # Only the growth is measured: hypothesis keeps earlier inputs in memory.
        began, held = time.process_time(), _peak()
        try:
            read(content)
            key = line = "read"
        except UserError as error:
            key, line = error.key, str(error)
        assert key, line
        assert 0 < len(line.strip()) < MOST_CHARACTERS, line[:200]
        assert time.process_time() - began < MOST_SECONDS
        assert _peak() - held < MOST_BYTES

    check()


def _peak() -> int:
    """Returns the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
