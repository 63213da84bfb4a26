"""What leaves the explorer: saved pages, provenance lines, the page in a notebook."""
