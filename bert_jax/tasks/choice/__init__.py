"""Multiple choice: SWAG, CODAH, any table of questions with choices."""
