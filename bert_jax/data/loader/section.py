"""The loader's settings, where reading them does not import Grain."""

import pydantic

from bert_jax.data.dataset.cache import CacheSection
from bert_jax.section import Section


class LoaderSection(Section):
    """How batches are prefetched on the host. No setting changes the content of a batch.

    Attributes:
        workers: processes that make batches; 0: a thread of the training process. A process takes
            seconds to start and relieves the training process.
        cache: of datasets in a bucket.
    """

    workers: int = pydantic.Field(default=0, ge=0)
    cache: CacheSection = CacheSection()
