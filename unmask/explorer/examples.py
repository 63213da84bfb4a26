"""Texts that the page offers to begin with; the first is read if no text is given."""

EXAMPLES = (
    "The river bank was muddy, so we took the money to the bank.",
    "The trophy does not fit in the suitcase because it is too big.",
    "A rose is a rose is a rose.",
    "Café, naïve, 東京 and 🙂 are words too.",
)
