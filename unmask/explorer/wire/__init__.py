"""How the page and Python speak: declared requests, arrays as bytes, attention as codes.

Answers in JSON are frozen dataclasses, declared where they are made; ``scripts/page_schema.py`` writes the
types of the page from them. Arrays are sent as bytes, and classes whose names end in ``Meta`` describe what
comes with them. Tokens are counted from 0, ranges are half open, and characters are code points of the text.
"""
