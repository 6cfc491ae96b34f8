"""Pretraining objectives and their registry."""
