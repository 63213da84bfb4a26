"""What the page hands over: files that open anywhere, stamped, with the numbers that were on the screen."""

import csv
import io
import itertools
import re
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from urllib.parse import quote

import numpy as np
import pytest
from conftest import PATIENCE, TIMERS, opened, running, settle
from fake_model import FakeModel
from looking import becomes, shown
from matplotlib.image import imread

pytestmark = pytest.mark.long

TEXT = "The river bank was muddy, and another bank was 3."
PLACE = "#v=2&layer=1&head=2&query=3&text=" + quote(TEXT)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def live():
    with running([FakeModel(), FakeModel("other", seed=1)]) as server:
        yield server


@contextmanager
def opened_file(browser, path):
    """A saved file in a browser without a network: nothing but the file itself may be asked for."""
    asked, errors = [], []
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light", offline=True)
    context.add_init_script(TIMERS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    own = path.as_uri()
    assert [url for url in asked if not url.startswith((own, "data:", "blob:"))] == []
    assert [error for error in errors if "getImageData" not in error] == []


def read_png(data):
    """Pixels (height, width, channels), 0 to 255."""
    return np.rint(255 * imread(io.BytesIO(data), format="png")).astype(np.uint8)


def show(page, address, view="map"):
    page.goto(f"{address}{'' if view == 'map' else f'&view={view}'}")
    page.wait_for_selector("[data-testid=page][data-phase=ready]")
    settle(page)


def wait_for_map(page):
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')


def point(page, query, key):
    """Bring the pointer to a cell; the exact value that is read there and the color of its middle."""
    grid = page.get_by_test_id("map")
    grid.evaluate("element => element.scrollIntoView({block: 'center'})")
    box = grid.bounding_box()
    at = grid.evaluate("e => [+e.dataset.left, +e.dataset.top, +e.dataset.cell, +e.dataset.ratio]")
    left, top, cell, ratio = at
    x, y = left + (key + 0.5) * cell, top + (query + 0.5) * cell
    page.mouse.move(0, 0)
    page.mouse.move(box["x"] + x / ratio, box["y"] + y / ratio)
    page.wait_for_selector(f'[data-testid="readout"][data-query="{query}"][data-key="{key}"][data-value]')
    value = float(page.get_by_test_id("readout").get_attribute("data-value"))
    pixel = page.get_by_test_id("cells").evaluate(
        "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]", [int(x), int(y)]
    )
    return value, pixel


def saved(page, kind, folder):
    """Take a file along with the export menu; its path."""
    page.keyboard.press("e")
    page.get_by_test_id("export").wait_for()
    with page.expect_download() as download:
        page.get_by_test_id(f"save-{kind}").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    close(page)
    return path


def close(page):
    page.keyboard.press("Escape")
    page.get_by_test_id("export").wait_for(state="detached")


def test_a_web_page_shows_the_same_without_a_network(page, browser, live, tmp_path):
    show(page, live.url + PLACE)
    wait_for_map(page)
    places = [(0, 0), (3, 2), (9, 5)]
    before = [point(page, *place) for place in places]
    path = saved(page, "html", tmp_path)
    assert path.suffix == ".html"
    whole = FakeModel().attention(TEXT).probabilities(1, 2)
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        wait_for_map(file)
        after = [point(file, *place) for place in places]
        assert [color for _, color in after] == [color for _, color in before]
        assert [value for value, _ in after] == pytest.approx([value for value, _ in before], rel=1e-6)
        assert [value for value, _ in after] == pytest.approx([whole[place] for place in places], rel=1e-5)
        # Another scale is another color of the same value; the address keeps it.
        file.get_by_test_id("colors").click()
        file.get_by_text("Log", exact=True).click()
        file.wait_for_url(re.compile("scale=log"))
        settle(file)
        value, pixel = point(file, 3, 2)
        assert value == after[1][0]
        assert pixel != before[1][1]
        assert "sha256" in file.get_by_test_id("saved").text_content()
        assert file.get_by_test_id("save-html").count() == 0
        file.keyboard.press("h")
        file.get_by_text("Table", exact=True).first.wait_for()
        # Every view of a short text is in the file, and no tab leads elsewhere.
        file.keyboard.press("p")
        settle(file, "paths")
        assert file.get_by_test_id("paths-answer-problem").count() == 0
        assert file.get_by_role("tablist", name="Views").inner_text().split() == ["Look", "Measure"]
        # What is asked beyond that says how to see it.
        file.evaluate("location.hash = location.hash.replace('view=paths', 'view=roofline')")
        file.get_by_text(f"unmask explore '{TEXT}' --model fake").first.wait_for()


def test_a_saved_map_and_page_hold_every_head(page, browser, live, tmp_path):
    """In the attention that was looked at; keys lead from head to head as in the live page."""
    show(page, live.url + PLACE + "&weight=norm&special=hide")
    wait_for_map(page)
    page.keyboard.press("]")
    shown(page, 2, 2)
    wanted = point(page, 3, 2)
    page.keyboard.press("[")
    shown(page, 1, 2)
    path = saved(page, "html", tmp_path)
    with opened_file(browser, path) as file:
        file.add_init_script(MISSING)
        file.goto(path.as_uri())
        wait_for_map(file)
        file.keyboard.press("]")
        shown(file, 2, 2)
        assert point(file, 3, 2) == wanted
        for key in "n,n.x[":
            file.keyboard.press(key)
            settle(file)
        assert "not saved" not in file.get_by_test_id("stage").inner_text()
        assert file.get_by_test_id("problem").count() == 0
        assert file.evaluate("missing") == []


@pytest.mark.parametrize("view", ["map", pytest.param("head", marks=pytest.mark.slow)])
def test_keys_say_which_heads_a_saved_page_lacks(page, browser, live, tmp_path, monkeypatch, view):
    monkeypatch.setattr("unmask.explorer.export.views.ALL_HEADS_BYTES", 1)
    show(page, live.url + PLACE, view)
    settle(page, view)
    path = saved(page, "html", tmp_path)
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        settle(file, view)
        layer = file.get_by_label("layer", exact=True).locator("select")
        for key, place in (("]", "layer 2, head 2"), (",", "layer 1, head 1")):
            file.keyboard.press(key)
            said = file.get_by_test_id("problem").filter(has_text=place).inner_text()
            assert "is not in this file, which holds only that of layer 1, head 2" in said
            assert f"unmask explore '{TEXT}' --model fake" in said
            assert layer.input_value() == "1"
        layer.select_option("0")
        file.get_by_test_id("problem").filter(has_text="layer 0, head 2").wait_for()
        assert layer.input_value() == "1"
        assert "not saved" not in file.get_by_test_id("stage").inner_text()
        # What is there is shown again, and nothing is said about it.
        file.keyboard.press("f")
        settle(file, "flow")
        assert file.get_by_test_id("problem").count() == 0


def test_picture_and_vectors_are_whole_and_stamped(page, live, tmp_path):
    show(page, live.url + PLACE)
    wait_for_map(page)
    size = page.get_by_test_id("stage").bounding_box()
    svg = saved(page, "svg", tmp_path)
    root = ET.parse(svg).getroot()
    words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    # Token names are text at both axes, cells an image; the stamp is below.
    assert words.count("river") >= 2
    assert any(one.get("href", "").startswith("data:image/png") for one in root.iter(f"{SVG}image"))
    (stamp,) = [group for group in root.iter(f"{SVG}g") if "data-stamp" in group.attrib]
    said = " ".join("".join(text.itertext()) for text in stamp)
    for part in ("model: fake", "text sha256: ", "torch: ", "weighting: raw attention", "UTC"):
        assert part in said
    width, height = float(root.get("width")), float(root.get("height"))
    assert width >= size["width"]
    pixels = read_png(saved(page, "png", tmp_path).read_bytes())
    assert pixels.shape[:2] == (2 * height, 2 * width)
    # The color of a cell is in the picture as often as a cell of this size has pixels.
    cell = float(page.get_by_test_id("map").get_attribute("data-cell"))
    _, color = point(page, 3, 2)
    assert (pixels[..., :3] == color[:3]).all(axis=-1).sum() >= 0.8 * (2 * cell) ** 2


def test_every_view_makes_a_picture(page, live, tmp_path):
    show(page, live.url + PLACE)
    wait_for_map(page)
    for key, words in (
        ("k", "vocabulary entry"),
        ("h", "1.2"),
        ("f", "river"),
        ("s", "broadcast"),
        ("g", "tokens"),
    ):
        page.keyboard.press(key)
        page.get_by_test_id("stage").get_by_text(words).first.wait_for()
        root = ET.parse(saved(page, "svg", tmp_path)).getroot()
        texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
        assert any(words in text for text in texts), (key, texts)


def tables_of(lines):
    """The lines of each table of a saved CSV, the map last."""
    starts = [at for at, line in enumerate(lines) if line.startswith("# table: ")]
    found = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    found.sort(key=lambda one: one[0].startswith("# table: attention map"))
    return [[line for line in one[1:] if line] for one in found]


def map_of(lines):
    """The numbers of a whole map: a line of names, then position, query and weights."""
    return np.array([line[2:] for line in list(csv.reader(lines))[1:]], dtype=np.float64)


def test_csv_has_the_stamp_and_every_digit(page, live, tmp_path):
    show(page, live.url + PLACE)
    wait_for_map(page)
    page.get_by_test_id("table").wait_for()
    lines = saved(page, "csv", tmp_path).read_bytes().decode().split("\r\n")
    stamp = [line for line in lines if line.startswith("# ")]
    assert any(line.startswith("# model: fake") for line in stamp)
    row, of_map = tables_of(lines)
    rows = list(csv.DictReader(row))
    whole = FakeModel().attention(TEXT).probabilities(1, 2)
    np.testing.assert_allclose(map_of(of_map), whole, rtol=1e-5)
    looks = np.array([float(row["attends to"]) for row in rows], dtype=np.float32)
    seen = np.array([float(row["attended to by"]) for row in rows], dtype=np.float32)
    np.testing.assert_allclose(looks, whole[3], rtol=1e-5)
    np.testing.assert_allclose(seen, whole[:, 3], rtol=1e-5)


def test_csv_of_a_chart_is_its_table(page, live, tmp_path):
    show(page, live.url + PLACE, "sinks")
    page.get_by_test_id("sink-tokens").wait_for()
    text = saved(page, "csv", tmp_path).read_bytes().decode()
    assert len(re.findall("^# table: ", text, re.MULTILINE)) >= 2


def python_of(page):
    page.keyboard.press("e")
    found = page.get_by_test_id("python").inner_text()
    close(page)
    return found


def run(source, monkeypatch):
    """What a snippet computes, run in the checkpoint's parent folder."""
    monkeypatch.chdir(FakeModel().checkpoint.source.folder.parent)
    names = {}
    exec(compile(source, "snippet", "exec"), names)
    return names["result"]


def test_python_computes_what_is_shown(page, live, monkeypatch):
    show(page, live.url + PLACE)
    wait_for_map(page)
    value, _ = point(page, 3, 2)
    result = run(python_of(page), monkeypatch)
    assert result.shape == (12, 12) or result.shape[0] == result.shape[1]
    assert float(result[3, 2]) == pytest.approx(value, rel=1e-5)
    drawn = FakeModel().checkpoint.source.folder.parent / "map.svg"
    assert "query" in drawn.read_text()
    drawn.unlink()
    page.keyboard.press("n")
    weighted = float(run(python_of(page), monkeypatch)[3, 2])
    assert weighted != pytest.approx(value, rel=1e-3)
    becomes(lambda: point(page, 3, 2)[0], pytest.approx(weighted, rel=1e-4))


@pytest.mark.parametrize(
    ("view", "path", "array"),
    [
        ("tokens", "head/1/2", "attention_received"),
        ("map&map.by=words&special=hide&weight=norm", "words/1/2?weight=norm&special=hide", "values"),
        pytest.param("tokens&special=hide", "edges/1?special=hide", "received", marks=pytest.mark.slow),
        pytest.param("map&special=hide", "values/1/2?special=hide", "values", marks=pytest.mark.slow),
        pytest.param("flow", "edges/1", "values", marks=pytest.mark.slow),
        ("flow&special=hide&weight=norm", "edges/1?weight=norm&special=hide", "values"),
        ("paths", "rollout?token=3&fusion=mean", "values"),
        ("paths&paths.method=relevance", "relevance?token=3&target=word", "by_layer"),
        ("words", "fill?token=3&top=8", None),
    ],
)
def test_python_of_other_views_computes_the_api_s_numbers(page, live, monkeypatch, view, path, array):
    from unmask.explorer import Api
    from unmask.explorer.wire.binary import unpack

    show(page, live.url + PLACE, view)
    result = run(python_of(page), monkeypatch)
    api = Api([FakeModel()])
    text_id = api.ask("texts", {"text": TEXT})["id"]
    assert api.finish(text_id, 30)
    if array is None:
        wanted = [one["probability"] for one in api.ask(f"texts/{text_id}/{path}")["predictions"]]
    else:
        wanted = unpack(api.answer("GET", f"texts/{text_id}/{path}").data)[0][array]
        wanted = wanted[2] if array == "received" else wanted
    api.close()
    np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-4, atol=1e-7)


