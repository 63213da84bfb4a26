"""All routes of the API, one module per group."""

from unmask.explorer.routes import (
    compare,
    export,
    geometry,
    heads,
    maps,
    paths,
    session,
    sinks,
    tour,
    wall,
    words,
)
from unmask.explorer.routes.route import Route

ROUTES: tuple[Route, ...] = (
    *session.ROUTES,
    *heads.ROUTES,
    *maps.ROUTES,
    *sinks.ROUTES,
    *paths.ROUTES,
    *words.ROUTES,
    *compare.ROUTES,
    *geometry.ROUTES,
    *wall.ROUTES,
    *tour.ROUTES,
    *export.ROUTES,
)
