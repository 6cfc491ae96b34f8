"""The dataset on disk: its format, its provenance, its reader."""
