"""Fine-tuning of encoders on labeled data: from a TOML file or Python objects to a checkpoint with a head."""
