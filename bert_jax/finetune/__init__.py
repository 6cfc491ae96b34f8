"""Fine-tuning: one small file per task family; what they share is named in `family`."""
