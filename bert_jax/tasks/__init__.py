"""Fine-tuning: a module or folder for each task family, and the code that all families share."""
