"""What changes when a part is taken out or set to its mean: targets, interventions, ablation."""
