"""The settings of question answering on SQuAD."""

from __future__ import annotations

from typing import Literal

import pydantic

from bert_jax.section import Section


class SquadSection(Section):
    """SQuAD 1.1 or 2.0, from JSON files in its form. The defaults are the release's."""

    kind: Literal["squad"] = "squad"
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    version: Literal["auto", "1.1", "2.0"] = "auto"  # auto: 2.0 if one of the files is
    stride: int = pydantic.Field(default=128, ge=1)  # pieces from window to window
    max_query_length: int = pydantic.Field(default=64, ge=1)  # pieces
    n_best: int = pydantic.Field(default=20, ge=1)
    max_answer_length: int = pydantic.Field(default=30, ge=1)  # pieces
    # No answer is given where its score is above the best answer's by more; None: chosen on dev.
    null_threshold: float | None = pydantic.Field(default=None, allow_inf_nan=False)

    @property
    def tunes_threshold(self) -> bool:
        """Whether predictions need a threshold that is tuned on the dev file."""
        return self.dev is not None and self.version != "1.1" and self.null_threshold is None
