"""Spans for labels that a reader names: what the page gets equals what the model finds, at any threshold."""

from urllib.parse import quote

import numpy as np
import pytest
import torch

import unmask
from tests.explorer.conftest import Asking
from tests.tasks.test_label_encoders import OF_LABELS
from tests.tasks.test_labels import write_gliner
from unmask.encoder.hooks import HookPoint
from unmask.explorer import Api
from unmask.explorer.routes.labels import _layers_of, _logit, _window_of
from unmask.explorer.wire.binary import unpack
from unmask.tasks.label_network import sigmoid
from unmask.tasks.label_spans import PromptEncoder, _joined, read_texts
from unmask.text import PackedBatch

TEXT = "Ada met Bob in Rome. as, the Rome - the Bobs met a"
LONG = "Ada met Bob in Rome. the Bobs met " * 3
LABELS = ("person", "city", "drug")
NAMED = quote(",".join(LABELS))
KINDS = {
    "spans": {},
    "words": {"span_mode": "token_level"},
    "two encoders": {"span_mode": "token_level", **OF_LABELS},
}


@pytest.fixture(scope="module", params=KINDS)
def asked(request, tmp_path_factory):
    """A small model of each kind, and what asks its explorer."""
    folder = write_gliner(tmp_path_factory.mktemp("gliner") / "model", **KINDS[request.param])
    model = unmask.load(folder)
    api = Api([model])
    yield model, Asking(api)
    api.close()


def found(asking, text, nested="no", labels=NAMED):
    return asking.json(f"texts/{asking.measured(text)}/labels?labels={labels}&nested={nested}")


@pytest.mark.parametrize("nested", ["no", "yes"])
@pytest.mark.parametrize("text", ["Ada met Bob in Rome.", TEXT])
def test_spans_above_a_threshold_are_those_that_the_model_finds(asked, text, nested):
    model, asking = asked
    answer = found(asking, text, nested)
    words = answer["words"]
    assert "".join(word["before"] + word["text"] for word in words) + answer["after"] == text
    ends = np.cumsum([len(word["before"]) + len(word["text"]) for word in words])
    starts = ends - [len(word["text"]) for word in words]
    for threshold in (0.05, 0.3, 0.5, 0.68, 0.7, 0.72):
        (tagging,) = model.tag([text], labels=LABELS, threshold=threshold, nested=nested == "yes")
        wanted = {(it.start, it.end, it.label): it.score for it in tagging.entities}
        shown = {
            (starts[it["first"]], ends[it["last"]], LABELS[it["label"]]): it["score"]
            for it in answer["spans"]
            if it["score"] > threshold
        }
        assert shown == pytest.approx(wanted, abs=1e-6)
    scores = [it["score"] for it in answer["spans"]]
    assert scores == sorted(scores, reverse=True)


def causes(asking, text, span):
    path = f"labels={NAMED}&label={span['label']}&first={span['first']}&last={span['last']}"
    answer = asking.raw(f"texts/{asking.measured(text)}/labels/causes?{path}")
    assert answer.status == 200, answer.data
    return unpack(answer.data)


@pytest.mark.parametrize("text", ["Ada met Bob in Rome.", LONG])
def test_attributions_add_up_to_the_score_of_the_span(asked, text):
    model, asking = asked
    spans = found(asking, text, "yes")["spans"]
    several = [span for span in spans if span["first"] < span["last"]]
    for span in (spans[-1], *several[:2], *several[-2:]):
        check_sums(model, asking, text, span)


def check_sums(model, asking, text, span):
    arrays, meta = causes(asking, text, span)
    assert meta["span"]["score"] == pytest.approx(span["score"], abs=1e-6)
    shares = [meta["completeness"]]
    if meta["label_completeness"] is not None:
        shares.append(meta["label_completeness"])
    for share in shares:
        assert sigmoid(np.float64(share["at_text"])) == pytest.approx(span["score"], abs=1e-5)
        assert abs(share["gap"]) < 0.02
    total = sum(share["at_text"] - share["at_baseline"] + share["gap"] for share in shares)
    assert arrays["values"].sum() == pytest.approx(total, abs=1e-4)
    tokens = meta["tokens"]
    assert len(tokens) == len(arrays["values"])
    inside = {token["word"] for token in tokens if token["part"] == "span"}
    assert inside == set(range(span["first"], span["last"] + 1))
    label = LABELS[span["label"]]
    two = model.reader.label_vectors is not None
    assert "".join(meta["label_tokens"]) == (label if two else f"<<ENT>>{label}")
    signs = [
        at for at, token in enumerate(tokens) if token["part"] == "special" or token["piece"] == "<<ENT>>"
    ]
    assert not arrays["values"][signs].any(), "the baseline keeps special tokens and markers"
    others = [token["piece"] for token in tokens if token["part"] == "labels"]
    wanted = [piece for other in LABELS if other != label for piece in ("<<ENT>>", other)]
    assert "".join(others) == ("" if two else "".join(wanted))


def test_the_head_in_torch_gives_every_logit_of_the_head_in_numpy(asked):
    model, _ = asked
    network = model.reader.checkpoint_labels
    head, rng = network.head, np.random.default_rng(3)
    words_WD, labels_CD = (rng.normal(size=(n, head.width)).astype(np.float32) for n in (5, 2))
    z = network.logits(words_WD, labels_CD)
    layers = _layers_of(network, torch.zeros(1, model.spec.width))
    copies = torch.from_numpy(np.stack((words_WD[::-1], words_WD)))
    for first, last in ((0, 0), (1, 3), (2, 4)):
        if head.scores == "spans":
            wanted = [z[first, last - first]]
        else:
            wanted = [z[first, :, 0], z[last, :, 1], *z[first : last + 1, :, 2]]
        for which, logits_C in enumerate(wanted):
            for label, logit in enumerate(logits_C):
                labels_SD = torch.from_numpy(labels_CD[[0, label]])
                got = _logit(layers, copies, labels_SD, (first, last), which)
                assert float(got[1]) == pytest.approx(float(logit), abs=1e-5)


