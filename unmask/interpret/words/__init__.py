"""Words over sub-word tokens: maps per word, two tokenizers aligned, how a vocabulary splits a text."""
