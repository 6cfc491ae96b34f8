"""Runners of lists of jobs: local processes or Apache Beam."""
