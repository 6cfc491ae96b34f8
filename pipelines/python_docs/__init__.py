"""The English prose in the installed Python's own documentation, as a corpus."""
