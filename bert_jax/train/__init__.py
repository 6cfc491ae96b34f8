"""The one train loop and what it stands on."""
