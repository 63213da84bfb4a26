"""Figures for papers: the numbers of the model, text as text, and the same bytes twice."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import FakeModel
from unmask.errors import InvalidRequest, UnmaskError
from unmask.interpret.figures.attention import (
    _uniform_distance,
    arcs_figure,
    heads_figure,
    layers_figure,
    map_figure,
)
from unmask.interpret.figures.paper import COLUMN, PAGE, new_figure, palette, save_figure
from unmask.spec import CausalAttention, FullAttention, SlidingWindow

TEXT = "the $cat$ sat on the <mat> & a bank"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def view():
    return FakeModel().attention(TEXT)


def texts_of(path):
    return ["".join(one.itertext()).strip() for one in ElementTree.parse(path).iter(f"{SVG}text")]


def test_cells_of_the_svg_are_the_probabilities(view, tmp_path):
    path = tmp_path / "map.svg"
    figure = map_figure(view, 1, 2)
    weights = view.probabilities(1, 2)
    (mesh,) = figure.axes[0].collections
    np.testing.assert_array_equal(np.asarray(mesh.get_array()), weights)
    save_figure(figure, path)
    root = ElementTree.parse(path).getroot()
    assert root.get("width") == f"{COLUMN * 72:g}pt"
    (cells,) = (one for one in root.iter(f"{SVG}g") if one.get("id") == "QuadMesh_1")
    fills = re.findall(r"fill: #([0-9a-f]{6})", ElementTree.tostring(cells, encoding="unicode"))
    values = np.array([[int(one[at : at + 2], 16) for at in (0, 2, 4)] for one in fills])
    indexes = np.minimum(255, np.floor(256 * np.sqrt(weights.ravel()))).astype(int)
    assert (values == palette("light")[indexes]).all()
    assert len({tuple(one) for one in values.tolist()}) > 20


def test_another_map_of_the_head_is_drawn_in_its_place(view):
    part = np.triu(view.probabilities(1, 2))
    (mesh,) = map_figure(view, 1, 2, map_NN=part).axes[0].collections
    np.testing.assert_array_equal(np.asarray(mesh.get_array()), part)


def test_text_stays_text_and_no_word_is_a_formula(view, tmp_path):
    save_figure(map_figure(view, 0, 0, width=PAGE), tmp_path / "map.svg")
    written = texts_of(tmp_path / "map.svg")
    for at in range(len(view)):
        assert written.count(view.encoding.surface(at)) >= 2
    assert {"$", "&", "query", "key", "attention"} <= set(written)
    save_figure(layers_figure({"$b$": [1.0], "c": [2.0]}, "cost in $ or $"), tmp_path / "cost.svg")
    assert {"$b$", "cost in $ or $"} <= set(texts_of(tmp_path / "cost.svg"))
    save_figure(map_figure(view, 0, 0), tmp_path / "map.pdf")
    pdf = (tmp_path / "map.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_figure_is_the_same_file(view, tmp_path, kind, monkeypatch):
    for name, when in (("a", "1"), ("b", "1000000000")):
        monkeypatch.setattr("time.time", lambda when=when: float(when))
        save_figure(map_figure(view, 0, 1), tmp_path / f"{name}.{kind}")
    content = (tmp_path / f"a.{kind}").read_bytes()
    assert content == (tmp_path / f"b.{kind}").read_bytes()
    assert b"CreationDate" not in content
    assert b"dc:date" not in content


def test_arcs_are_the_edges_between_words(view):
    weights, special = view.probabilities(2, 1), view.encoding.special
    figure = arcs_figure(view, 2, 1, least=0.05)
    drawn = {tuple(map(int, arc.get_gid().split()[1:])): arc for arc in figure.axes[0].patches}
    words = np.flatnonzero(~special)
    expected = {(i, j) for i in words for j in words if i != j and weights[i, j] >= 0.05}
    assert set(drawn) == expected
    assert len(expected) > 5
    for (query, key), arc in drawn.items():
        assert arc.get_alpha() == pytest.approx(weights[query, key])
        assert arc.center == ((query + key) / 2, 0)
        assert arc.width == abs(query - key)


def test_lines_are_the_values_of_the_layers(view, tmp_path):
    entropies = [float(layer.entropy_HN.mean()) for layer in view.statistics().layers]
    figure = layers_figure({"entropy": entropies, "half": [e / 2 for e in entropies]}, "nats")
    lines = figure.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [entropies, [e / 2 for e in entropies]]
    states = layers_figure({"norm": [1.0, 2.0, 3.0, 4.0]}, "norm", first="emb.")
    save_figure(states, tmp_path / "a.svg")
    assert [one for one in texts_of(tmp_path / "a.svg") if one in ("emb.", "0", "2", "3")] == [
        "emb.",
        "0",
        "2",
    ]


def test_heads_by_layer_are_those_of_the_statistics(view):
    figure = heads_figure(view)
    layers = view.statistics().layers
    wanted = (
        [layer.distance_HN.mean(1) for layer in layers],
        [layer.entropy_share_HN.mean(1) for layer in layers],
        [layer.attention_received_HN.max(1) for layer in layers],
    )
    assert len(figure.axes) == 3
    for axes, values in zip(figure.axes, wanted, strict=True):
        *dots, mean = axes.lines[: len(layers) + 1]
        assert len(dots) == len(layers)
        for layer, (one, of_heads) in enumerate(zip(dots, values, strict=True)):
            np.testing.assert_allclose(one.get_ydata(), of_heads, atol=1e-6)
            assert set(one.get_xdata()) == {layer}
        np.testing.assert_allclose(mean.get_ydata(), [of_heads.mean() for of_heads in values], atol=1e-6)
    assert figure.axes[0].get_yscale() == "log"
    assert len(figure.axes[0].collections) == len(layers), "uniform attention, in every layer"


@pytest.mark.parametrize(
    "pattern",
    [FullAttention(), SlidingWindow(3), SlidingWindow(2, dilation=5), SlidingWindow(400), SlidingWindow(0)],
)
def test_the_distance_of_uniform_attention_is_that_of_its_pattern(pattern):
    at = np.arange(30)
    far = np.abs(at[:, None] - at)
    seen = np.ones_like(far, dtype=bool)
    if isinstance(pattern, SlidingWindow):
        seen = (far % pattern.dilation == 0) & (far <= pattern.radius * pattern.dilation)
    expected = ((far * seen).sum(1) / seen.sum(1)).mean()
    assert _uniform_distance(pattern, 30) == pytest.approx(expected)
    assert _uniform_distance(CausalAttention(), 30) is None


def test_names_give_way_to_positions_and_cells_to_an_image_in_a_long_text(tmp_path):
    view = FakeModel(max_tokens=512).attention("a bank " * 60)
    save_figure(map_figure(view, 0, 0), tmp_path / "long.svg")
    written = texts_of(tmp_path / "long.svg")
    assert "bank" not in written
    assert "100" in written
    assert "<image" in (tmp_path / "long.svg").read_text()


def test_what_cannot_be_drawn_is_said(view, tmp_path):
    with pytest.raises(InvalidRequest, match=r"width is 0\.1; give inches"):
        new_figure(0.1, 1)
    with pytest.raises(InvalidRequest, match=r"ends in \.svg, \.pdf or \.png"):
        save_figure(map_figure(view, 0, 0), tmp_path / "map.jpg")
    with pytest.raises(UnmaskError, match="9"):
        map_figure(view, 0, 9)
    with pytest.raises(InvalidRequest, match=rf"shape \(2, 2\); the text has {len(view)} tokens"):
        map_figure(view, 0, 0, map_NN=np.zeros((2, 2), np.float32))
    with pytest.raises(InvalidRequest, match="least is 2"):
        arcs_figure(view, 0, 0, least=2)
    with pytest.raises(InvalidRequest, match="values; give one for each layer"):
        layers_figure({"a": [1.0], "b": []}, "")
    with pytest.raises(InvalidRequest, match="at most 64"):
        arcs_figure(FakeModel(max_tokens=512).attention("a bank " * 60), 0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_look_writes_a_picture(tmp_path):
    folder, path = str(FakeModel().checkpoint.source.folder), tmp_path / "map.svg"
    options = ("look", TEXT, "-m", folder)
    assert run_here(*options, "-l", "1", "-H", "2", "--picture", str(path)).code == 0
    expected = tmp_path / "expected.svg"
    save_figure(map_figure(FakeModel().attention(TEXT), 1, 2), expected)
    assert path.read_bytes() == expected.read_bytes()
    every = tmp_path / "heads.svg"
    assert run_here(*options, "--picture", str(every)).code == 0
    save_figure(heads_figure(FakeModel().attention(TEXT)), expected)
    assert every.read_bytes() == expected.read_bytes()
    for other in (("-l", "1"), ("--overview",), ("--csv", str(tmp_path / "map.csv"))):
        refused = run_here(*options, *other, "--picture", str(path))
        assert_one_sentence(refused, "name it with --layer and --head")
    wrong = run_here(*options, "-l", "1", "-H", "2", "--picture", str(tmp_path / "map.gif"))
    assert_one_sentence(wrong, "ends in .svg, .pdf or .png")
