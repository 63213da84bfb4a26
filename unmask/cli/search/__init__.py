"""Commands over an index of documents."""
