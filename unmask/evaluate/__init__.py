"""What a model knows and how well it does its task: probes, published protocols, judged collections."""
