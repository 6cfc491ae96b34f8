"""Question answering on SQuAD 1.1 and 2.0."""
