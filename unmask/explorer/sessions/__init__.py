"""What a running explorer holds: models, texts, analyses in progress, and how each is identified."""
