"""The Keras callback, under the name that users import. See `headrace.adapters.keras`.

model.fit(dataset, callbacks=[headrace.keras.MeterCallback()])
"""

from __future__ import annotations

from headrace.adapters.keras import MeterCallback

__all__ = ["MeterCallback"]
