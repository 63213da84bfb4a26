"""The guided tour: its chapters, the models each needs, and how their experiments are run."""
