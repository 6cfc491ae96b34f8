"""Rules for text to leave out of a corpus: each is a setting, each is counted."""