PAIRED = "bank money"


def pairs_of_views():
    """Every view and every kind of rows once in the default run."""
    views = ("map", "map&map.by=words", "flow", "flow&flow.as=all")
    kinds = ("", "&special=hide", "&pair.rows=renormalized", "&special=hide&weight=norm")
    first = {("map", kinds[2]), (views[1], kinds[0]), ("flow", kinds[3]), (views[3], kinds[1])}
    for view, rows in itertools.product(views, kinds):
        yield pytest.param(view, rows, marks=() if (view, rows) in first else pytest.mark.slow)


@pytest.mark.parametrize(("view", "rows"), list(pairs_of_views()))
def test_python_of_a_pair_computes_what_is_between_its_texts(page, live, monkeypatch, view, rows):
    """The snippet's numbers are those of the page: of the map's cells, of the flow's lines."""
    show(page, live.url + PLACE + f"&pair={PAIRED}&pair.edges=ba&flow.edges=2&flow.least=0{rows}", view)
    result = run(python_of(page), monkeypatch)
    if view.startswith("flow"):
        layers = result if "all" in view else [result]
        listed = [one[..., :2].reshape(-1) for one in layers]
        page.get_by_test_id("all-edges-twin").click()
        cells = page.locator("table tbody tr").evaluate_all(
            "rows => rows.map(row => +row.lastElementChild.dataset.value)"
        )
        wanted = np.sort(np.concatenate([one[one > 0] for one in listed]))
        np.testing.assert_allclose(np.sort(cells)[::-1][:40], wanted[::-1][:40], rtol=1e-4)
        return
    assert result.shape[0] == result.shape[1]
    queries, keys = np.nonzero(result)
    count = len(result)
    # Queries of the second text, keys of the first; special tokens are of neither.
    assert queries.min() > keys.max() + 1
    assert queries.max() == count - 2
    if "renormalized" in rows:
        np.testing.assert_allclose(result[queries.min() : count - 1].sum(-1), 1, rtol=1e-5)
    at = int(queries[0]), int(keys[0])
    becomes(lambda: point(page, *at)[0], pytest.approx(float(result[at]), rel=1e-4))


