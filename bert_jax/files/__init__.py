"""Files: read with errors that name them, written atomically, locked; local or in a bucket."""
