"""The OpenAPI document of the server, made from the declarations that check requests and write answers."""

from typing import Any

from unmask import __version__
from unmask.serve.errors import Surface, error_schema
from unmask.serve.fields import Schema, first_sentence, object_schema
from unmask.serve.routes import GETS, ROUTES
from unmask.serve.routes.route import GetRoute, PostRoute
from unmask.serve.scheduler import Limits

PLAIN_GETS = {
    "/": "Whether the server works.",
    "/health": "Whether the server works.",
    "/ping": "Whether the server works.",
    "/ready": "Whether the server takes requests; it does not while it stops.",
}
"""Routes that answer with a status alone."""

STATUSES = {
    400: "the request is wrong; the sentence names the field and what it must be",
    401: "the API key is missing or wrong",
    403: "without keys, the server answers only under its own address",
    404: "no model or index has this name",
    408: "the body was not sent in time",
    413: "the request is larger than a limit; the sentence has both numbers",
    415: "the body is not plain JSON",
    429: "too much waits; try again after Retry-After seconds",
    500: "the model failed",
    501: "the server lacks an extra that this needs",
    503: "the server is stopping or restarting; try again after Retry-After seconds",
    504: "the request was not finished in time",
}


def document(limits: Limits, *, keys: bool) -> dict[str, Any]:
    """The document, with the limits of this server.

    Args:
        limits: the limits that requests are checked against.
        keys: whether clients need an API key.
    """
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths[route.path] = {"post": _post(route, limits)}
    for status in GETS:
        paths[status.path] = {"get": _get(status)}
    for path, about in PLAIN_GETS.items():
        answers = {"200": {"description": "yes"}, "503": {"description": "no"}, **_statuses("tei", 403)}
        paths[path] = {"get": {"operationId": _id(path), "summary": about, "responses": answers}}
    paths["/metrics"] = {
        "get": {
            "operationId": "metrics",
            "summary": "Counts and durations, for Prometheus.",
            "responses": {
                "200": {"description": "text", "content": {"text/plain": {"schema": {"type": "string"}}}},
                **_statuses("tei", 401, 403),
            },
        }
    }
    specification: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "unmask", "version": __version__, "summary": "Encoder models over HTTP."},
        "paths": paths,
    }
    if keys:
        specification["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        specification["security"] = [{"key": []}]
    return specification


def _post(route: PostRoute, limits: Limits) -> dict[str, Any]:
    failed = {424: STATUSES[500]} if route.surface == "tei" else {}
    codes = [code for code in STATUSES if not (failed and code == 500)]
    return {
        "operationId": _id(route.path),
        "summary": first_sentence(route.handle).replace("``", "`"),
        "tags": [route.surface],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": object_schema(route.body, limits.texts)}},
        },
        "responses": {
            "200": _answer("the result", route.answer),
            **_statuses(route.surface, *codes, *failed),
        },
    }


def _get(route: GetRoute) -> dict[str, Any]:
    return {
        "operationId": _id(route.path),
        "summary": first_sentence(route.answer).replace("``", "`"),
        "tags": [route.surface],
        "responses": {
            "200": _answer("the result", route.schema),
            **_statuses(route.surface, 401, 403),
        },
    }


def _statuses(surface: Surface, *codes: int) -> dict[str, Any]:
    error = error_schema(surface)
    return {str(code): _answer(STATUSES[500 if code == 424 else code], error) for code in sorted(codes)}


def _answer(about: str, schema: Schema) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _id(path: str) -> str:
    return path.strip("/").replace("/", "_") or "root"
