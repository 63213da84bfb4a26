"""``unmask report``: one file, whole or not at all."""

import base64
import io
import json
import re

import numpy as np
import pytest

from tests.explorer.conftest import TEXT
from tests.support.explorable import FakeModel
from unmask.cli.look.report import report
from unmask.cli.options import RunOptions
from unmask.errors import InvalidRequest, UnmaskError
from unmask.explorer.page import OF_A_TEXT
from unmask.explorer.wire.binary import unpack


def saved(path):
    page = path.read_text()
    return json.loads(page.split('id="unmask-saved">')[1].split("</script>")[0])


def folder(model):
    return str(model.checkpoint.source.folder)


def test_a_report_holds_the_numbers_of_the_model(model, tmp_path, capsys):
    path = tmp_path / "report.html"
    report(TEXT, output=path, model=[folder(model)], layer=1, head=2, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["bytes"] == path.stat().st_size
    assert printed["models"] == [model.name]
    assert tuple(printed["views"]) == ("map", *(view for view in OF_A_TEXT if view != "map"))
    kept = saved(path)
    answers = kept["answers"]
    assert {path for path, answer in answers.items() if answer["status"] != 200} <= {
        "bank?model=0&word=bank",
        "bank/cloud?model=0&word=bank&method=pca&basis=shared",
    }
    assert "layer=1" in kept["hash"]
    view = model.attention(TEXT)
    count = len(view)
    (text_id,) = {found[1] for found in map(re.compile("texts/([^/]+)$").match, answers) if found}
    for layer, head in ((0, 0), (1, 2), (2, 3)):
        answer = answers[
            f"texts/{text_id}/values/{layer}/{head}?rows=0:{count}&columns=0:{count}&weight=raw&special=show"
        ]
        values, _ = unpack(base64.b64decode(answer["data"]))
        np.testing.assert_allclose(values["values"], view.probabilities(layer, head), atol=1e-6)
    stamp = kept["stamp"]
    for part in (f"model: {model.name}", "family: bert", "torch: ", "weighting: raw attention", "UTC"):
        assert part in stamp


def test_two_models_of_one_folder_name_are_both_in_it(tmp_path):
    models = [FakeModel("model"), FakeModel("model", seed=1)]
    path = tmp_path / "two.html"
    report(TEXT, output=path, model=[folder(model) for model in models], views="map,compare", layer=1, head=2)
    kept = saved(path)
    reads = [
        json.loads(answer["data"])
        for path, answer in kept["answers"].items()
        if re.fullmatch("texts/[^/]+", path)
    ]
    assert [read["model_index"] for read in reads] == [0, 1]
    parents = [model.checkpoint.source.folder.parent.name for model in models]
    assert [read["model"] for read in reads] == [f"{parent}/model" for parent in parents]
    first, second = (kept["answers"][f"texts/{read['id']}/heads"]["data"] for read in reads)
    assert first != second


def test_standard_input_and_chosen_views(model, tmp_path, monkeypatch, capsys):
    from unmask.cli.streams import STANDARD_INPUT

    path = tmp_path / "one.html"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode()), encoding="utf-8"))
    report(STANDARD_INPUT, output=path, model=[folder(model)], views="sinks, tokens")
    said = capsys.readouterr().out
    assert str(path) in said
    answers = saved(path)["answers"]
    assert any("/sinks" in answer for answer in answers)
    assert not any("/geometry" in answer for answer in answers)
    assert "view=sinks" in saved(path)["hash"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 3}, "layer is 3.* 0 to 2"),
        ({"layer": 1, "head": 9}, "head is 9.* 0 to 3"),
        ({"token": 99}, "token is 99"),
        ({"views": "map,pictures"}, "no view 'pictures'"),
        ({"views": ""}, "no view"),
        ({"output": "report.txt"}, "name a file .html"),
        ({"output": "nowhere/report.html"}, "nowhere is not a folder"),
        ({"text": "word " * 40}, "162 tokens"),
        ({"text": "  "}, "no words"),
        ({"run": RunOptions(revision="main"), "two": True}, "revision"),
        ({"three": True}, "3 models"),
    ],
)
def test_what_cannot_be_written_is_said_and_leaves_nothing(tmp_path, options, words):
    options = dict(options)
    names = [folder(FakeModel())]
    if options.pop("two", False) or "three" in options:
        names.append(folder(FakeModel("other", seed=1)))
    if options.pop("three", False):
        names.append("unmask-mini")
    output = tmp_path / options.pop("output", "report.html")
    with pytest.raises(UnmaskError, match=words) as caught:
        report(options.pop("text", TEXT), output=output, model=names, **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_long_text_is_cut_when_asked_to_and_says_so(model, tmp_path):
    path = tmp_path / "cut.html"
    report("word " * 40, output=path, model=[folder(model)], truncation="end", views="map")
    assert "tokens: 32 of 162, the rest was truncated" in saved(path)["stamp"]
    assert "cut=1" in saved(path)["hash"]


def test_weights_of_a_model_that_is_not_put_into_the_file_are_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="the file gets no model; add --live"):
        report("the bank", output=tmp_path / "page.html", live_weights="float32")
