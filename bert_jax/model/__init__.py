"""The BERT encoder and its pretraining heads: post-LayerNorm, as released in 2018."""
