"""``python -m bert_jax.cli``."""

from __future__ import annotations

from bert_jax.cli import main

main()
