"""The explorer inside a notebook: messages of the page in, answers of the API out."""

import json

import pytest

from tests.explorer.conftest import TEXT
from tests.support.waiting import HANG_SECONDS

pytest.importorskip("anywidget", reason="the notebook extra is not installed")

from unmask import explore
from unmask.base import optional
from unmask.errors import InvalidRequest, MissingExtra
from unmask.explorer.wire.binary import unpack


@pytest.fixture
def widget(model, other):
    widget = explore([model, other], TEXT)
    yield widget
    widget.close()


def asked(widget, monkeypatch, method, path, body=None):
    """What the widget sends back for a question, by its handler of messages."""
    sent = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, buffers)))
    question = {"unmask": 1, "view": "a", "id": 7, "method": method, "path": path, "body": body}
    widget._handle_custom_msg(question, [])
    ((head, (data,)),) = sent
    assert (head["unmask"], head["view"], head["id"]) == (1, "a", 7)
    return head, data


def test_a_message_is_answered_with_the_api_s_bytes(widget, model, monkeypatch):
    head, data = asked(widget, monkeypatch, "POST", "texts", {"text": TEXT})
    assert (head["status"], head["type"]) == (200, "application/json")
    text_id = json.loads(data)["id"]
    assert widget.api.finish(text_id, HANG_SECONDS)
    head, data = asked(widget, monkeypatch, "GET", f"texts/{text_id}/values/1/2?rows=0:3")
    values, _ = unpack(data)
    expected = model.attention(TEXT).probabilities(1, 2, slice(0, 3))
    assert values["values"] == pytest.approx(expected, abs=1e-6)
    head, data = asked(widget, monkeypatch, "GET", "texts/none/heads")
    assert head["status"] == 404
    assert json.loads(data)["error"]["kind"] == "UnknownText"


def test_other_messages_are_not_ours(widget, monkeypatch):
    monkeypatch.setattr(widget, "send", lambda *_, **__: pytest.fail("it answered"))
    for message in ({}, {"unmask": 2}, "session", None):
        widget._handle_custom_msg(message, [])


def test_the_page_is_whole_and_asks_the_page_around_it(widget):
    assert 'name="unmask-source" content="frame"' in widget.page
    assert "/assets/" not in widget.page
    assert "default-src 'none'" in widget.page
    assert "text=The%20river" in widget.page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pair": "another"}, "without a text"),
        ({"height": 5}, "height is 5"),
        ({"model": []}, "no model"),
    ],
)
def test_what_cannot_be_shown_is_said(model, options, words):
    with pytest.raises(InvalidRequest, match=words):
        explore(**{"model": model, **options})


def test_a_missing_extra_is_said(model, monkeypatch):
    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'unmask\[notebook\]'"):
        explore(model)
