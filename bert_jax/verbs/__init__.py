"""What the command line can do: one module per verb, each with a function of the verb's name."""
