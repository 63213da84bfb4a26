"""Claims of the literature about encoders, each tried with small models: see docs/claims.md."""
