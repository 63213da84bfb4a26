"""The diagram of an architecture, and two architectures compared: from specs, commands and files."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.support.command import assert_one_sentence, run_here
from tests.support.heads import spec_with_heads
from tests.support.places import REPOSITORY
from tests.support.specs import SPECS
from unmask.errors import InvalidRequest
from unmask.families import FAMILIES
from unmask.interpret.figures.architecture import architecture_figure, save_architecture
from unmask.spec import MultiVector, PlainFeedForward, PooledVector
from unmask.spec.diagram import architecture_drawing, architecture_svg
from unmask.spec.diagram.drawing import Box, Label, Line, text_width, wrap
from unmask.spec.diagram.layout import DIFFERENT
from unmask.spec.elmo import ElmoSpec
from unmask.spec.shapes import parameter_count
from unmask.weights.read.architecture import compare_architectures, find_architecture_of

PUBLISHED = {one.name: one.pretraining or one.spec for family in FAMILIES for one in family.published}
MODERN_NAME = "answerdotai/ModernBERT-base"
BERT, MODERN = PUBLISHED["google-bert/bert-base-uncased"], PUBLISHED[MODERN_NAME]
SVG = "{http://www.w3.org/2000/svg}"
LONG = "an-organization-with-a-long-name/and-a-model-whose-name-does-not-fit-on-any-line-of-a-column-v2.5"


def labels(drawing):
    return [shape for shape in drawing.shapes if isinstance(shape, Label)]


def words(drawing):
    return " ".join(label.text for label in labels(drawing))


# --- drawing ---------------------------------------------------------------------------------------------


def assert_fits(drawing):
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box) and shape.name]
    inside = 0
    for label in labels(drawing):
        left, right = label.left, label.left + text_width(label.text, label.size, bold=label.bold)
        assert left >= 0, label
        assert right <= drawing.width, label
        assert label.size <= label.y <= drawing.height, label
        if label.inside:
            # Two diagrams beside each other may have boxes of one name.
            assert any(
                box.x <= left
                and right <= box.x + box.width
                and box.y + 0.7 * label.size <= label.y <= box.y + box.height
                for box in boxes
                if box.name == label.inside
            ), label
            inside += 1
    assert inside > 5
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            assert 0 <= shape.x <= shape.x + shape.width <= drawing.width
            assert 0 <= shape.y <= shape.y + shape.height <= drawing.height


@pytest.mark.parametrize("name", [*PUBLISHED, *SPECS])
def test_text_fits_its_boxes(name):
    spec = PUBLISHED[name] if name in PUBLISHED else spec_with_heads(name)
    assert_fits(architecture_drawing(spec, names=(name,)))


def test_text_fits_with_long_names_and_outputs():
    output = MultiVector(skipped_words=("a",) * 50, query_tokens=32, document_tokens=180)
    assert_fits(architecture_drawing(BERT, MODERN, names=(LONG, LONG), outputs=(PooledVector(), output)))
    assert_fits(architecture_drawing(ElmoSpec(), BERT, names=("elmo", "bert")))
    assert_fits(architecture_drawing(ElmoSpec(width=123_456, cell_width=1_234_567, layers=12)))


def test_widths_are_those_of_the_font():
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    for bold in (False, True):
        font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=100)
        for text in ("Self-attention", "768 to 3,072 × 12 (θ ±)", "AVAWiM{}@~"):
            width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
            assert text_width(text, 100, bold=bold) == pytest.approx(width, rel=0.06)
            assert text_width(text, 100, bold=bold) > 0.98 * width


def test_lines_break_at_spaces_and_inside_of_long_words():
    assert list(wrap("one two three", 1000, 7)) == ["one two three"]
    broken = list(wrap("one two " + "x" * 60, 80, 7))
    assert broken[0] == "one two"
    assert "".join(broken[1:]) == "x" * 60
    assert all(text_width(line, 7) <= 80 for line in broken)
    assert list(wrap("", 80, 7)) == []


def test_what_is_drawn_of_known_encoders():
    bert, modern = (words(architecture_drawing(spec)) for spec in (BERT, MODERN))
    assert "30,522 × 768" in bert
    assert "× 12" in bert
    assert "post-norm" in bert
    assert "768 to 3,072 to 768 GELU, biases" in bert
    assert "pooler: first token, dense 768, tanh" in bert
    for part in ("× 22", "pre-norm", "GeGLU, no biases", "layers 0, 3, 6 ... 21", "the other 14 layers"):
        assert part in modern
    assert "not in layer 0" in modern
    assert "token types" not in modern.lower()
    deberta = words(architecture_drawing(PUBLISHED["microsoft/deberta-v3-base"]))
    assert "table 512 × 768 (distances)" in deberta
    albert = words(architecture_drawing(PUBLISHED["albert/albert-base-v2"]))
    assert "128 to 768, with bias" in albert
    assert "all layers share one set of weights" in albert
    assert "separate projections" in words(
        architecture_drawing(PUBLISHED["allenai/longformer-base-4096"])
    ).replace("  ", " ")
    assert "convolution over 3 tokens" in words(
        architecture_drawing(PUBLISHED["microsoft/deberta-v2-xlarge"])
    )
    assert "Forward LSTM" in words(architecture_drawing(ElmoSpec()))
    assert "mean pooling, not normalized" in words(
        architecture_drawing(replace(BERT, heads=()), outputs=(PooledVector(),))
    )


def test_the_strip_shows_which_layer_has_which_attention():
    drawing = architecture_drawing(MODERN)
    cells = {
        int(shape.name.split()[1]): shape
        for shape in drawing.shapes
        if isinstance(shape, Box) and shape.name.startswith("layer ")
    }
    assert sorted(cells) == list(range(22))
    full = {number for number, cell in cells.items() if cell.fill == cells[0].fill}
    assert full == set(range(0, 22, 3))
    assert [cells[n].y for n in range(22)] == sorted((cells[n].y for n in range(22)), reverse=True)


def test_layers_that_differ_in_more_than_attention_are_blocks_of_their_own():
    wide = replace(BERT.layers[0], feedforward=PlainFeedForward(128, "relu"))
    spec = replace(BERT, layers=(*BERT.layers[:4], wide))
    drawing = architecture_drawing(spec)
    assert {"× 4", "× 1"} <= {label.text for label in labels(drawing)}
    assert "768 to 128 to 768" in words(drawing)
    assert_fits(drawing)


def test_of_two_encoders_only_what_differs_is_colored():
    def colored(one, other):
        drawing = architecture_drawing(one, other)
        boxes = [shape for shape in drawing.shapes if isinstance(shape, Box)]
        return [shape.name for shape in boxes if shape.fill == DIFFERENT[0]]

    assert colored(BERT, BERT) == []
    fewer = replace(BERT, layers=BERT.layers[:6])
    assert colored(BERT, fewer) == []
    relu = replace(BERT.layers[0], feedforward=PlainFeedForward(3072, "relu"))
    assert colored(BERT, replace(BERT, layers=(relu,) * 12)) == ["block 0: Feed-forward 1"] * 2
    assert len(colored(BERT, MODERN)) > 10
    both = architecture_drawing(BERT, replace(BERT, layers=(relu,) * 12))
    marked = {label.text for label in labels(both) if label.color == "#9c3f00"}
    assert marked == {"GELU, biases", "ReLU, biases"}
    marked = {label.text for label in labels(architecture_drawing(BERT, fewer)) if label.color == "#9c3f00"}
    assert marked == {"× 12", "× 6"}


# --- files -----------------------------------------------------------------------------------------------


def test_svg_has_every_text_and_escapes_names():
    drawing = architecture_drawing(BERT, names=("a <b> & 'c' \"d\"",))
    root = ElementTree.fromstring(architecture_svg(BERT, names=("a <b> & 'c' \"d\"",)))
    found = [one.text for one in root.iter(f"{SVG}text")]
    assert found == [label.text for label in labels(drawing)]
    assert "a <b> & 'c' \"d\"" in found
    assert root.get("width") == "234pt"
    assert len(list(root.iter(f"{SVG}polyline"))) == sum(isinstance(one, Line) for one in drawing.shapes)


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_files_are_what_they_say_and_the_same_twice(tmp_path, kind):
    for name in ("one", "two"):
        save_architecture(tmp_path / f"{name}.{kind}", SPECS["rotary-windows"], names=("a",))
    content = (tmp_path / f"one.{kind}").read_bytes()
    assert content == (tmp_path / f"two.{kind}").read_bytes()
    assert content.startswith({"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}[kind])


def test_a_figure_is_as_large_as_its_drawing():
    figure = architecture_figure(BERT, MODERN)
    drawing = architecture_drawing(BERT, MODERN)
    assert figure.get_size_inches() * 72 == pytest.approx([drawing.width, drawing.height])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == [label.text for label in labels(drawing)]


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(InvalidRequest, match="one encoder or two"):
        architecture_drawing()
    with pytest.raises(InvalidRequest, match="2 and 1 names"):
        architecture_drawing(BERT, BERT, names=("a",))
    with pytest.raises(InvalidRequest, match="outputs"):
        architecture_drawing(BERT, outputs=(None, None))
    with pytest.raises(InvalidRequest, match="give an EncoderSpec"):
        architecture_drawing("bert")
    with pytest.raises(InvalidRequest, match="ends in"):
        save_architecture(tmp_path / "a.jpg", BERT)


# --- comparison ------------------------------------------------------------------------------------------


def rows(a, b):
    found = compare_architectures(find_architecture_of(a), find_architecture_of(b))
    return {row.name: row for row in found.rows}


def test_rows_of_two_architectures():
    found = rows("bert-base-uncased", "answerdotai/ModernBERT-base")
    assert (found["layers"].a, found["layers"].b) == (12, 22)
    assert found["layers"].differs
    assert not found["width"].differs
    assert found["masking"].a.startswith("15 %")
    assert found["masking"].b.startswith("30 %")
    assert "layers 0, 3, 6 ... 21" in found["attention pattern"].b
    assert found["positions"].a == "learned, added to the embedding"
    assert found["longest text, tokens"].a == 512
    assert found["longest text, tokens"].b == "unlimited"
    assert found["longest training text"].b == 8192
    assert found["biases"].b == "attention: none, feed-forward: none, norms: none"
    assert found["parameters"].a == parameter_count(BERT)
    assert found["of embeddings"].a == (30_522 + 512 + 2 + 2) * 768
    assert found["of each layer"].a == 7_087_872
    same = rows("default", "default")
    assert not any(row.differs for row in same.values())
    assert same["output"].a == "mean pooling, normalized"
    assert same["masking"].a is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_architecture_has_rows(name):
    one = find_architecture_of(name)
    found = {row.name: row.a for row in compare_architectures(one, one).rows}
    assert found["parameters"] == parameter_count(one.spec)
    assert (found["pretraining objective"] is None) == (not one.spec.heads)


# --- command ---------------------------------------------------------------------------------------------


def test_inspect_draws_and_still_shows_the_checkpoint(tmp_path):
    ran = run_here("inspect", "unmask-mini", "--picture", tmp_path / "a.svg")
    assert ran.code == 0
    assert ran.err == f"{tmp_path / 'a.svg'}: the architecture of unmask-mini\n"
    assert "checksums" in ran.out
    written = (tmp_path / "a.svg").read_text()
    assert re.search(r">layers 0, 3<", written)
    ran = run_here("inspect", "ettin-encoder-17m", "--picture", tmp_path / "b.svg")
    assert "nothing was downloaded" in ran.out
    assert "ettin-encoder-17m" in (tmp_path / "b.svg").read_text()


def test_inspect_compares(tmp_path):
    picture = tmp_path / "two.svg"
    ran = run_here("inspect", "default", "--against", "unmask-mini", "--picture", picture)
    assert ran.code == 0
    lines = {line.split("  ")[0]: line for line in ran.out.splitlines()}
    assert "≠" in lines["vocabulary"]
    assert "30,522" in lines["vocabulary"]
    assert "≠" not in lines["layers"]
    assert "rows differ" in ran.out
    assert ElementTree.parse(picture).getroot().get("width") == "486pt"
    ran = run_here("inspect", "default", "--against", "unmask-mini", "--json")
    answer = json.loads(ran.out)
    assert answer["b"] == "unmask-mini"
    (layers,) = (row for row in answer["rows"] if row["name"] == "layers")
    assert layers == {"name": "layers", "a": 6, "b": 6, "differs": False}


def test_an_elmo_is_drawn(tmp_path):
    from tests.parity.test_elmo import SMALL, random_elmo
    from unmask.weights.elmo_files import save_elmo

    save_elmo(random_elmo(SMALL), tmp_path / "elmo")
    ran = run_here("inspect", tmp_path / "elmo", "--picture", tmp_path / "elmo.svg")
    assert (ran.code, ran.out) == (0, "")
    assert "Backward LSTM" in (tmp_path / "elmo.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("default", "--picture", "a.jpg"), "ends in .svg, .pdf or .png"),
        (("default", "--picture", "no/folder/a.svg"), "is not a folder"),
        (("default", "--against", "unmask-mini", "--tensors"), "--tensors lists one checkpoint"),
        (("default", "--against", "no-such-model"), "no-such-model is not a folder"),
        (("no-such-model", "--picture", "a.svg"), "no-such-model is not a folder"),
    ],
)
def test_mistakes_are_one_sentence(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run_here("inspect", *arguments)
    assert_one_sentence(ran, said)
    assert list(tmp_path.iterdir()) == []


# --- docs ------------------------------------------------------------------------------------------------


def test_the_page_about_models_runs_and_its_picture_is_current(tmp_path, monkeypatch):
    docs = REPOSITORY / "docs"
    page = (docs / "models.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(block, "models.md", "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"mini.svg", "both.svg"}
    assert "vocabulary" in names["differing"]
    drawn = architecture_svg(BERT, MODERN, names=("google-bert/bert-base-uncased", MODERN_NAME))
    assert (docs / "pictures" / "architectures.svg").read_text(encoding="utf-8") == drawn
