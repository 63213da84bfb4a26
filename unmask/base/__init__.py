"""What every room builds on: arguments, files that appear whole, checksums, optional packages, resuming."""
