"""The built page in the package: made from the present sources, small, and whole."""

import gzip
import hashlib
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "unmask" / "explorer" / "static"

SOURCES = (
    "index.html",
    "lean.js",
    "manifest.js",
    "notices.js",
    "package-lock.json",
    "package.json",
    "src",
    "svelte.config.js",
    "tsconfig.json",
    "vite.config.js",
)
"""As in web/manifest.js."""

MAX_GZIP_BYTES = 241_000


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
    """What a browser loads, without the licences, which nobody's page loads."""
    files = [STATIC / "index.html", *(STATIC / "assets").iterdir()]
    size = sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in files)
    assert size <= MAX_GZIP_BYTES


def test_the_licences_of_the_packages_in_the_page_come_with_it():
    """Of those whose modules are in the build; each is one that asks for its text and nothing else."""
    text = (STATIC / "LICENSES.txt").read_text()
    packages = dict(re.findall(r"^(\S+) \d+\.\d+\.\d+\S* \((.+)\)$", text, re.MULTILINE))
    assert "svelte" in packages
    assert set(packages.values()) <= {"MIT", "ISC", "BSD-3-Clause", "0BSD"}
    assert text.lower().count("permission") >= len(packages)
    if WEB.is_dir():
        lock = json.loads((WEB / "package-lock.json").read_text())["packages"]
        assert {name: lock[f"node_modules/{name}"]["license"] for name in packages} == packages


def test_the_lock_names_no_registry():
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not in this copy")
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("api/types.ts", ("export interface TextRead {", "  heads: number[];", "  problem: Problem | null;")),
        (
            "api/requests.ts",
            (
                "export const fill = (given: { text: string; token: number; top?: number }) =>",
                "{ path: 'texts/{text}/fill', query: ['token', 'top'], defaults: { top: 8 } }, given)",
                "arrays<HeadsMeta>({ path: 'texts/{text}/heads', grows: true }, given)",
                "fusion: 'mean' | 'max' | 'min' | 'norm' }",
            ),
        ),
        (
            "views/list.ts",
            (
                "import Overview from './overview/Overview.svelte';",
                "GROUPS = ['Start', 'Look', 'Labels', 'Search', 'Compare', 'Measure', 'Tour'] as const;",
                "needs: 'text' | 'two' | 'index' | 'live' | 'none';",
                'id: "roofline", group: "Measure", title: "Roofline", key: "l",',
            ),
        ),
    ],
)
def test_what_the_page_knows_of_the_api_is_written_from_python(name, parts):
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not in this copy")
    wanted = runpy.run_path(str(ROOT / "scripts" / "page_schema.py"))["files"]()[name]
    written = (WEB / "src" / name).read_text(encoding="utf-8")
    assert written == wanted, "run `make web` and commit the result"
    for part in parts:
        assert part in wanted
