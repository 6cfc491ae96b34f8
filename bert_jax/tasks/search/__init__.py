"""What the task families of search share: tables of texts, losses and retrieval."""
