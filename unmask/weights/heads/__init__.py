"""Files beside an encoder that say what its checkpoint gives: vectors, weights of words, scores, classes."""
