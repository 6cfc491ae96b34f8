"""What all stages of making one dataset share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bert_jax.pipelines.engines.engine import Engine
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.workspace import Workspace


class DatasetBuild(NamedTuple):
    """One call of :func:`make_examples` at work."""

    section: ExamplesSection
    workspace: Workspace
    engine: Engine
    say: Callable[[str], None]
    """Gets a line of text when a part or a shard is finished."""
