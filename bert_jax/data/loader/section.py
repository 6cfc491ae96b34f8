"""The loader's settings, in a file of their own so that reading them does not import Grain."""

import pydantic

from bert_jax.data.dataset.cache import CacheSection
from bert_jax.section import Section


class LoaderSection(Section):
    """How a host prefetches batches. No setting changes the content of a batch.

    Attributes:
        workers: number of worker processes that make batches. With 0, a thread of the training
            process makes them. Worker processes take seconds to start, but relieve the training
            process.
        cache: local copies of datasets in a bucket.
    """

    workers: int = pydantic.Field(default=0, ge=0)
    cache: CacheSection = CacheSection()
