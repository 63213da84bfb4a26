"""The reference of the server's routes, made from the OpenAPI document that `unmask serve` answers with."""

import json
from collections.abc import Iterator
from typing import Any

from site_pages.markdown import code, prose, table
from unmask.serve import Limits
from unmask.serve.openapi import STATUSES, document

Schema = dict[str, Any]

GROUPS = {
    "openai": "OpenAI's routes and ours",
    "tei": "Text Embeddings Inference",
    "cohere": "Cohere",
    None: "State of the server",
}
"""The titles of the sections, by the tag of their routes; each has its own form of errors."""

INTRODUCTION = """\
# HTTP

The routes of `unmask serve`, their fields and their answers, with the default limits. A running server has
the same as an OpenAPI document at `/openapi.json`, and a page that tries the routes at `/docs`. How to start,
protect and limit a server is in [Serve a model](../serve.md), how to run it for others in
[Run the server in production](../production.md).

A field that a route does not know is refused. Fields without a default that are not required may be left out.

"""


def page() -> str:
    """The Markdown of the page."""
    found = document(Limits(), keys=True)
    parts = [INTRODUCTION + "## Statuses\n\n", table(("status", "what it means"), _statuses())]
    for tag, title in GROUPS.items():
        parts.append(f"\n## {title}\n\n")
        parts += _sections(found["paths"], tag)
    return "".join(parts)


def _statuses() -> Iterator[tuple[str, str]]:
    on_tei = {424: f"{STATUSES[500]} (on the routes of Text Embeddings Inference, instead of 500)"}
    for status, about in sorted({200: "the result", **STATUSES, **on_tei}.items()):
        yield str(status), about


def _sections(paths: dict[str, dict[str, Any]], tag: str | None) -> Iterator[str]:
    """The routes with a tag, each with its fields and the answer to a request that succeeds."""
    error: Schema | None = None
    titles: dict[str, list[str]] = {}
    for path, methods in paths.items():
        for method, route in methods.items():
            if route.get("tags", [None])[0] != tag:
                continue
            titles.setdefault(_section(route), []).append(f"{method.upper()} {path}")
            failed = (_content(one) for status, one in route["responses"].items() if status >= "400")
            error = error or next(failed, None)
    # A route with several paths has one section.
    for section, names in titles.items():
        yield f"### {', '.join(names)}\n\n{section}"
    if error is not None:
        yield f"An error of these routes:\n\n```text\n{shape(error)}\n```\n\n"


def _section(route: dict[str, Any]) -> str:
    parts = [prose(route["summary"])]
    if "requestBody" in route:
        body = route["requestBody"]["content"]["application/json"]["schema"]
        parts.append(table(("field", "value", "default", "what it is"), _fields(body)))
    answer = _content(route["responses"]["200"])
    if answer is not None:
        parts.append(f"Answer:\n\n```text\n{shape(answer)}\n```")
    return "\n\n".join(parts) + "\n\n"


def _content(response: dict[str, Any]) -> Schema | None:
    """The schema of a response in JSON, if it has one."""
    found: Schema | None = response.get("content", {}).get("application/json", {}).get("schema")
    return found


def _fields(body: Schema) -> Iterator[tuple[str, str, str, str]]:
    required = body.get("required", ())
    for name, field in body["properties"].items():
        default = code(json.dumps(field["default"])) if field.get("default") is not None else ""
        about = prose(field.get("description", ""))
        yield code(name), prose(kind(field)), "required" if name in required else default, about


def kind(schema: Schema, *, many: bool = False) -> str:
    """What a field takes, in words; in the plural if there are several."""
    if "anyOf" in schema:
        some = (kind(one, many=many) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(some))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(one)) for one in schema["enum"])
    name = schema.get("type", "any value")
    several = {"string": "text", "array": "list"}.get(name, name) + "s" * many
    if name != "array":
        return several
    most = f"at most {schema['maxItems']:,} " if "maxItems" in schema else ""
    return f"{several} of {most}{kind(schema.get('items', {}), many=True)}"


def shape(schema: Schema, indent: str = "") -> str:
    """The form of an answer, written as JSON with words for values."""
    deeper = indent + "  "
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(shape(one, indent) for one in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"[{shape(schema.get('items', {}), indent)}, ...]"
    if schema.get("properties"):
        lines = [
            f"{deeper}{json.dumps(name)}: {shape(one, deeper)}" for name, one in schema["properties"].items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return kind(schema).replace("`", "")
