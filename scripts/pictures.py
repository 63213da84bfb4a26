"""Make the pictures of docs/explore.md: every view of the real page, in headless Chromium.

    python scripts/pictures.py                      those of the docs, into docs/pictures/explorer
    python scripts/pictures.py map words --out DIR  some, somewhere else
    python scripts/pictures.py --all                every picture at three sizes, light and dark, into
                                                    runs/pictures, to look at and not to keep

Needs the extras ``dev`` and ``explorer``, and a Chromium. The page may reach its own server and nothing else.
The picture of the roofline measures for some seconds, and nothing else should run then.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from unmask.explorer.page import fragment
from unmask.explorer.tour.chapters import CHAPTERS

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "pictures" / "explorer"
ALL_OUT = ROOT / "runs" / "pictures"
WIDTH = 1340
SIZES = {"wide": (1440, 900), "tablet": (1024, 768), "phone": (390, 844)}
MOST_BYTES = 300_000
BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
PATIENCE_MS = 900_000
STILL_MS = 1200
SETTLED = """() => !document.querySelector('[data-testid=progress], [aria-busy=true]')
    && document.querySelector('[data-testid=page]').dataset.busy === 'false'
    && ![...document.querySelectorAll('[role=status]')].some(one => /…$/.test(one.textContent.trim()))
    && !document.querySelector('[data-testid=head-corpus]:not([data-phase=done])')
    && !/being (computed|measured)/.test(document.querySelector('main').innerText)"""
"""Nothing is being read or measured. The corpus of the head's page takes half a minute the first time."""

BANKS = "The river bank was muddy, so she went to the bank for a loan."
DOOR = "The old man opened the door and went into the house."
DEFAULT, MINI = "sentence-transformers/all-MiniLM-L6-v2", "unmask-mini"
DOCUMENT_CHARACTERS = 8_000


def document() -> str:
    """A text of some thousand tokens: pages of our own."""
    pages = ("geometry", "scaling", "evaluate", "bench")
    whole = "\n\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in pages)
    return whole[:DOCUMENT_CHARACTERS]


def nothing(page: Page) -> None:
    """Leave the page as it is."""


def to_the_middle(page: Page) -> None:
    """Bring the chosen cell from the edge of a long map to its middle."""
    page.get_by_test_id("map").evaluate("map => map.scrollBy(300, 560)")


def strongest_heads(page: Page) -> None:
    """Take out the heads that are guessed to matter most."""
    page.get_by_test_id("measure-strongest").click()
    page.wait_for_selector('[data-testid="measure-strongest"]:not([disabled])', timeout=PATIENCE_MS)


def save_open(page: Page) -> None:
    """Show what can be taken along."""
    page.keyboard.press("e")


@dataclass(frozen=True)
class Picture:
    """One picture: a view of a text, and what is done to it first."""

    view: str
    state: dict[str, object] = field(default_factory=dict)
    height: int = 860
    act: Callable[[Page], None] = nothing
    at: str | None = None
    """What is scrolled to, as a selector; None is the top."""


