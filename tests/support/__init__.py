"""What several test files use: tiny checkpoints, the command line in this process, a stand-in hub."""
