"""Ready-made configurations, found wherever the package is installed.

``importlib.resources.files("bert_jax.configs") / "demo.yaml"``. A package with this file, since an editable
install hides the files of one without it from `importlib.resources`.
"""
