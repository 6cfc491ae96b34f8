"""The verb `features`: texts in, vectors of pieces, words or sentences out."""
