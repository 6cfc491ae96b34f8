"""Fine-tuning: one folder a task family, and what all families share."""
