"""TensorFlow without Keras: ``from tests.tensorflow_alone import tf``.

TensorFlow loads Keras, and with it pandas and scikit-learn, which doubles the import time. It also
works without Keras.
"""

import sys

sys.modules["keras"] = None  # pyright: ignore[reportArgumentType] (an import of it fails)
import tensorflow as tf  # noqa: E402

del sys.modules["keras"]

__all__ = ["tf"]
