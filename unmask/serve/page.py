"""A page on which the routes can be tried; everything it needs is in its one file."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files


@cache
def page() -> tuple[bytes, str]:
    """The page, and a Content-Security-Policy that lets run what is in it and nothing else."""
    html = (files("unmask.serve") / "page.html").read_text(encoding="utf-8")
    script, style = (_digest(html, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _digest(html: str, tag: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    assert match is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()}'"
