"""``unmask gallery``: a folder of saved pages and an index, written once and completed."""

import base64
import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.browser import colors
from tests.explorer.conftest import TEXT
from tests.explorer.test_report import folder, saved
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import FakeModel
from unmask.cli.look.gallery import gallery
from unmask.errors import UnmaskError
from unmask.explorer.export.gallery import Card, index_page, map_picture, shades
from unmask.explorer.wire.tiles import codes
from unmask.interpret.figures.paper import palette

pytestmark = pytest.mark.long

SECOND = "the cat sat on the mat"


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def listed(tmp_path):
    rows = [{"text": TEXT, "title": "Two <banks>"}, {"text": SECOND, "view": "map", "layer": 1, "head": 2}]
    return written(tmp_path / "texts.jsonl", rows)


def test_every_text_has_a_page_and_a_card_and_nothing_is_computed_twice(
    model, listed, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "out"
    gallery(listed, output=out, model=folder(model), json=True)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["written"], printed["kept"], len(printed["pages"])) == (2, 0, 2)
    assert {one.name for one in out.iterdir()} == {*printed["pages"], "index.html", "gallery.json"}
    first, second = (saved(out / name) for name in printed["pages"])
    assert "view=overview" in first["hash"]
    assert all(part in second["hash"] for part in ("view=map", "layer=1", "head=2"))
    page = (out / printed["pages"][0]).read_text()
    assert "<title>Two &lt;banks&gt; | unmask</title>" in page

    index = (out / "index.html").read_text()
    finding = json.loads(
        next(one for path, one in first["answers"].items() if path.endswith("/findings"))["data"]
    )
    kinds = {finding["kind"]: finding for finding in finding["findings"]}
    hero = kinds["edge"]
    assert f"layer={hero['layer']}" in first["hash"]
    assert f"head={hero['head']}&query={hero['query']}" in first["hash"]
    assert re.search(r'class="found">([^<]+)', index)[1].replace("&#x27;", "'") == hero["sentence"]
    assert re.findall(r'href="([^"]+)"', index) == printed["pages"]
    assert "<script" not in index
    assert "http" not in index.replace("http-equiv", "")
    style = re.search("<style>(.*?)</style>", index, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in index

    # Again: nothing is computed, and the index is the same to the byte.
    with monkeypatch.context() as patched:
        patched.setattr("unmask.explorer.api.Api", None)
        gallery(listed, output=out, model=folder(model), json=True)
    assert json.loads(capsys.readouterr().out)["kept"] == 2
    assert (out / "index.html").read_text() == index

    # One text goes, one comes: only that one is computed, and the page of the other is named.
    written(listed, [{"text": SECOND, "view": "map", "layer": 1, "head": 2}, {"text": "the dog"}])
    gallery(listed, output=out, model=folder(model), json=True)
    again = json.loads(capsys.readouterr().out)
    assert (again["written"], again["kept"], again["left"]) == (1, 1, [printed["pages"][0]])
    (out / again["pages"][1]).unlink()
    gallery(listed, output=out, model=folder(model), json=True)
    assert json.loads(capsys.readouterr().out)["written"] == 1
    gallery(listed, output=out, model=folder(model), overwrite=True, json=True)
    assert json.loads(capsys.readouterr().out)["written"] == 2


def test_other_weights_and_a_damaged_page_are_another_page(model, listed, tmp_path, capsys):
    body = Path(shutil.copytree(folder(model), tmp_path / "model"))
    gallery(listed, output=tmp_path / "out", model=str(body), json=True)
    pages = json.loads(capsys.readouterr().out)["pages"]
    (tmp_path / "out" / pages[0]).write_bytes((tmp_path / "out" / pages[0]).read_bytes()[:-3])
    gallery(listed, output=tmp_path / "out", model=str(body), json=True)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["written"], printed["kept"], printed["pages"]) == (1, 1, pages)
    path = body / "model.safetensors"
    save_file({name: one * 2 for name, one in load_file(path).items()}, path, {"format": "pt"})
    (body / "unmask_checksums.json").unlink(missing_ok=True)
    gallery(listed, output=tmp_path / "out", model=str(body), json=True)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["written"], sorted(printed["left"])) == (2, sorted(pages))


def test_another_head_view_or_title_is_another_page(model, tmp_path, capsys):
    rows = [{"text": "the dog", "layer": 1, "head": head} for head in (2, 3)]
    rows += [rows[0] | {"view": "map"}, {"text": "the dog"}]
    listed = written(tmp_path / "t.jsonl", rows)
    gallery(listed, output=tmp_path / "out", model=folder(model), json=True)
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert len(set(pages)) == 4
    hashes = [saved(tmp_path / "out" / name)["hash"] for name in pages]
    assert ["head=2" in one for one in hashes[:3]] == [True, False, True]
    assert ["view=map" in one for one in hashes] == [False, False, True, False]
    written(listed, [rows[0] | {"title": "A dog"}])
    gallery(listed, output=tmp_path / "out", model=folder(model), json=True)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["written"], len(printed["left"])) == (1, 4)


