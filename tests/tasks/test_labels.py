"""Entities of labels that are named with the text, by checkpoints of GLiNER.

`EXPECTED` was computed by the package gliner 0.2.24 in float64 on the folder that `write_gliner` writes.
"""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tokenizers_built import write_word_tokenizer
from unmask.base.json_settings import JsonSettings
from unmask.bulk import BatchTagger
from unmask.errors import EmptyText, InvalidRequest, TensorMismatch, TextTooLong, UnknownArchitecture
from unmask.families import family_of
from unmask.spec.shapes import tensor_shapes
from unmask.tasks.label_spans import windows_of
from unmask.weights.heads.label_files import ENCODER as ENCODER_PREFIX
from unmask.weights.heads.label_files import LABEL_ENCODER, head_shapes, read_label_config
from unmask.weights.tensor_report import moves

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[FLERT]", "<<ENT>>", "<<SEP>>", "ada", "met", "bob")
PIECES += ("in", "rome", ".", ",", "person", "city", "drug", "a", "##s", "##b", "the", "-")
TEXTS = ["Ada met Bob in Rome.", "as, the Rome - the Bobs met a"]
ENCODER = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "vocab_size": len(PIECES),
    "pad_token_id": 0,
}


def write_gliner(folder, **changes):
    """A folder as gliner writes it, with weights of a fixed seed; returns it."""
    config = {"model_name": "bert", "hidden_size": 6, "max_width": 3, "span_mode": "markerV0"}
    config |= {"num_rnn_layers": 1, "max_len": 384, "class_token_index": 6, "vocab_size": len(PIECES)}
    config |= {"encoder_config": ENCODER, "subtoken_pooling": "first"} | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gliner_config.json").write_text(json.dumps(config))
    for place in (folder, *([folder / "labels_encoder"] if "labels_encoder" in config else [])):
        write_word_tokenizer(place, PIECES, special=8)
    save_file(_weights(config), folder / "model.safetensors")
    return folder


def _weights(config):
    settings, head, of_labels = read_label_config(JsonSettings("gliner_config.json", config))
    width, named = _encoder_shapes(settings, ENCODER_PREFIX)
    named |= {f"{ENCODER_PREFIX}pooler.dense.weight": (8, 8), f"{ENCODER_PREFIX}pooler.dense.bias": (8,)}
    if of_labels is not None:
        labels_width, more = _encoder_shapes(of_labels, LABEL_ENCODER)
        named |= more
        head = replace(head, labels_width=labels_width)
    named |= head_shapes(head, width)
    rng = np.random.default_rng(7)
    return {name: (rng.normal(size=named[name]) * 0.4).astype(np.float32) for name in sorted(named)}


def _encoder_shapes(settings, prefix):
    family = family_of(settings.values)
    spec = family.read(settings, "published")
    shapes, named = tensor_shapes(spec), {}
    for move in moves(family.tensor_map_of(spec), shapes):
        first, *rest = shapes[move.ours]
        for name, share in zip(move.theirs, move.rows_of(first, spec), strict=True):
            named[prefix + name] = (share, *rest)
    return spec.width, named


