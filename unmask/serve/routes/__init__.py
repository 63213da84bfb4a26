"""The routes of the server, one module for each group of clients that speak them."""

from unmask.serve.routes import cohere, openai, tei

ROUTES = (*openai.ROUTES, *cohere.ROUTES, *tei.ROUTES)
