"""TensorFlow without Keras, loaded at its first use: ``from tests.tensorflow_alone import tf``.

By default, TensorFlow loads Keras, which loads pandas and scikit-learn and doubles the import time.
Every worker imports every test file, and TensorFlow takes 600 MB.
"""

import importlib
import sys
from typing import Any


class _TensorFlow:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks for its own marks
            raise AttributeError(name)
        if "tensorflow" not in sys.modules:
            sys.modules["keras"] = None  # pyright: ignore[reportArgumentType] (an import fails)
            importlib.import_module("tensorflow")
            del sys.modules["keras"]
        return getattr(sys.modules["tensorflow"], name)


tf: Any = _TensorFlow()
