"""The report page of a fine-tuned run."""
