"""What runs packed batches: torch, the native library, rewrites for a CPU, adapters, exported graphs."""
