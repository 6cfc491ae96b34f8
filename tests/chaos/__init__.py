"""Programs that break real runs at random, bounded and seeded. The long forms: `make chaos`."""
