"""Ready-made configurations: ``importlib.resources.files("bert_jax.configs") / "demo.yaml"``.

This file is needed: without it, `importlib.resources` finds no files in an editable install.
"""
