"""The overview of one text: what a model did with it, as findings of one sentence each."""