BANK_HEAD = {"text": BANKS, "layer": 3, "head": 5, "query": 3, "key": 12}
BANK_NORM = BANK_HEAD | {"weight": "norm"}
LONG = {"text": document(), "model": MINI, "layer": 3, "head": 1, "zoom": 5, "query": 1126, "key": 1129}
DOOR_MASK = {"text": DOOR, "model": MINI, "query": 6}
STORY = (
    "The old man went down to the river in the morning, for he had heard that the water was high. There he "
    "found a boat and two boys, and he asked them whether they had seen his dog. They said that a dog had "
    "come by an hour before, wet and tired, and had gone up the road to the house of the miller. So the man "
    "thanked them, gave each a penny, and walked up the road between the fields. The sun stood high when he "
    "came to the mill, and the wheel turned slowly. The miller sat before his door with a pipe, and the dog "
    "lay at his feet and slept. It is a good dog, said the miller, and it knows where there is bread. That "
    "it does, said the old man, and he sat down beside him, and they talked of the weather and the price of "
    "corn until the evening came and the bell rang in the village."
)
QUESTION = {"search.text": "how is memory measured"}
TOUR = {"text": BANKS, "tour.skip": 1}
EDITED = {"text": BANKS.replace("muddy", "closed"), "against": BANKS}
PICTURES = {
    "start": Picture("start", {}, 980),
    "overview": Picture("overview", {"text": BANKS}, 1120),
    "overview-dark": Picture("overview", {"text": BANKS, "theme": "dark"}, 1120),
    "search": Picture("search", QUESTION, 960),
    "search-dark": Picture("search", QUESTION | {"search.mode": "bm25", "theme": "dark"}, 860),
    "tokens": Picture("tokens", BANK_HEAD, 900),
    "heads": Picture("heads", {"text": BANKS}, 900),
    "head": Picture("head", BANK_HEAD, 1120),
    "map": Picture("map", BANK_NORM, 1120),
    "map-dark": Picture("map", BANK_NORM | {"theme": "dark"}, 1120),
    "map-long": Picture("map", LONG, 1080, to_the_middle),
    "edit": Picture("map", BANK_HEAD | EDITED | {"map.show": "difference"}, 1120),
    "edit-heads": Picture("heads", BANK_HEAD | EDITED | {"map.show": "difference"}, 900),
    "edit-words": Picture("words", EDITED | {"model": MINI, "query": 3}, 900),
    "flow": Picture("flow", BANK_NORM | {"special": "hide"}, 900),
    "sinks": Picture("sinks", {"text": BANKS}, 1040),
    "paths": Picture("paths", DOOR_MASK | {"paths.method": "relevance", "paths.target": "word"}, 860),
    "words": Picture("words", DOOR_MASK, 900),
    "words-heads": Picture("words", DOOR_MASK, 800, strongest_heads, '[data-testid="effects"]'),
    "compare": Picture("compare", {"text": BANKS, "beside": MINI, "layer": 0, "head": 2}, 900),
    "compare-texts": Picture("compare", EDITED | {"layer": 3, "head": 5}, 1040),
    "geometry": Picture("geometry", {"text": STORY, "model": MINI, "cloud.turn": "28,16,1.2"}, 900),
    "senses": Picture("geometry", {"text": BANKS, "geometry.part": "senses", "cloud.turn": "28,16,1.6"}, 860),
    "roofline": Picture("roofline", {}, 900),
    "tour": Picture("tour", TOUR | {"tour.chapter": "sinks"}, 980),
    "tour-dark": Picture(
        "tour", {"text": BANKS, "tour.chapter": "positions", "tour.skip": 1, "theme": "dark"}, 860
    ),
    "gallery": Picture("gallery", {}, 860),
    "save": Picture("map", BANK_NORM, 860, save_open),
}
LOOKED_AT = {
    **{name: picture for name, picture in PICTURES.items() if not name.endswith("-dark")},
    "flow-all": Picture("flow", {"text": BANKS, "flow.as": "all"}),
    "flow-through": Picture("flow", BANK_HEAD | {"flow.as": "through"}),
    "flow-long": Picture("flow", LONG | {"flow.as": "through", "flow.edges": 12}),
    **{
        f"tour-{chapter.id}": Picture("tour", {"text": BANKS, "tour.chapter": chapter.id})
        for chapter in CHAPTERS
    },
    "tour-end": Picture("tour", {"text": BANKS, "tour.chapter": "end"}),
}
"""What ``--all`` shows, at every size and in both tones."""