def test_a_span_is_explained_in_the_window_that_gives_its_score(asked):
    """Windows that hold their own number join to the number of the window of each span."""
    model, _ = asked
    head = model.reader.checkpoint_labels.head
    (text,) = read_texts(model.reader, head, [LONG * 3], LABELS, truncation="window", overlap=20, name=str)
    assert len(text.windows) > 3
    shape = (head.max_width, 1) if head.scores == "spans" else (1, 3)
    numbers = [np.full((len(window.words_at), *shape), float(at)) for at, window in enumerate(text.windows)]
    for at, window in enumerate(numbers):
        if head.scores == "spans":
            for more in range(1, head.max_width):
                window[len(window) - more :, more] = -np.inf
        assert np.isfinite(window[:, 0]).all(), at
    joined = _joined(text, numbers, head)
    for first in range(len(text.bounds)):
        assert _window_of(text, first, first) == joined[first].reshape(-1)[0]


def test_other_labels_and_ends_have_the_scores_of_the_model(asked):
    model, asking = asked
    text = "Ada met Bob in Rome."
    answer = found(asking, text, "yes")
    span = next(it for it in answer["spans"] if it["first"] == it["last"] == 2)
    _, meta = causes(asking, text, span)
    wanted = {(2, 2, label) for label in range(3) if label != span["label"]}
    wanted |= {(1, 2, span["label"]), (2, 3, span["label"])}
    scores = {(it["first"], it["last"], it["label"]): it["score"] for it in meta["others"]}
    assert set(scores) == wanted
    ends = [(0, 3), (4, 7), (8, 11), (12, 14), (15, 19), (19, 20)]
    (tagging,) = model.tag([text], labels=LABELS, threshold=0.05, nested=True, multi_label=True)
    shown = {(it.start, it.end, it.label): it.score for it in tagging.entities}
    named = {
        (ends[first][0], ends[last][1], LABELS[label]): score
        for (first, last, label), score in scores.items()
    }
    both = named.keys() & shown.keys()
    assert len(both) >= 2
    assert {key: named[key] for key in both} == pytest.approx({key: shown[key] for key in both}, abs=1e-6)


def test_attention_between_a_span_and_its_label_is_exact(asked):
    model, asking = asked
    text = "Ada met Bobs in Rome."
    answer = found(asking, text)
    span = next(it for it in answer["spans"] if it["first"] <= 2 <= it["last"])
    arrays, meta = causes(asking, text, span)
    if model.reader.label_vectors is not None:
        assert set(arrays) == {"values"}
        assert "second encoder" in meta["note"]
        return
    parts = [token["part"] for token in meta["tokens"]]
    rows, columns = ([at for at, part in enumerate(parts) if part == name] for name in ("span", "label"))
    prompt = PromptEncoder(model.reader, model.reader.checkpoint_labels.head).prompt(LABELS)
    assert parts[int(prompt.labels[span["label"]])] == "label"
    whole = _whole_attention(model, text)
    np.testing.assert_allclose(arrays["to_label"], whole[:, :, rows][:, :, :, columns], atol=1e-6)
    np.testing.assert_allclose(arrays["to_span"], whole[:, :, columns][:, :, :, rows], atol=1e-6)


def _whole_attention(model, text):
    """All attention of the pass, from the encoder's own projections in float64."""
    (read,) = read_texts(
        model.reader,
        model.reader.checkpoint_labels.head,
        [text],
        LABELS,
        truncation="window",
        overlap=None,
        name=str,
    )
    window, inputs = read.windows[0], {}
    encoder = model.trainable_encoder(replace=False).double()

    def record(point, layer, tensor):
        if point in (HookPoint.QUERY, HookPoint.KEY):
            inputs[layer, point] = tensor

    with torch.no_grad():
        encoder.encode(PackedBatch.of_ids([window.ids], [window.token_type_ids]), hook=record)
    layers = []
    for layer in range(len(encoder.spec.layers)):
        q, k = (inputs[layer, point].transpose(0, 1) for point in (HookPoint.QUERY, HookPoint.KEY))
        layers.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).numpy())
    return np.stack(layers)


def test_what_cannot_be_asked_is_said_in_a_sentence(asked, asking):
    _, labeled = asked
    text_id = labeled.measured(TEXT)
    for query, said in (
        ("labels=", "labels is empty"),
        ("labels=person,person", "'person' twice"),
        (f"labels={','.join(f'l{n}' for n in range(51))}", "give at most 50"),
    ):
        assert said in labeled.json(f"texts/{text_id}/labels?{query}", status=400)["error"]["sentence"]
    for query, said in (
        ("label=3&first=0&last=0", "there are labels 0 to 2"),
        ("label=0&first=2&last=1", "first"),
        ("label=0&first=0&last=40", "words 0 to"),
    ):
        answer = labeled.json(f"texts/{text_id}/labels/causes?labels={NAMED}&{query}", status=400)
        assert said in answer["error"]["sentence"]
    other = asking.measured()
    refused = asking.json(f"texts/{other}/labels?labels=person", status=409)
    assert "takes no labels; a checkpoint of GLiNER does, or --adapter" in refused["error"]["sentence"]
    assert not asking.json("session")["models"][0]["takes_labels"]
    assert labeled.json("session")["models"][0]["takes_labels"]
