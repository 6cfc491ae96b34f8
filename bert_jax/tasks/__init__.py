"""Fine-tuning: one module or package per task family, and their shared code."""
