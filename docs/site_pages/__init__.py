"""What Sphinx cannot do by itself: pages that are made from the program, and names that become links."""
