"""Run directories: open, claim, check before a resume, load parameters."""
