"""What leaves the explorer: saved pages and galleries of them."""
