"""Examples from tokenised documents: spans, pairs, full sentences."""
