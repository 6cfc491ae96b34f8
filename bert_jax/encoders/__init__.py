"""Encoders: one folder each."""
