"""What a saved page holds, and the stamp on it."""

import json
import re

import pytest

from tests.explorer.conftest import TEXT
from unmask.errors import InvalidRequest
from unmask.explorer.export import standalone_html as saved
from unmask.explorer.export.standalone_html import saved_page
from unmask.explorer.export.views import ViewSelection, question_token, view_paths
from unmask.explorer.page import SAVED
from unmask.http.responses import Refused


@pytest.fixture(scope="module")
def get(asking):
    return lambda path: asking.api.answer("GET", path)


@pytest.fixture(scope="module")
def texts(asking):
    return [asking.measured(TEXT), asking.measured(TEXT, model=1)]


def test_every_path_of_every_view_is_answered(get, texts):
    """A path that the API does not know would be a hole in the page."""
    paths = view_paths(get, texts, ViewSelection(tuple(view for view in SAVED if view != "tour"), 1, 2, 3))
    assert len(paths) == len(set(paths))
    for path in paths:
        answer = get(path)
        # The sentences of the bank are longer than this small model reads.
        assert answer.status == (422 if path.startswith("bank") else 200), (path, answer.data)
    for part in (
        "/tiles/1/2/0/0/0?",
        "/edges/2?weight=norm&special=hide",
        "/rollout?token=3&",
        "/lens?token=3",
        "compare/",
        "bank?",
    ):
        assert any(part in path for path in paths), part


def test_flow_holds_what_its_controls_offer(get, asking):
    """Every layer by both weights, with and without special tokens, and between the texts of a pair."""
    pair = asking.measured(pair="the bank was a text")
    paths = view_paths(get, [pair], ViewSelection(("flow",), 1, 2, 3))
    found = {path.removeprefix(f"texts/{pair}/edges/") for path in paths if "/edges/" in path}
    weights = ("raw", "norm")
    assert found == {
        *(f"{at}?weight={weight}&special={special}&most=8"
          for at in range(3) for weight in weights for special in ("show", "hide")),
        *(f"{at}/pair?weight={weight}&most=8" for at in range(3) for weight in weights),
    }  # fmt: skip


def test_every_head_of_a_map_is_kept_while_that_is_little(get, texts, asking, monkeypatch):
    """All that the map offers of every head, then every head as it was looked at, then that head alone."""
    look = ViewSelection(("map",), 1, 2, 3, "norm", "hide")
    count = len(asking.json(f"texts/{texts[0]}")["tokens"])

    def kept(limit):
        monkeypatch.setattr("unmask.explorer.export.views.ALL_HEADS_BYTES", limit)
        paths = view_paths(get, texts[:1], look)
        alone = (path for path in paths if "over=" not in path)
        found = {re.search(r"/tiles/(\d/\d)/0/0/0\?pool=max&(.*)", path) for path in alone}
        return {found.groups() for found in found if found}

    every = [f"{layer}/{head}" for layer in range(3) for head in range(4)]
    kinds = [
        f"weight={weight}&special={special}" for weight in ("raw", "norm") for special in ("show", "hide")
    ]
    shown = {("1/2", kind) for kind in kinds}
    assert kept(4 << 20) == {(head, kind) for head in every for kind in kinds}
    assert kept(5 * 12 * count**2) == shown | {(head, "weight=norm&special=hide") for head in every}
    assert kept(5 * 12 * count**2 - 1) == shown
    monkeypatch.setattr("unmask.explorer.export.views.ALL_ATTENTIONS_HEADS", 11)
    assert kept(4 << 20) == shown | {(head, "weight=norm&special=hide") for head in every}


def test_the_page_of_every_head_is_kept_while_that_is_little(get, texts, monkeypatch):
    def kept():
        paths = view_paths(get, texts[:1], ViewSelection(("head",), 1, 2, 3))
        return {found[1] for found in (re.search(r"/ablate/(\d/\d)\?", path) for path in paths) if found}

    assert len(kept()) == 12
    monkeypatch.setattr("unmask.explorer.export.views.ALL_HEADS_BYTES", 1)
    assert kept() == {"1/2"}


