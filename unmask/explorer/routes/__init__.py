"""The requests of the page: each module declares some, their answers, and the functions that answer."""

from unmask.explorer.routes import (
    attribution,
    change,
    compare,
    corpus,
    findings,
    geometry,
    heads,
    live,
    maps,
    session,
    tasks,
    tour,
    words,
)
from unmask.explorer.routes.route import Route
from unmask.explorer.wire.page_request import PageRequest

ROUTES: tuple[Route, ...] = (
    *session.ROUTES,
    *findings.ROUTES,
    *heads.ROUTES,
    *maps.ROUTES,
    *live.ROUTES,
    *attribution.ROUTES,
    *words.ROUTES,
    *tasks.ROUTES,
    *compare.ROUTES,
    *change.ROUTES,
    *corpus.ROUTES,
    *geometry.ROUTES,
    *tour.ROUTES,
)

REQUESTS: tuple[type[PageRequest], ...] = tuple(
    route.request for route in ROUTES if route.request is not None
)
"""Those that are declared, in the order of their routes."""
