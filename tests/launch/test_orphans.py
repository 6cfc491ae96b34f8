"""What exists and nobody watches is an orphan only if that is known of it."""

import time
from pathlib import Path

import pytest

from bert_jax.launch.launcher import State
from bert_jax.launch.orphans import Found, find_existing
from tests.launch.scripted import HOUR, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job that was submitted five hours ago, and is not watched."""
    world = World(tmp_path)
    world.clock.now = time.time() - 5 * HOUR
    world.supervisor().start()
    return world


def found(world: World) -> Found:
    (only,) = find_existing([world.launcher], bucket=None, say=world.said.append)
    return only


def test_machines_that_may_have_come_a_minute_ago_are_none(world: World) -> None:
    world.launcher.become("base-1", State.ACTIVE)
    assert (found(world).orphan, found(world).note) == ("", "nobody watches it")


def test_hosts_that_have_spoken_may_not_fall_silent(world: World) -> None:
    world.launcher.become("base-1", State.ACTIVE)
    world.beat(1)
    assert found(world).orphan == "silent for 300 min"
    world.clock.now = time.time()
    world.beat(1, workers=(1,))
    assert found(world).orphan == ""


def test_a_host_whose_word_is_damaged_hides_nothing_that_bills(world: World) -> None:
    world.launcher.become("base-1", State.ACTIVE)
    world.beat(1)
    world.files.host(1, 1).write_text("{")
    assert found(world).orphan == ""
    assert found(world).note.startswith("nobody watches it, what its hosts say cannot be read: ")
    assert world.said == ["base-1: attempt 1: asked for v4:2x2x2 in us-west4-a"]
