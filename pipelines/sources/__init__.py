"""Reads raw text: files, formats, documents and their sentences."""
