"""What the compiler says of one step for a TPU topology: `step.compile_step` is the entry."""