def test_a_long_text_keeps_the_chosen_head_alone(get, asking):
    text_id = asking.measured()
    read = asking.json(f"texts/{text_id}")
    long = {**read, "tokens": read["tokens"] * 200}
    count = len(long["tokens"])

    def pretended(path):
        answer = get(path)
        if path == f"texts/{text_id}":
            return type(answer)(200, answer.media_type, json.dumps(long).encode())
        return answer

    paths = view_paths(pretended, [text_id], ViewSelection(("map", "flow", "paths"), 1, 2, 5))
    assert {path.split("?")[0] for path in paths if "/edges/" in path} == {f"texts/{text_id}/edges/1"}
    rows = [path for path in paths if f"columns=0:{count}&weight=raw&special=show" in path]
    height = 65_536 // count
    assert rows == [f"texts/{text_id}/values/1/2?rows=0:{height}&columns=0:{count}&weight=raw&special=show"]
    levels = {found[1] for found in (re.search(r"/tiles/1/2/(\d+)/", path) for path in paths) if found}
    assert "4" in levels, "the coarsest level, all of the text in one tile"
    assert len([path for path in paths if "/tiles/" in path and "max&weight=raw&special=show" in path]) <= 85


def test_which_token_is_asked_about():
    def read(*pieces):
        return {"tokens": [{"piece": piece, "special": special} for piece, special in pieces]}

    assert question_token(read(("[CLS]", True), ("a", False), ("[MASK]", True), ("[MASK]", True))) == 2
    assert question_token(read(("<s>", True), ("a", False), ("<mask>", True))) == 2
    assert question_token(read(("[CLS]", True), ("mask", False))) == 0


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (ViewSelection(("map",), 3, 0), "layer is 3"),
        (ViewSelection(("map",), 0, 4), "head is 4"),
        (ViewSelection(("map",), 0, 0, 1000), "token is 1000"),
    ],
)
def test_what_is_not_there_is_said(get, texts, look, words):
    with pytest.raises(InvalidRequest, match=words):
        view_paths(get, texts[:1], look)


def test_the_stamp_names_everything(asking, texts, model):
    import hashlib
    from importlib.metadata import version

    stamp = asking.json(f"texts/{texts[0]}/stamp")
    found = {line["name"]: line["value"] for line in stamp["lines"]}
    assert found["model"] == model.name
    assert found["number format"] == "float32 on cpu"
    assert found["torch"] == version("torch")
    assert found["tokenizers"] == version("tokenizers")
    assert found["text sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert found["attention"] == "softmax, exact"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", stamp["date"])
    assert stamp["load"].startswith('unmask.load("fake", dtype="float32")')


def test_the_digest_of_a_pair_names_both_texts(asking):
    def digest_of(text, **options):
        return asking.read(text, **options)[1]["text_sha256"]

    assert digest_of("the river", pair="a bank") == f"{digest_of('the river')}, {digest_of('a bank')}"
    assert digest_of("the", pair="river\0a bank") != digest_of("the\0river", pair="a bank")


def test_a_file_too_large_is_refused(get, texts, monkeypatch):
    monkeypatch.setattr(saved, "MOST_BYTES", 5000)
    with pytest.raises(Refused, match="look at less"):
        saved_page(get, [f"texts/{texts[0]}/heads"], "#v=3")


def test_a_text_that_is_gone_is_refused(get):
    """A page without what it is about would be worse than none."""
    with pytest.raises(Refused, match="no longer held"):
        saved_page(get, ["texts/gone/heads"], "#v=3")


def test_scripts_of_the_file_are_those_of_its_policy(get, texts):
    """The policy lets nothing run but what was built."""
    import base64
    import hashlib

    page = saved_page(get, [f"texts/{texts[0]}/heads"], "#v=3&weight=norm", "a </title> b").decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts + styles}
    assert allowed == digests
    assert "'unsafe" not in policy
    assert "a &lt;/title&gt; b" in page
    assert "norm-weighted" in json.loads(page.split('id="unmask-saved">')[1].split("</script>")[0])["stamp"]


@pytest.mark.parametrize(
    "look",
    [
        3,
        {"texts": []},
        {"texts": ["a"], "views": "map"},
        {"texts": ["a"], "views": ["map"], "layer": True, "head": 0},
    ],
)
def test_a_malformed_look_is_refused(asking, look):
    body = {"paths": [], "hash": "", "title": "", "look": look}
    assert asking.problem("export", 400, "POST", body)["kind"] == "BadRequest"


@pytest.mark.parametrize(("views", "sentence"), [(("nothing",), "no view 'nothing'"), ((), "no view ''")])
def test_views_that_are_not_there_are_refused(views, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        ViewSelection(views)
