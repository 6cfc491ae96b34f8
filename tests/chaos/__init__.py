"""Tests that break real runs at random, bounded and seeded. Long forms: `make chaos`."""
