"""The built page in the package: made from the present sources, small, and whole."""

import dataclasses
import gzip
import hashlib
import json
import re
import types
import typing
from pathlib import Path

import pytest

from unmask.explorer import findings, results

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "unmask" / "explorer" / "static"

SOURCES = (
    "index.html",
    "manifest.js",
    "package-lock.json",
    "package.json",
    "src",
    "svelte.config.js",
    "tsconfig.json",
    "vite.config.js",
)
"""As in web/manifest.js."""

MAX_GZIP_BYTES = 150_000


def source_hash():
    paths = []
    for name in SOURCES:
        source = WEB / name
        found = source.rglob("*") if source.is_dir() else [source]
        paths += [path.relative_to(WEB).as_posix() for path in found if path.is_file()]
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = (WEB / path).read_bytes().replace(b"\r\n", b"\n")
        digest.update(path.encode() + b"\0" + content)
    return digest.hexdigest()


def test_build_is_of_the_present_sources():
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not in this copy")
    built = json.loads((STATIC / "manifest.json").read_text())["sources_sha256"]
    assert built == source_hash(), "run `npm ci && npm run build` in web/ and commit the result"


def test_every_asset_is_used_and_every_used_one_is_there():
    html = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="/assets/([^"]+)"', html))
    assert named == {path.name for path in (STATIC / "assets").iterdir()}
    assert "http:" not in html
    assert "https:" not in html
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", html)


def test_build_is_small():
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    size = sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in files)
    assert size <= MAX_GZIP_BYTES


def test_the_lock_names_no_registry():
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not in this copy")
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()


def test_types_of_the_page_mirror_the_results():
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not in this copy")
    source = (WEB / "src" / "api" / "types.ts").read_text()
    interfaces = {
        name: dict(re.findall(r"^  (\w+): ([^;]+);", body, re.M))
        for name, body in re.findall(r"^export interface (\w+) \{(.*?)^\}", source, re.S | re.M)
    }
    classes = {value.__name__: value for value in findings.PUBLISHED}
    for module in (results, findings):
        classes |= {
            name: value
            for name, value in vars(module).items()
            if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
        }
    assert interfaces.keys() == classes.keys()
    for name, value in classes.items():
        hints = typing.get_type_hints(value)
        wanted = {field.name: _in_typescript(hints[field.name]) for field in dataclasses.fields(value)}
        assert interfaces[name] == wanted, name


def _in_typescript(given):
    """A type of Python's as the page spells it."""
    plain = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}
    plain |= {typing.Any: "unknown"}
    if given in plain:
        return plain[given]
    if dataclasses.is_dataclass(given):
        return given.__name__
    origin, parts = typing.get_origin(given), typing.get_args(given)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_in_typescript, parts))
    if origin is typing.Literal:
        return "string"
    if origin is tuple and parts[1:] == (...,):
        return _in_typescript(parts[0]) + "[]"
    if origin is tuple:
        return "[" + ", ".join(map(_in_typescript, parts)) + "]"
    assert origin is dict, given
    return "Record<" + ", ".join(map(_in_typescript, parts)) + ">"
