"""The report of pretraining runs."""
