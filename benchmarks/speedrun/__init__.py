"""The BERT speedrun: the 2018 recipe's loss for fewer FLOPs. See ``docs/speedrun.md``."""
