"""The passages of an index and their vectors, written for other vector stores."""