EXPECTED = {
    ("markerV0", False, False): [
        [
            (0, 3, "city", 0.736808),
            (4, 7, "city", 0.715694),
            (8, 11, "city", 0.703247),
            (12, 20, "city", 0.697143),
        ],
        [
            (0, 2, "city", 0.736124),
            (2, 3, "city", 0.714755),
            (4, 7, "city", 0.70146),
            (8, 12, "city", 0.693665),
            (13, 14, "city", 0.68914),
            (15, 27, "city", 0.6871),
            (28, 29, "city", 0.688692),
        ],
    ],
    ("markerV0", True, False): [
        [
            (0, 3, "city", 0.736808),
            (0, 7, "city", 0.729043),
            (0, 11, "city", 0.726359),
            (4, 7, "city", 0.715694),
            (8, 11, "city", 0.703247),
            (12, 20, "city", 0.697143),
            (12, 14, "city", 0.6969),
            (12, 19, "city", 0.696624),
            (15, 19, "city", 0.694532),
            (19, 20, "city", 0.694711),
        ],
        [
            (0, 2, "city", 0.736124),
            (0, 3, "city", 0.728114),
            (0, 7, "city", 0.72482),
            (2, 3, "city", 0.714755),
            (4, 7, "city", 0.70146),
            (8, 12, "city", 0.693665),
            (8, 14, "city", 0.691905),
            (8, 18, "city", 0.690853),
            (13, 14, "city", 0.68914),
            (15, 18, "city", 0.686482),
            (19, 29, "city", 0.687757),
            (19, 23, "city", 0.685656),
            (24, 29, "city", 0.687732),
            (24, 27, "city", 0.686406),
            (28, 29, "city", 0.688692),
        ],
    ],
    ("markerV0", False, True): [
        [
            (0, 3, "city", 0.736808),
            (0, 3, "person", 0.736795),
            (4, 7, "city", 0.715694),
            (4, 7, "person", 0.715657),
            (8, 11, "city", 0.703247),
            (8, 11, "person", 0.703195),
            (12, 20, "city", 0.697143),
            (12, 20, "person", 0.697081),
        ],
        [
            (0, 2, "city", 0.736124),
            (0, 2, "person", 0.736094),
            (2, 3, "city", 0.714755),
            (2, 3, "person", 0.714703),
            (4, 7, "city", 0.70146),
            (4, 7, "person", 0.701393),
            (8, 12, "city", 0.693665),
            (8, 12, "person", 0.693589),
            (13, 14, "city", 0.68914),
            (13, 14, "person", 0.689058),
            (15, 27, "city", 0.6871),
            (15, 27, "person", 0.687011),
            (28, 29, "city", 0.688692),
            (28, 29, "person", 0.688593),
        ],
    ],
    ("token_level", False, False): [
        [
            (0, 3, "person", 0.207881),
            (4, 7, "person", 0.202368),
            (8, 11, "person", 0.210706),
            (12, 14, "person", 0.209718),
            (15, 19, "person", 0.209069),
            (19, 20, "person", 0.204559),
        ],
        [
            (0, 2, "city", 0.191999),
            (2, 3, "city", 0.179254),
            (4, 7, "city", 0.183979),
            (8, 12, "city", 0.190086),
            (13, 14, "city", 0.180515),
            (15, 18, "city", 0.176762),
            (19, 23, "city", 0.193405),
            (24, 27, "city", 0.179821),
            (28, 29, "city", 0.195202),
        ],
    ],
    ("token_level", True, False): [
        [
            (0, 3, "person", 0.207881),
            (0, 7, "person", 0.207881),
            (0, 20, "person", 0.207881),
            (4, 7, "person", 0.202368),
            (8, 11, "person", 0.210706),
            (8, 14, "person", 0.210706),
            (8, 19, "person", 0.210706),
            (8, 20, "person", 0.210706),
            (12, 14, "person", 0.209718),
            (15, 19, "person", 0.209069),
            (19, 20, "person", 0.204559),
        ],
        [
            (0, 2, "city", 0.191999),
            (0, 3, "city", 0.191999),
            (0, 7, "city", 0.191999),
            (0, 12, "city", 0.191999),
            (0, 14, "city", 0.191999),
            (0, 18, "city", 0.191999),
            (0, 29, "city", 0.191999),
            (2, 3, "city", 0.179254),
            (4, 7, "city", 0.183979),
            (8, 12, "city", 0.190086),
            (13, 14, "city", 0.180515),
            (15, 18, "city", 0.176762),
            (19, 23, "city", 0.193405),
            (19, 27, "city", 0.193405),
            (19, 29, "city", 0.193405),
            (24, 27, "city", 0.179821),
            (28, 29, "city", 0.195202),
        ],
    ],
    ("token_level", False, True): [
        [
            (0, 3, "person", 0.207881),
            (0, 3, "city", 0.201379),
            (4, 7, "person", 0.202368),
            (4, 7, "city", 0.196167),
            (8, 11, "person", 0.210706),
            (8, 11, "city", 0.204102),
            (12, 14, "person", 0.209718),
            (12, 14, "city", 0.203142),
            (15, 19, "person", 0.209069),
            (15, 19, "city", 0.202513),
            (19, 20, "person", 0.204559),
            (19, 20, "city", 0.198098),
        ],
        [
            (0, 2, "city", 0.191999),
            (0, 2, "person", 0.191685),
            (2, 3, "city", 0.179254),
            (2, 3, "person", 0.178823),
            (4, 7, "city", 0.183979),
            (4, 7, "person", 0.1836),
            (8, 12, "city", 0.190086),
            (8, 12, "person", 0.189463),
            (13, 14, "city", 0.180515),
            (13, 14, "person", 0.180095),
            (15, 18, "city", 0.176762),
            (15, 18, "person", 0.17635),
            (19, 23, "city", 0.193405),
            (19, 23, "person", 0.193026),
            (24, 27, "city", 0.179821),
            (24, 27, "person", 0.179436),
            (28, 29, "city", 0.195202),
            (28, 29, "person", 0.19482),
        ],
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_gliner(tmp_path_factory.mktemp("gliner") / "spans")


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder)


def as_rows(tagging):
    return [(e.start, e.end, e.label, pytest.approx(e.score, abs=1e-5)) for e in tagging.entities]


@pytest.mark.parametrize("case", EXPECTED)
def test_entities_and_scores_are_those_of_gliner(tmp_path, case):
    mode, nested, multi_label = case
    loaded = unmask.load(write_gliner(tmp_path / "model", span_mode=mode), dtype="float64")
    threshold = {"markerV0": 0.4, "token_level": 0.1}[mode]
    options = {"threshold": threshold, "nested": nested, "multi_label": multi_label}
    found = loaded.tag(TEXTS, labels=["person", "city"], **options)
    assert [as_rows(tagging) for tagging in found] == [list(map(tuple, rows)) for rows in EXPECTED[case]]


def test_an_entity_lies_in_the_text_of_the_caller(model):
    for tagging, text in zip(model.tag(TEXTS, labels=["person"], threshold=0.1), TEXTS, strict=True):
        assert tagging.entities
        assert all(text[e.start : e.end] == e.text for e in tagging.entities)


def test_both_engines_and_any_batch_find_the_same(folder, model):
    texts, options = [*TEXTS, "Bob"] * 3, {"labels": ["drug", "city"], "threshold": 0.3}
    together = model.tag(texts, **options)
    in_torch = unmask.load(folder, backend="torch")
    for tagging, text in zip(together, texts, strict=True):
        alone = in_torch.tag(text, **options)
        assert as_rows(tagging) == [(e.start, e.end, e.label, e.score) for e in alone.entities]
    assert any(tagging.entities for tagging in together)


def test_shards_have_the_entities_of_the_model(folder, model, tmp_path):
    source, out = tmp_path / "texts.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    options = ("--labels", "person, city", "--threshold", "0.3", "--nested")
    ran = run_here("tag", "-m", folder, *options, "--file", source, "-o", out, "--engine", "processes")
    assert ran.code == 0, ran
    (part,) = out.glob("part-*.jsonl")
    written = [json.loads(line)["entities"] for line in part.read_text().splitlines()]
    expected = model.tag(TEXTS, labels=["person", "city"], threshold=0.3, nested=True)
    assert any(written)
    assert [[(e["start"], e["end"], e["label"], e["score"]) for e in row] for row in written] == [
        as_rows(tagging) for tagging in expected
    ]
    for wrong in ({"words": True}, {"scheme": "BIOES"}):
        task = BatchTagger(model=str(folder), labels=("city",), **wrong)
        with pytest.raises(InvalidRequest, match="leave words and scheme out"):
            task({"text": TEXTS})


@pytest.mark.parametrize("mode", ["markerV0", "token_level"])
def test_a_long_text_in_windows_finds_entities_to_its_end(tmp_path, mode):
    loaded = unmask.load(write_gliner(tmp_path / "model", span_mode=mode, num_rnn_layers=0))
    text = "Ada met Bob in Rome. " * 30
    (found,) = loaded.tag([text], labels=["person", "city"], threshold=0)
    assert found.windows > 3
    assert max(e.end for e in found.entities) > len(text) - 25
    assert all(text[e.start : e.end] == e.text for e in found.entities)
    with pytest.raises(TextTooLong, match="window"):
        loaded.tag(text, labels=["person", "city"], truncation="error")
    cut = loaded.tag(text, labels=["person", "city"], threshold=0, truncation="end")
    assert cut.windows == 1
    assert cut.truncated_tokens > 0


def test_windows_cover_every_word_and_share_some():
    counts = np.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 1])
    ranges = windows_of(counts, 5, 100, 2)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(counts)
    assert all(counts[first:end].sum() <= 5 for first, end in ranges)
    assert all(later[0] <= earlier[1] for earlier, later in itertools.pairwise(ranges))
    assert windows_of(counts, None, 4, 1) == [(0, 4), (3, 7), (6, 10)]


