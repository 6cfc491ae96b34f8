"""Tests with several real processes on loopback, each running the real command line."""
