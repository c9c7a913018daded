"""headrace's tf.data service against one started by hand, and its own feed in TensorFlow: `python -m bench.tfdata`."""
