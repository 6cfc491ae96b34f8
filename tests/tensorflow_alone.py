"""TensorFlow without Keras: ``from tests.tensorflow_alone import tf``.

It would load Keras first thing, and pandas and scikit-learn with it, which takes as long as all of
TensorFlow; it goes on where there is none.
"""

import sys

sys.modules["keras"] = None  # pyright: ignore[reportArgumentType] (an import of it fails)
import tensorflow as tf  # noqa: E402

del sys.modules["keras"]

__all__ = ["tf"]
