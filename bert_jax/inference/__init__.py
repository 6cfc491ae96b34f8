"""Forward passes over rows of different lengths, and masked-word prediction."""
