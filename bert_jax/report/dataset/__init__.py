"""The report page of a dataset."""
