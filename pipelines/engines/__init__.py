"""Runs lists of jobs in local processes or on Apache Beam."""
