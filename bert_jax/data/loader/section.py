"""The loader's settings, where reading them does not import Grain."""

from __future__ import annotations

import pydantic

from bert_jax.section import Section


class LoaderSection(Section):
    """How batches are made ahead of the step that takes them. None of it changes a batch.

    Attributes:
        workers: processes that make batches; 0 makes them in a thread of the training process. A
            process costs seconds to start and spares the training process the work.
        prefetch: batches made ahead, by each worker.
    """

    workers: int = pydantic.Field(default=0, ge=0)
    prefetch: int = pydantic.Field(default=4, ge=1)
