"""The guided tour: its chapters, the models they need, and their experiments."""