def test_a_threshold_of_each_label(model):
    everything = model.tag(TEXTS[0], labels=["person", "city"], threshold=0.0, nested=True, multi_label=True)
    assert {e.label for e in everything.entities} == {"person", "city"}
    one = model.tag(TEXTS[0], labels=["person", "city"], threshold={"person": 1, "city": 0}, nested=True)
    assert {e.label for e in one.entities} == {"city"}


def test_words_that_the_caller_split(model):
    text, words = "Ada met Bob in Rome .", ["Ada", "met", "Bob", "in", "Rome", "."]
    (of_words,) = model.tag([words], labels=["person"], threshold=0.05)
    assert of_words == model.tag(text, labels=["person"], threshold=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": []}, "labels is empty"),
        ({"labels": ["a", "a"]}, "twice"),
        ({"labels": [" "]}, "as a text"),
        ({"labels": ["a <<SEP>> b"]}, "<<SEP>>"),
        ({"labels": ["\u200b"]}, "no token"),
        ({"labels": ["person city drug"] * 1 + ["a b"] + [f"the a{'s' * n}" for n in range(9)]}, "fewer"),
        ({"labels": ["a"], "threshold": 2}, "from 0 to 1"),
        ({"labels": ["a"], "threshold": {"b": 0.5}}, "not among the labels"),
        ({}, "give labels"),
        ({"nested": True}, "are for labels"),
        ({"labels": ["a"], "aggregation": "mean"}, "aggregation is for labels of words"),
    ],
)
def test_bad_requests_get_a_sentence(model, options, message):
    with pytest.raises(InvalidRequest, match=message):
        model.tag(TEXTS[0], **options)


