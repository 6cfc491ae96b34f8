"""Tests of jobs on rented machines."""
