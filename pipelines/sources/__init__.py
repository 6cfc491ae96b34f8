"""Raw text: files, formats, documents and their sentences."""
