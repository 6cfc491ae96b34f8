"""Classification and regression on a table of the user."""
