"""Settings of the log of MLPerf Training's BERT benchmark. Needs no JAX."""

from typing import Literal

import pydantic

from bert_jax.section import Section


class MlperfSection(Section):
    """Facts of a result that a run cannot know. The log also has the run's own settings.

    Source of the rules: mlcommons/training_policies, `training_rules.adoc`.
    """

    organization: str = pydantic.Field(min_length=1)
    """Who runs the benchmark."""
    platform: str = pydantic.Field(min_length=1)
    """Name of the system, such as `tpu-v5e-16`."""
    division: Literal["closed", "open"] = "closed"
    """Division of the rules: `closed` has the model and the data of the reference."""
    status: Literal["cloud", "onprem", "research"] = "cloud"
    """Availability of the system."""
    caches_cleared: bool = False
    """Whether the file caches of all hosts were empty when the run started."""
