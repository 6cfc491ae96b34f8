"""Rules that drop text from a corpus. Each rule is a setting and counts what it drops."""
