"""All routes of the API, one module per group."""

from unmask.explorer.api.routes import (
    compare,
    export,
    geometry,
    heads,
    maps,
    paths,
    scaling,
    search,
    session,
    sinks,
    tour,
    words,
)
from unmask.explorer.api.routes.route import Route

ROUTES: tuple[Route, ...] = (
    *session.ROUTES,
    *heads.ROUTES,
    *maps.ROUTES,
    *sinks.ROUTES,
    *paths.ROUTES,
    *words.ROUTES,
    *compare.ROUTES,
    *geometry.ROUTES,
    *scaling.ROUTES,
    *tour.ROUTES,
    *search.ROUTES,
    *export.ROUTES,
)
