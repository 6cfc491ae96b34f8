"""What every test stands on: eight simulated devices, and shapes checked as they are written."""

from __future__ import annotations

import importlib.util
import os

# Before JAX is first imported: its backend reads these once. Child processes inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # libtpu is installed and would ask for a TPU's metadata
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Hugging Face's libraries must not look for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

from jaxtyping import install_import_hook

# Before the modules are first imported: the hook rewrites them as they are loaded. Implicit rank
# promotion stays allowed: biases are added to activations of higher rank throughout, as in every
# Flax layer, and the annotated shapes catch what "raise" is there to catch.
if CHECK_SHAPES := importlib.util.find_spec("beartype") is not None:
    install_import_hook("bert_jax.model", "beartype.beartype")

# A fixture for every test; after the hook, since it imports the models.
from tests.project import project  # noqa: F401


def pytest_report_header() -> str:
    """Says at the top of the output whether shapes are checked."""
    return f"shapes: {'checked' if CHECK_SHAPES else 'NOT CHECKED, beartype is not installed'}"