def test_a_text_without_words(model):
    with pytest.raises(EmptyText, match="no words"):
        model.tag(" \n", labels=["person"])


def test_labels_need_a_head_for_them():
    with pytest.raises(InvalidRequest, match="no head for labels"):
        unmask.load("unmask-mini").tag("Ada", labels=["person"])


@pytest.mark.parametrize(
    "change", [{"span_mode": "conv_max"}, {"labels_decoder": "gpt2"}, {"fuse_layers": True}]
)
def test_parts_that_are_not_built_are_refused(tmp_path, change):
    folder = write_gliner(tmp_path / "model")
    path = folder / "gliner_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UnknownArchitecture, match=next(iter(change))):
        unmask.load(folder)


def test_a_head_of_another_size_is_refused(tmp_path):
    folder = write_gliner(tmp_path / "model")
    path = folder / "gliner_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_rnn_layers": 2}))
    with pytest.raises(TensorMismatch, match="lacks the tensor rnn"):
        unmask.load(folder).tag("Ada", labels=["person"])


def test_the_command_finds_entities_of_named_labels(folder, model):
    ran = run_here("tag", "-m", folder, "--labels", "person, city", "--threshold", "0.3", "--json", TEXTS[0])
    assert ran.code == 0, ran.err
    entities = json.loads(ran.out)["entities"]
    expected = model.tag(TEXTS[0], labels=["person", "city"], threshold=0.3).entities
    assert entities
    assert [(e["start"], e["end"], e["label"]) for e in entities] == [
        (e.start, e.end, e.label) for e in expected
    ]
    assert_one_sentence(run_here("tag", "-m", folder, TEXTS[0]), "give labels")
    options = "--threshold", "0", "--multi-label", "--nested"
    quoted = run_here("tag", "-m", folder, "--labels", '"city, state", person', *options, TEXTS[0])
    assert "\tcity, state\t" in quoted.out, quoted
    assert_one_sentence(run_here("tag", "-m", folder, "--labels", " , ", TEXTS[0]), "label")


@pytest.mark.parametrize("mode", ["markerV0", "token_level"])
def test_a_saved_copy_finds_the_same_entities(tmp_path, mode):
    loaded = unmask.load(write_gliner(tmp_path / "model", span_mode=mode, max_types=7))
    loaded.save(tmp_path / "copy")
    again, options = unmask.load(tmp_path / "copy"), {"labels": ["person", "city"], "threshold": 0.1}
    assert again.tag(TEXTS, **options) == loaded.tag(TEXTS, **options)
    written = json.loads((tmp_path / "copy" / "gliner_config.json").read_text())
    assert (written["class_token_index"], written["max_types"], written["span_mode"]) == (6, 7, mode)
    assert not (tmp_path / "copy" / "config.json").exists()


def test_a_server_answers_with_the_same_entities(model):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    from starlette.testclient import TestClient

    from unmask.serve import make_app

    app = make_app({"spans": model})
    options = {"labels": ["person", "city"], "threshold": 0.4, "nested": True, "multi_label": True}
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        answer = client.post("/v1/entities", json={"texts": TEXTS, **options})
        refused = client.post("/v1/entities", json={"texts": TEXTS})
        wrong = client.post("/v1/entities", json={"texts": TEXTS, **options, "labels": ["city", "city"]})
        alone = client.post("/v1/entities", json={"texts": TEXTS, "threshold": 0.4})
        both = client.post("/v1/entities", json={"texts": TEXTS, **options, "aggregation": "mean"})
    app.state.service.close()
    rows = [[(e["start"], e["end"], e["label"]) for e in one["entities"]] for one in answer.json()["results"]]
    assert rows == [[row[:3] for row in as_rows(tagging)] for tagging in model.tag(TEXTS, **options)]
    assert any(rows)
    assert [one.status_code for one in (refused, wrong, alone, both)] == [400] * 4
    assert "threshold, nested, multi_label and vectors are for labels" in alone.text
    assert "aggregation is for labels of words" in both.text
    assert "'city' twice" in wrong.text