def test_texts_of_two_models_keep_their_order(tmp_path, capsys):
    one, other = folder(FakeModel()), folder(FakeModel("other", seed=1))
    listed = written(
        tmp_path / "t.jsonl",
        [{"text": "the dog", "model": other}, {"text": "the cat"}, {"text": "the mat", "model": other}],
    )
    gallery(listed, output=tmp_path / "out", model=one, json=True)
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert [name.rpartition("-")[0] for name in pages] == ["the-dog", "the-cat", "the-mat"]
    stamps = [saved(tmp_path / "out" / name)["stamp"] for name in pages]
    assert ["model: other;" in stamp for stamp in stamps] == [True, False, True]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": 3}', "line 2 of .*: text is 3; it must be text"),
        ('{"text": " "}', "line 2 of .*: text is ' '"),
        ('{"title": "a"}', 'line 2 of .* has no "text"'),
        ('{"text": "a", "haed": 2}', "line 2 of .* has a key 'haed'; there are text, pair,"),
        ('{"text": "a", "layer": 1}', "line 2 of .* names a layer or a head alone"),
        ('{"text": "a", "layer": true, "head": 0}', "line 2 of .*: layer is True"),
        ('{"text": "a", "view": "tour"}', "line 2 of .*: there is no view 'tour'; there are overview"),
        ("nothing", "line 2 of .* is not JSON"),
        ('{"text": "the cat"}', "line 2 of .* asks for the same page as line 1"),
    ],
)
def test_a_line_that_does_not_fit_is_named_before_a_model_is_loaded(tmp_path, line, words):
    listed = tmp_path / "t.jsonl"
    listed.write_text('{"text": "the cat"}\n' + line + "\n")
    with pytest.raises(UnmaskError, match=words) as caught:
        gallery(listed, output=tmp_path / "out", model="nowhere")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_text_that_cannot_be_read_is_named_and_the_pages_before_it_are_kept(model, tmp_path, capsys):
    listed, out = tmp_path / "t.txt", tmp_path / "out"
    listed.write_text(f"the cat\n\n{'word ' * 40}\n")
    with pytest.raises(UnmaskError, match=r"line 3 of .*t\.txt: .*162 tokens"):
        gallery(listed, output=out, model=folder(model))
    assert sorted(one.suffix for one in out.iterdir()) == [".html", ".json"]
    listed.write_text("the cat\n")
    gallery(listed, output=out, model=folder(model), json=True)
    assert json.loads(capsys.readouterr().out)["kept"] == 1
    written(tmp_path / "far.jsonl", [{"text": "the cat", "layer": 1, "head": 9}])
    with pytest.raises(UnmaskError, match=r"line 1 of .*: head is 9; .* 0 to 3"):
        gallery(tmp_path / "far.jsonl", output=tmp_path / "far", model=folder(model))
    assert list((tmp_path / "far").iterdir()) == []


def test_folders_that_are_not_a_gallery_are_left_alone(tmp_path):
    listed = tmp_path / "t.txt"
    listed.write_text("the cat\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("mine")
    assert_one_sentence(run_here("gallery", str(listed), "-o", str(tmp_path / "site")), "name another folder")
    assert (tmp_path / "site/index.html").read_text() == "mine"
    (tmp_path / "site/gallery.json").write_text("{")
    assert_one_sentence(run_here("gallery", str(listed), "-o", str(tmp_path / "site")), "is damaged")
    assert_one_sentence(run_here("gallery", str(listed), "-o", str(listed)), "cannot write")
    (tmp_path / "empty.txt").write_text("\n")
    assert_one_sentence(run_here("gallery", str(tmp_path / "empty.txt"), "-o", "x"), "has no text")
    assert_one_sentence(run_here("gallery", str(tmp_path / "none.txt"), "-o", "x"), "cannot read")


def cells_of(svg):
    """The class number of every cell that a picture draws."""
    tree = ElementTree.fromstring(svg)
    side = int(tree.get("viewBox").split()[2])
    values = np.zeros((side, side), dtype=int)
    for one in tree:
        x, y, wide = map(int, re.fullmatch(r"M(\d+) (\d+)h(\d+)v1h-\d+z", one.get("d")).groups())
        assert not values[y, x : x + wide].any()
        values[y, x : x + wide] = int(one.get("class")[1:])
    return values


def test_a_picture_is_the_map(model):
    weights = model.attention(TEXT).probabilities(1, 2)
    drawn = cells_of(map_picture(codes(weights), "<a>"))
    # Codes step by 5.6 %, so a cell between two shades may be either.
    exact = 15 * np.sqrt(weights)
    assert np.abs(drawn - exact).max() <= 0.5 + 15 * (math.sqrt(1.03) - 1)
    assert drawn.max() > 5


def test_a_large_map_is_made_smaller_by_its_largest_weights():
    weights = np.zeros((100, 100))
    weights[99, 0] = weights[3, 50] = 1.0
    drawn = cells_of(map_picture(codes(weights), ""))
    assert drawn.shape == (34, 34)
    assert sorted(zip(*(part.tolist() for part in np.nonzero(drawn)), strict=True)) == [(1, 16), (33, 0)]
    assert shades(np.array([0, 255], dtype=np.uint8)).tolist() == [0, 15]


@pytest.mark.parametrize("tone", ["light", "dark"])
def test_colors_are_those_of_the_page(tone):
    assert (palette(tone) == colors.palette(tone)).all()


def test_what_a_text_says_is_never_markup():
    evil = '"><img src=x onerror=alert(1)>'
    page = index_page(
        [Card("a.html", evil, evil + "2", evil, evil, map_picture(np.zeros((1, 1), np.uint8), evil))],
        evil,
        "1",
    )
    assert b"<img" not in page
