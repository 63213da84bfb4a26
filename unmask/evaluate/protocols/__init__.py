"""GLUE, named entities and SQuAD as their authors score them, and models with a head scored alike."""
