"""headrace for TensorFlow: data sets that the job's tf.data.service makes. See docs/tensorflow.md.

    import headrace.tensorflow

    dataset = headrace.tensorflow.distribute(dataset)
    model.fit(dataset, epochs=3)

Importing this module does not import TensorFlow.
"""

from __future__ import annotations

from headrace.adapters.tensorflow import distribute

__all__ = ["distribute"]
