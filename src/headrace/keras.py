"""Keras's face: `model.fit(dataset, callbacks=[headrace.keras.MeterCallback()])`. See `headrace.adapters.keras`."""

from __future__ import annotations

from headrace.adapters.keras import MeterCallback

__all__ = ["MeterCallback"]
