"""Benchmarks. Each script prints JSON lines with measurements of this package and of a peer."""
