"""Text to tokenizer: sampling a corpus and training WordPiece or SentencePiece."""
