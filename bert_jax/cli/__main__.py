"""``python -m bert_jax.cli``."""

from bert_jax.cli import main

main()
