"""Low-rank adapters: read, applied to weights, and written for other libraries."""
