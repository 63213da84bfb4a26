"""Make the pictures of docs/explore.md: every view of the real page, in headless Chromium.

    python scripts/pictures.py                     all of them, into docs/pictures/explorer
    python scripts/pictures.py map words --out DIR  some, somewhere else

Needs the extras ``dev`` and ``explorer``, and a Chromium. The page may reach its own server and nothing else.
The picture of length scaling measures for two minutes and more, and nothing else should run then.
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
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "pictures" / "explorer"
WIDTH = 1340
COLORS = 160
MOST_BYTES = 150_000
PATIENCE_MS = 300_000
STILL_MS = 1200

BANKS = "The river bank was muddy, so she went to the bank for a loan."
DOOR = "The old man opened the door and went into the house."
DEFAULT, MINI = "sentence-transformers/all-MiniLM-L6-v2", "unmask-mini"


def document() -> str:
    """A text of some thousand tokens: pages of our own."""
    pages = ("geometry", "scaling", "evaluate", "bench")
    return "\n\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in pages)


def measured(page: Page) -> None:
    """Wait until all layers of the texts are there."""
    page.get_by_test_id("progress").wait_for(state="detached", timeout=PATIENCE_MS)


def nothing(page: Page) -> None:
    """Leave the page as it is."""


def measure_scaling(page: Page) -> None:
    """Measure for some minutes, and wait for the end."""
    page.locator('[data-testid="wall-settings"] select').select_option(index=1)
    page.get_by_label("Time limit in seconds").fill("150")
    page.get_by_test_id("wall-start").click()
    page.wait_for_selector('[data-testid="wall"][data-phase="done"]', timeout=PATIENCE_MS)


def whole_text(page: Page) -> None:
    """Give the document to the page."""
    page.get_by_test_id("text").fill(document())
    page.get_by_test_id("read").click()
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])', timeout=PATIENCE_MS)
    measured(page)
    # A new text is shown whole; a chosen cell is brought just into sight, and from there to the middle.
    page.evaluate("part => { location.hash += part }", "&zoom=5&query=3126&key=3129")
    page.wait_for_timeout(STILL_MS)
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
LONG = {"model": MINI, "layer": 3, "head": 1}
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
PICTURES = {
    "search": Picture("search", QUESTION, 960),
    "search-dark": Picture("search", QUESTION | {"search.mode": "bm25", "theme": "dark"}, 860),
    "tokens": Picture("tokens", BANK_HEAD, 900),
    "heads": Picture("heads", {"text": BANKS}, 900),
    "map": Picture("map", BANK_NORM, 1120),
    "map-dark": Picture("map", BANK_NORM | {"theme": "dark"}, 1120),
    "map-long": Picture("map", LONG, 1080, whole_text),
    "flow": Picture("flow", BANK_NORM | {"flow.as": "through"}, 900),
    "sinks": Picture("sinks", {"text": BANKS}, 1040),
    "paths": Picture("paths", DOOR_MASK | {"paths.method": "relevance", "paths.target": "word"}, 860),
    "words": Picture("words", DOOR_MASK, 900),
    "words-heads": Picture("words", DOOR_MASK, 800, strongest_heads, '[data-testid="effects"]'),
    "compare": Picture("compare", {"text": BANKS, "beside": MINI, "layer": 0, "head": 2}, 900),
    "geometry": Picture("geometry", {"text": STORY, "model": MINI}, 900),
    "senses": Picture("geometry", {"text": BANKS, "geometry.part": "senses"}, 860),
    "scaling": Picture("wall", {}, 1100, measure_scaling),
    "tour": Picture("tour", {"text": BANKS, "tour.chapter": "sinks"}, 860),
    "tour-dark": Picture("tour", {"text": BANKS, "tour.chapter": "positions", "theme": "dark"}, 860),
    "save": Picture("map", BANK_NORM, 860, save_open),
}


def of_index(name: str) -> bool:
    """Whether a picture shows the search of an index; the others show an explorer without one."""
    return PICTURES[name].view == "search"


@contextmanager
def indexed() -> Iterator[Path]:
    """An index of our own pages."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "docs-index"
        subprocess.run([sys.executable, "-m", "unmask", "index", "docs", "-o", index], cwd=ROOT, check=True)
        yield index


@contextmanager
def served(*options: str) -> Iterator[str]:
    """The address of an explorer with two models, in a process of its own."""
    command = [sys.executable, "-m", "unmask", "explore", "--no-browser", "--json", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGINT)


def take(page: Page, url: str, picture: Picture) -> bytes:
    """A picture as PNG."""
    state = {"v": 2, "view": picture.view, "theme": "light"} | picture.state
    page.set_viewport_size({"width": WIDTH, "height": picture.height})
    page.goto("about:blank")
    page.goto(f"{url}#{urlencode(state)}")
    page.wait_for_load_state("networkidle", timeout=PATIENCE_MS)
    picture.act(page)
    page.wait_for_load_state("networkidle", timeout=PATIENCE_MS)
    page.wait_for_timeout(STILL_MS)
    if picture.at is not None:
        page.locator(picture.at).first.evaluate("element => element.scrollIntoView({block: 'start'})")
    return page.screenshot(animations="disabled")


def smaller(png: bytes) -> bytes:
    """The same with a palette, under `MOST_BYTES`."""
    image, colors = Image.open(BytesIO(png)).convert("RGB"), COLORS
    while True:
        into = BytesIO()
        image.quantize(colors, dither=Image.Dither.NONE).save(into, "PNG", optimize=True)
        if len(into.getvalue()) < MOST_BYTES:
            return into.getvalue()
        if colors < 16:
            raise SystemExit(f"a picture is {len(into.getvalue()):,} bytes and may have {MOST_BYTES:,}")
        colors //= 2


def main() -> None:
    """Take the pictures that are named, or all."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("names", nargs="*", choices=[*PICTURES, []], help="which; all if none is named")
    ask.add_argument("--out", type=Path, default=OUT)
    chosen = ask.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    names = chosen.names or list(PICTURES)
    plain = [name for name in names if not of_index(name)]
    if plain:
        with served() as url:
            shoot(url, plain, chosen.out)
    if searches := [name for name in names if of_index(name)]:
        with indexed() as index, served("--index", str(index)) as url:
            shoot(url, searches, chosen.out)


def shoot(url: str, names: list[str], out: Path) -> None:
    """Take pictures of one explorer."""
    wrong: list[str] = []
    with sync_playwright() as play:
        own = url.partition("/?")[0]
        url = url.partition("#")[0]
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        # Models load behind the first page.
        take(browser.new_page(), url, PICTURES["map"])
        for name in names:
            page = browser.new_page()
            page.route("**", lambda to: to.continue_() if to.request.url.startswith(own) else to.abort())
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            png = smaller(take(page, url, PICTURES[name]))
            (out / f"{name}.png").write_bytes(png)
            print(f"{name}: {len(png) / 1000:.0f} kB", *wrong, flush=True)
            page.close()
            if wrong:
                raise SystemExit("the page reported an error")
        browser.close()


if __name__ == "__main__":
    main()
