"""The optimized HLO text of a compiled program, also where this jaxlib cannot read its program.

On v6e the compiler of libtpu 0.0.51 gives an `async-update` the operands of its start, and jaxlib
0.10.2 refuses to read more than one; `Compiled.as_text` then raises. The program inside the
serialized executable is read here instead, with those operands left away: they change nothing that
is counted.
"""

from collections.abc import Iterator
from typing import Any, Final

import jax

# Private, as all that reads a program back is: tests/planning/test_optimized_text.py holds it.
from jax._src.lib import hlo  # pyright: ignore[reportAttributeAccessIssue]

# Field numbers of xla/service/hlo.proto.
_MODULE_COMPUTATIONS: Final = 3
_COMPUTATION_INSTRUCTIONS: Final = 2
_INSTRUCTION_PATH: Final = (_MODULE_COMPUTATIONS, _COMPUTATION_INSTRUCTIONS)
_INSTRUCTION_OPCODE: Final = 2
_INSTRUCTION_OPERANDS: Final = 36

# Serialized executables lie in a Riegeli file: blocks of 64 KiB, each with a header of 24 bytes
# that may cut a message in two. The first begins with the hash of its header, always the same.
_RIEGELI: Final = bytes.fromhex("83af70d10d884a3f")
_BLOCK, _BLOCK_HEADER = 1 << 16, 24

_VARINT, _BYTES = 0, 2
_FIXED: Final = {1: 8, 5: 4}  # wire type → bytes
Field = tuple[int, int, bytes]  # number, wire type, content; of a varint its own bytes


def optimized_text(compiled: jax.stages.Compiled, *, name: str) -> str:
    """Returns the scheduled program of a TPU executable, whose `name` is such as ``jit_step``.

    Raises:
        ValueError: the executable holds no program of that name.
    """
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:
        executable: Any = compiled.runtime_executable()
        return module_text(executable.serialize(), name=name)
    if text is None:
        raise ValueError("the executable has no text")
    return text


def module_text(serialized: bytes, *, name: str) -> str:
    """Returns the text of the module inside a serialized executable.

    Raises:
        ValueError: there is none of that name.
    """
    module = _mend(_find_module(_without_blocks(serialized), name=name))
    return hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()


def _without_blocks(serialized: bytes) -> bytes:
    start = max(serialized.find(_RIEGELI), 0)
    blocks = range(start, len(serialized), _BLOCK)
    return b"".join(serialized[at + _BLOCK_HEADER : at + _BLOCK] for at in blocks)


def _find_module(serialized: bytes, *, name: str) -> bytes:
    """Returns the message that begins with its name as field 1 and is whole."""
    encoded = name.encode()
    beginning = b"\x0a" + _encode(len(encoded)) + encoded + b"\x12"
    at = serialized.find(beginning)
    while at >= 0:
        for width in range(1, 6):
            size, end = _decode(serialized, max(at - width, 0))
            message = serialized[at : at + size]
            if end == at and len(message) == size > len(beginning) and _is_message(message):
                return message
        at = serialized.find(beginning, at + 1)
    raise ValueError(f"no module {name} in the executable")


def _mend(message: bytes, path: tuple[int, ...] = _INSTRUCTION_PATH) -> bytes:
    """Returns the module with one operand for each `async-update`."""
    if not path:
        return _mend_instruction(message)
    return b"".join(
        _write(number, wire, _mend(content, path[1:]) if number == path[0] else content)
        for number, wire, content in _fields(message)
    )


def _mend_instruction(message: bytes) -> bytes:
    fields = list(_fields(message))
    if (_INSTRUCTION_OPCODE, _BYTES, b"async-update") not in fields:
        return message
    return b"".join(
        _write(number, wire, content[: _decode(content, 0)[1]])
        if number == _INSTRUCTION_OPERANDS and wire == _BYTES  # packed
        else _write(number, wire, content)
        for number, wire, content in fields
    )


def _is_message(message: bytes) -> bool:
    try:
        return _MODULE_COMPUTATIONS in {number for number, _, _ in _fields(message)}
    except ValueError:
        return False


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _decode(message, at)
        number, wire = key >> 3, key & 7
        start = at
        if wire == _VARINT:
            _, at = _decode(message, at)
        elif wire == _BYTES:
            size, start = _decode(message, at)
            at = start + size
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")
        if number == 0 or at > len(message):
            raise ValueError("cut off")
        yield number, wire, message[start:at]


def _write(number: int, wire: int, content: bytes) -> bytes:
    size = _encode(len(content)) if wire == _BYTES else b""
    return _encode(number << 3 | wire) + size + content


def _decode(message: bytes, at: int) -> tuple[int, int]:
    """Returns the number that begins at an index, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("no number")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
