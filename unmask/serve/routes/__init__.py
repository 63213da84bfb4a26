"""The routes of the server, one module for each group of clients that speak them."""

from unmask.serve.routes import cohere, openai, search, tei, tokens, typed

ROUTES = (*openai.ROUTES, *cohere.ROUTES, *tei.ROUTES, *tokens.ROUTES, *typed.ROUTES, *search.ROUTES)
GETS = (*openai.GETS, *tokens.GETS)
"""Those that tell of models and limits; the others are the application's own."""
