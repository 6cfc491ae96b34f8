"""Fixtures of the tests of objectives."""

import pytest

from bert_jax.objectives import electra as replaced_token_detection


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ELECTRA's generator choose the most probable piece, in any row."""
    monkeypatch.setattr(replaced_token_detection, "drawn", lambda logits, key: logits.argmax(-1))
