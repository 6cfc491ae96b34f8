"""Tests that kill or stop runs at random times, with a seed. Longer tests: `make chaos`."""
