"""Where the explorer runs: its local web server, and a notebook."""