MISSING = """
(() => {
    const parse = JSON.parse;
    window.missing = [];
    JSON.parse = (...given) => {
        const value = parse(...given);
        if (value?.answers) value.answers = new Proxy(value.answers, {
            get: (answers, path) => {
                if (!(path in answers)) window.missing.push(path);
                return answers[path];
            },
        });
        return value;
    };
})()
"""
"""Keeps the paths that a saved page looks for among its answers and does not find."""


def test_a_report_is_whole_in_every_view(browser, tmp_path):
    """The page asks for nothing but what Python put into the file."""
    from unmask.cli.look.report import report
    from unmask.explorer.page import SAVED, VIEWS

    other = FakeModel("other", seed=1).checkpoint.source.folder
    path = tmp_path / "report.html"
    models = [str(FakeModel().checkpoint.source.folder), str(other)]
    keys = {view.id: view.key for view in VIEWS if view.id in SAVED and view.id != "map"}
    # Characters that an address may spell in more than one way.
    report(f"{TEXT} ~*+'", output=path, model=models, head=2, token=3, views=",".join(("map", *keys)))
    with opened_file(browser, path) as file:
        file.add_init_script(MISSING)
        file.goto(path.as_uri())
        wait_for_map(file)
        for view, key in keys.items():
            file.keyboard.press(key)
            settle(file, view)
            stage = file.get_by_test_id("stage").inner_text()
            assert "not saved" not in stage, (key, stage)
            assert len(stage) > 200
        file.keyboard.press("m")
        for _ in range(2):
            file.keyboard.press("]")
        shown(file, 2, 2)
        whole = FakeModel().attention(f"{TEXT} ~*+'").probabilities(2, 2)
        becomes(lambda: point(file, 4, 4)[0], pytest.approx(float(whole[4, 4]), rel=1e-5))
        assert sorted(set(file.evaluate("missing"))) == []


def test_saved_text_cannot_become_a_script(browser, tmp_path):
    """Words that look like HTML stay words."""
    text = "a </script><script>document.title='gone'</script> bank <!-- <script> was"
    with running(FakeModel(max_tokens=64)) as server, opened(browser, color_scheme="light") as page:
        show(page, server.url + "#v=2&text=" + quote(text))
        wait_for_map(page)
        path = saved(page, "html", tmp_path)
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        wait_for_map(file)
        assert "</script><script>" in file.get_by_test_id("strip").inner_text()
        assert file.title() != "gone"
