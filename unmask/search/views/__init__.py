"""Views of passages: how each kind of search stores them and scores them."""