@contextmanager
def explorer(*options: str) -> Iterator[str]:
    """The address of an explorer with two models, in a process of its own."""
    command = [sys.executable, "-m", "unmask", "explore", "--no-browser", "--json", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"].partition("#")[0]
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def served(view: str) -> Iterator[str]:
    """Where pictures of a view are taken: search with an index of our own pages, a gallery, an explorer."""
    if view not in ("search", "gallery"):
        with explorer() as url:
            yield url
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output, texts = folder / "made", folder / "texts.txt"
        texts.write_text("\n".join((BANKS, DOOR, STORY)), encoding="utf-8")
        command = ["index", "docs"] if view == "search" else ["gallery", str(texts)]
        subprocess.run([sys.executable, "-m", "unmask", *command, "-o", output], cwd=ROOT, check=True)
        if view == "gallery":
            yield (output / "index.html").as_uri()
            return
        with explorer("--index", str(output)) as url:
            yield url


def settle(page: Page) -> None:
    """Wait until the page has settled, and still has a moment later: one answer may lead to the next."""
    while True:
        page.wait_for_function(SETTLED, timeout=PATIENCE_MS)
        page.wait_for_timeout(STILL_MS)
        if page.evaluate(SETTLED):
            return


def take(page: Page, url: str, picture: Picture) -> bytes:
    """A picture as PNG."""
    page.goto("about:blank")
    if picture.view == "gallery":
        page.goto(url)
    else:
        page.goto(url + fragment({"view": picture.view, "theme": "light"} | picture.state))
        page.wait_for_selector('[data-testid="page"][data-phase="ready"]', timeout=PATIENCE_MS)
        settle(page)
        picture.act(page)
        settle(page)
    if picture.at is not None:
        page.locator(picture.at).first.evaluate("element => element.scrollIntoView({block: 'start'})")
    return page.screenshot(animations="disabled")


def smaller(png: bytes) -> bytes:
    """The same without loss as WebP, under `MOST_BYTES`."""
    into = BytesIO()
    Image.open(BytesIO(png)).convert("RGB").save(into, "WEBP", lossless=True, quality=100, method=6)
    size = len(into.getvalue())
    if size > MOST_BYTES:
        raise SystemExit(f"a picture is {size:,} bytes and may have {MOST_BYTES:,}")
    return into.getvalue()


def shoot(browser: Browser, url: str, picture: Picture, size: tuple[int, int]) -> bytes:
    """A picture of one size in a page of its own; what the page complains of ends the work."""
    wrong: list[str] = []
    origin = url.partition("?")[0]
    light_or_dark = str(picture.state.get("theme", "light"))
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if light_or_dark == "dark" else "light",
    )
    page.route("**", lambda to: to.continue_() if to.request.url.startswith(origin) else to.abort())
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    png = take(page, url, picture)
    page.close()
    if wrong:
        raise SystemExit(f"the page reported an error: {wrong[0]}")
    return png


def takes(picture: Picture, name: str, all_sizes: bool) -> Iterator[tuple[str, Picture, tuple[int, int]]]:
    """Every file of a picture: its name, what it shows, its width and height."""
    if not all_sizes:
        yield name, picture, (WIDTH, picture.height)
        return
    for theme in ("light", "dark"):
        shown = replace(picture, state=picture.state | {"theme": theme})
        for of, size in SIZES.items():
            yield f"{name}-{of}-{theme}", shown, size


def main() -> None:
    """Take the pictures that are named, or all."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("names", nargs="*", help="which, without an ending; all if none is named")
    ask.add_argument("--all", action="store_true", help="at three sizes, light and dark")
    ask.add_argument("--out", type=Path, help="the folder")
    asked = ask.parse_args()
    known = LOOKED_AT if asked.all else PICTURES
    if unknown := [name for name in asked.names if name not in known]:
        ask.error(f"there is no picture {unknown[0]}; there are {', '.join(known)}")
    out = asked.out or (ALL_OUT if asked.all else OUT)
    out.mkdir(parents=True, exist_ok=True)
    chosen = {name: known[name] for name in asked.names or known}
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, BROWSERS)), None), args=["--no-sandbox"]
        )
        for view in ("", "search", "gallery"):
            of_view = {
                name: picture
                for name, picture in chosen.items()
                if picture.view == view or (not view and picture.view not in ("search", "gallery"))
            }
            if not of_view:
                continue
            with served(view) as url:
                for name, picture in of_view.items():
                    for file, shown, size in takes(picture, name, asked.all):
                        image = smaller(shoot(browser, url, shown, size))
                        (out / f"{file}.webp").write_bytes(image)
                        print(f"{file}: {len(image) / 1000:.0f} kB", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
