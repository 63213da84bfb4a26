"""Documents read from files: their text, their pages and what they are called."""
