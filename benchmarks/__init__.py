"""One script per figure: each prints one JSON line per measurement, beside its peer's."""
