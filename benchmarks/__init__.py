"""One script per figure: each prints one JSON line per measurement, for ours and for the peer."""
