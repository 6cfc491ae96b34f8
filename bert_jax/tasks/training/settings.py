"""The settings of one fine-tuning run, complete: nothing in them is optional."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from bert_jax.parallel.section import MeshSection
from bert_jax.tasks.section import FinetuneSection


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """What `finetune` was asked for."""

    seed: int
    run_dir: str
    mesh: MeshSection
    finetune: FinetuneSection
    origin: str  # the run directory that `finetune.init_from` names
    config: Mapping[str, Any]  # the whole configuration as plain values, for config.yaml
    allow_data_change: bool = False  # of what an interrupted run has read
    started: float = dataclasses.field(default_factory=time.time)  # seconds since 1970

    def with_finetune(self, **changed: Any) -> FinetuneSettings:
        """Returns these settings with fields of the `finetune` section changed."""
        return dataclasses.replace(self, finetune=self.finetune.model_copy(update=changed))

    def to_config(self) -> dict[str, Any]:
        """Returns the configuration that asks for just this."""
        return {**self.config, **self.decisive(), "run_dir": self.run_dir}

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that decide the run's numbers, as plain values."""
        return {"seed": self.seed, "finetune": self.finetune.model_dump(mode="json")}
