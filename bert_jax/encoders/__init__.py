"""The encoders: one folder each, found by `model.kind`."""
