"""TensorFlow without Keras: ``from tests.tensorflow_alone import tf``.

By default, TensorFlow loads Keras, which loads pandas and scikit-learn and doubles the import time.
"""

import sys

sys.modules["keras"] = None  # pyright: ignore[reportArgumentType] (an import of it fails)
import tensorflow as tf  # noqa: E402

del sys.modules["keras"]

__all__ = ["tf"]
