"""Reranking: a cross-encoder scores a query with each candidate document."""
