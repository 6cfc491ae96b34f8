"""A program is read out of a serialized executable, also one that jaxlib refuses as it stands."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.planning.optimized_text import _decode, _encode, _fields, _mend, _write, module_text

HEADER = bytes.fromhex("83af70d10d884a3f") + bytes(16)


def stored(module: bytes) -> bytes:
    """As libtpu stores it: a message inside others, in blocks of 64 KiB with headers."""
    content = bytes(70_000) + _write(1, 2, module) + bytes(1000)
    size = (1 << 16) - len(HEADER)
    blocks = [content[at : at + size] for at in range(0, len(content), size)]
    return b"envelope" + b"".join(HEADER + block for block in blocks)


@pytest.fixture(scope="module")
def program() -> tuple[bytes, str]:
    """A module large enough to lie in several blocks."""

    def step(x: jax.Array) -> jax.Array:
        for _ in range(150):
            x = jnp.sin(x) * x.sum()
        return x

    compiled = jax.jit(step).lower(jnp.ones(8)).compile()
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    return module.as_serialized_hlo_module_proto(), module.to_string()


def test_a_module_is_found_across_the_blocks_of_the_executable(program: tuple[bytes, str]) -> None:
    module, text = program
    assert len(module) > 1 << 16
    found = module_text(stored(module), name="jit_step")
    # The first line also says how the module was compiled, which is no part of it.
    assert found.partition("\n")[2] == text.partition("\n")[2]


def test_another_name_is_refused(program: tuple[bytes, str]) -> None:
    with pytest.raises(ValueError, match="no module jit_other"):
        module_text(stored(program[0]), name="jit_other")


def test_an_update_keeps_the_first_of_its_operands_and_all_else_stays() -> None:
    operands = b"".join(map(_encode, (300, 7, 2**40)))
    update = _write(2, 2, b"async-update") + _write(36, 2, operands) + _write(35, 0, _encode(5))
    other = _write(2, 2, b"tuple") + _write(36, 2, operands)
    computation = _write(1, 2, b"main") + _write(2, 2, update) + _write(2, 2, other)
    module = _write(1, 2, b"jit_step") + _write(3, 2, computation)
    ((_, _, name), (_, _, mended)) = _fields(_mend(module))
    assert name == b"jit_step"
    instructions = [content for number, _, content in _fields(mended) if number == 2]
    changed = {number: content for number, _, content in _fields(instructions[0])}
    assert (changed[2], changed[36], changed[35]) == (b"async-update", _encode(300), _encode(5))
    assert instructions[1] == other
    assert _decode(changed[36], 0) == (300, 2)
