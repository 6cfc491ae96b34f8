"""Run directories: opening, claiming, checks before a resume, loading of parameters."""
