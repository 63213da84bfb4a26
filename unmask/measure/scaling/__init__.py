"""The wall: time and memory of an encoder over length, the curve through them, and where it ends here."""
