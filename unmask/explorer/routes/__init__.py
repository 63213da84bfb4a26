"""The requests of the page: each module declares some, their answers, and the functions that answer.

The page begins with two modules; the others are imported when something else is asked for, or a moment later.
"""

from functools import cache

from unmask.explorer.routes.route import Route
from unmask.explorer.wire.page_request import PageRequest


@cache
def first_routes() -> tuple[Route, ...]:
    """Those that the page asks for first: what is loaded, and short texts."""
    from unmask.explorer.routes import live, session

    return (*session.ROUTES, *live.ROUTES)


@cache
def every_route() -> tuple[Route, ...]:
    """All of them."""
    from unmask.explorer.routes import (
        attribution,
        change,
        compare,
        corpus,
        findings,
        geometry,
        heads,
        labels,
        live,
        maps,
        session,
        tasks,
        tour,
        words,
    )

    return (
        *session.ROUTES,
        *findings.ROUTES,
        *heads.ROUTES,
        *maps.ROUTES,
        *live.ROUTES,
        *attribution.ROUTES,
        *words.ROUTES,
        *tasks.ROUTES,
        *labels.ROUTES,
        *compare.ROUTES,
        *change.ROUTES,
        *corpus.ROUTES,
        *geometry.ROUTES,
        *tour.ROUTES,
    )


def every_request() -> tuple[type[PageRequest], ...]:
    """Those that are declared, in the order of their routes."""
    return tuple(route.request for route in every_route() if route.request is not None)
