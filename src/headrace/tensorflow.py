"""headrace for TensorFlow: datasets of the job's tf.data.service, or of headrace's own feed. See docs/tensorflow.md.

    import headrace.tensorflow

    dataset = headrace.tensorflow.distribute(dataset)
    model.fit(dataset, epochs=3)

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.adapters.tensorflow import distribute, plan

__all__ = ["FeedDataset", "distribute", "feed", "plan"]

if TYPE_CHECKING:
    from headrace.adapters.tensorflow_feed import FeedDataset, feed


def __getattr__(name: str) -> object:
    if name in ("FeedDataset", "feed"):  # a class of TensorFlow's kind, so the module needs it
        from headrace.adapters import tensorflow_feed

        return getattr(tensorflow_feed, name)
    raise AttributeError(f"module 'headrace.tensorflow' has no attribute {name!r}")
