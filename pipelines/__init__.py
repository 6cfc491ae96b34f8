"""From raw text to datasets: corpora, documents, tokenised runs, shards."""
