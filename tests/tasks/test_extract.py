"""What a schema names, by checkpoints of GLiNER2.

`EXPECTED` was computed by the package gliner2 2.1.0, its model in float64, one text a call, on the
folders that `write_gliner2` writes with the seed beside it; of relations with the same ends it has the
first.
"""

import json
import re
from itertools import pairwise

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.extraction import as_lines, write_gliner2
from unmask.bulk import BatchPredictor
from unmask.errors import (
    CorruptCheckpoint,
    EmptyText,
    InvalidRequest,
    InvalidText,
    TextTooLong,
    UnknownArchitecture,
)
from unmask.tasks.extract import Decoder, SchemaText, SchemaWindow, TaskScores, classes_of
from unmask.tasks.schema import prompt_of, schema_of

TEXTS = ["Anna works for the bank, said Apple!", "a dull, dull film - big and bads?"]
SCHEMA = {
    "entities": {"person": "a name of a person", "company": "of the bank"},
    "relations": ["works for"],
    "structures": {
        "film": {
            "fields": [
                {"name": "title"},
                {"name": "price", "dtype": "str", "description": "the money"},
                {"name": "red", "choices": ["good", "bad"], "dtype": "str"},
                {"name": "day", "choices": ["big", "dull"]},
            ]
        }
    },
    "classifications": [
        {
            "task": "review",
            "labels": ["good", "bad"],
            "prompt": "of the film",
            "examples": [["a dull film", "bad"]],
        },
        {
            "task": "sport",
            "labels": {"good": "a good day", "bad": "dull", "big": "money"},
            "multi_label": True,
            "cls_threshold": 0.4,
        },
    ],
}
REVIEW = {"task": "review", "labels": ["good", "bad"]}
CASES = {
    "bert": {},
    "deberta": {"counting_layer": "count_lstm_v2", "token_pooling": "mean"},
    "modernbert": {"counting_layer": "count_lstm_moe", "token_pooling": "max"},
}
EXPECTED = {
    "bert": (
        0,
        [
            "entity company: , said 23 29 0.9991",
            "entity person: ! 35 36 0.9708",
            "entity person: , said 23 29 1.0000",
            "relation works for: , 23 1.0000; , said apple! 23 0.9998",
            "relation works for: , said apple 23 1.0000; , said 23 0.9995",
            "relation works for: , said apple 23 1.0000; , 23 0.9966",
            "record 0 film, title: , 23 1.0000",
            "record 0 film, price: , 23 0.9998",
            "record 1 film, title: , said 23 0.8011",
            "record 2 film, title: , 23 0.9200",
            "record 2 film, price: , 23 0.5437",
            "record 3 film, title: , said 23 0.7550",
            "class review: good 0.7620",
            "class sport: good 0.5644",
            "class sport: bad 0.7102",
            "class sport: big 0.4896",
        ],
        [
            "entity company: film 13 17 0.9972",
            "entity person: , 6 7 0.9998",
            "entity person: a 0 1 0.5960",
            "entity person: film 13 17 1.0000",
            "relation works for: film - big and 13 1.0000; film - big and 13 0.9999",
            "relation works for: film 13 1.0000; film - big 13 0.9993",
            "relation works for: film 13 1.0000; film 13 0.9906",
            "record 0 film, title: film 13 1.0000/, 6 0.9516",
            "record 0 film, price: film 13 1.0000",
            "record 1 film, title: film 13 0.6053",
            "record 2 film, title: film 13 0.6565",
            "class review: good 0.7599",
            "class sport: good 0.5717",
            "class sport: bad 0.7131",
            "class sport: big 0.4868",
        ],
    ),
    "deberta": (
        22,
        [
            "entity company: ! 35 36 1.0000",
            "entity company: , said 23 29 1.0000",
            "entity company: Anna works 0 10 0.9969",
            "entity person: ! 35 36 1.0000",
            "entity person: , said 23 29 1.0000",
            "entity person: Anna works 0 10 0.9967",
            "relation works for: anna 0 1.0000; anna 0 1.0000",
            "record 0 film, title: anna 0 1.0000/the bank, said 15 1.0000/! 35 1.0000/for 11 1.0000",
            "record 0 film, price: anna 0 1.0000",
            "record 0 film, red: good None 0.9994",
            "record 0 film, day: big None 1.0000/dull None 0.9939",
            "class review: good 0.5424",
            "class sport: good 0.2956",
        ],
        [
            "entity company: , dull 6 12 1.0000",
            "entity company: ? 32 33 0.9984",
            "entity person: , dull 6 12 1.0000",
            "entity person: ? 32 33 0.9982",
            "relation works for: a dull 0 1.0000; a dull 0 1.0000",
            "record 0 film, title: ? 32 1.0000/, dull film - 6 1.0000/big 20 1.0000/bads 28 1.0000/dull 2 0.7463",  # noqa: E501
            "record 0 film, price: ? 32 1.0000",
            "record 0 film, day: dull None 0.9307",
            "class review: good 0.5064",
            "class sport: good 0.4386",
            "class sport: big 0.4187",
        ],
    ),
    "modernbert": (
        14,
        [
            "entity company: , 23 24 0.6032",
            "entity company: Anna 0 4 0.9998",
            "entity company: bank 19 23 0.9997",
            "entity company: works for 5 14 0.6394",
            "entity person: Anna 0 4 1.0000",
            "entity person: bank, 19 24 0.9988",
            "entity person: works 5 10 0.9849",
            "relation works for: works for the bank 5 0.9998; the bank, 15 1.0000",
            "relation works for: anna 0 0.9479; the bank, 15 0.9996",
            "record 0 film, title: anna 0 0.9870",
            "record 0 film, price: anna 0 0.9450",
            "record 0 film, day: dull None 0.5363",
            "class review: bad 0.6341",
            "class sport: good 0.2840",
        ],
        [
            "entity company: - big and bads 18 32 0.9999",
            "entity company: ? 32 33 0.7452",
            "entity company: dull 8 12 0.5149",
            "entity company: dull, 2 7 0.9933",
            "entity company: film 13 17 0.9675",
            "entity person: - 18 19 0.9979",
            "entity person: ? 32 33 0.8179",
            "entity person: and bads 24 32 1.0000",
            "entity person: big 20 23 0.9895",
            "entity person: dull 8 12 0.9123",
            "entity person: dull, 2 7 0.9659",
            "entity person: film 13 17 0.8205",
            "relation works for: - big and bads 18 0.9999; - big and bads 18 1.0000",
            "record 0 film, red: good None 0.6245",
            "class review: bad 0.6768",
            "class sport: good 0.2713",
        ],
    ),
}
NUMBER = re.compile(r"\d\.\d{4}")


def assert_same(lines, expected, tolerance):
    assert [NUMBER.sub("p", line) for line in lines] == [NUMBER.sub("p", line) for line in expected]
    numbers, wanted = (NUMBER.findall(" ".join(side)) for side in (lines, expected))
    assert [*map(float, numbers)] == pytest.approx([*map(float, wanted)], abs=tolerance)


def folder_of(place, case):
    return write_gliner2(place, case, EXPECTED[case][0], **CASES[case])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("gliner2") / "model", "bert")


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_everything_is_what_gliner2_extracts(tmp_path, case, dtype):
    _, *expected = EXPECTED[case]
    model = unmask.load(folder_of(tmp_path / "model", case), dtype=dtype)
    for result, lines in zip(model.extract(TEXTS, SCHEMA), expected, strict=True):
        assert_same(as_lines(result), lines, 1.1e-4 if dtype == "float64" else 5e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_extracts_the_same(tmp_path, case):
    model = unmask.load(folder_of(tmp_path / "model", case))
    model.save(tmp_path / "copy")
    copy = unmask.load(tmp_path / "copy")
    assert copy.extract(TEXTS, SCHEMA) == model.extract(TEXTS, SCHEMA)
    written = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "copy")]
    assert written[0] == {key: written[1][key] for key in written[0]}


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_smaller_numbers_give_nearly_the_same(folder, model, dtype):
    schema = {"classifications": [REVIEW]}
    small, exact = (it.extract(TEXTS, schema) for it in (unmask.load(folder, dtype=dtype), model))
    for a, b in zip(small, exact, strict=True):
        assert a.classes["review"].scores == pytest.approx(b.classes["review"].scores, abs=0.1)
        assert a != b


def test_each_text_is_read_as_alone(model):
    assert model.extract(TEXTS, SCHEMA) == [model.extract(text, SCHEMA) for text in TEXTS]
    assert model.extract([], SCHEMA) == []


@pytest.mark.parametrize("text", ["Films", "  the bank, of Anna", "a dull film\n", "the bank \U0001f600"])
def test_values_are_parts_of_a_text_without_a_last_point(model, text):
    """A point is read after it, and no value has it."""
    result = model.extract(text, SCHEMA, threshold=0.0)
    values = [it for relation in result.relations for it in (relation.head, relation.tail)]
    values += [it for record in result.records for of in record.fields.values() for it in of]
    parts = [it for it in (*result.entities, *values) if it.start is not None]
    assert parts
    for it in parts:
        assert text[it.start : it.end] == it.text == it.text.strip() != ""


def test_thresholds(model):
    types = {"entities": ["person", "company"]}
    several = model.extract(TEXTS[0], types, threshold=0.0).entities
    best = {label: max(it.score for it in several if it.label == label) for label in types["entities"]}
    assert len(several) > 2
    fields = {"person": {"threshold": best["person"]}, "company": {"dtype": "str"}}
    result = model.extract(TEXTS[0], {"entities": fields}, threshold=0.0)
    assert sorted((it.label, it.score) for it in result.entities) == sorted(best.items())


def test_what_the_model_reads_of_a_task():
    described = {"good": "a good day", "bad": ""}
    examples = [["fine", "good"], ["odd", "other"]]
    task = {"task": "mood", "labels": described, "prompt": "of a text", "examples": examples}
    (read,) = schema_of({"classifications": [task]})
    said = "mood: of a text [DESCRIPTION] good: a good day [EXAMPLE] fine [OUTPUT] good"
    assert prompt_of(read) == ["(", "[P]", said, "(", "[L]", "good", "[L]", "bad", ")", ")"]
    later = dict(reversed(SCHEMA.items()))
    assert [task.kind for task in schema_of(later)] == [task.kind for task in schema_of(SCHEMA)]


def test_choices_of_classes(model):
    def classes(**changes):
        task = {"task": "sport", "labels": ["good", "bad", "big"], **changes}
        return model.extract(TEXTS[0], {"classifications": [task]}).classes["sport"]

    several = classes(multi_label=True, cls_threshold=0.0)
    ranked = sorted(several.scores, key=lambda label: -several.scores[label])
    assert set(several.labels) == set(ranked)
    assert classes(multi_label=True, cls_threshold=0.0, top_k=2).labels == tuple(ranked[:2])
    assert classes(multi_label=True, cls_threshold=1.0).labels == (ranked[0],)
    assert classes(class_act="sigmoid").scores == several.scores
    softmax = classes(multi_label=True, class_act="softmax")
    assert softmax.scores == classes().scores
    assert sum(softmax.scores.values()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("tail", "count"), [(5.0, 1), (-5.0, 0)])
def test_a_relation_has_both_ends(tail, count):
    tasks, ids = schema_of({"relations": ["works for"]}), np.zeros(2, dtype=np.int64)
    window = SchemaWindow(ids, ids, (), ((0, 1), (1, 2)), 0)
    text = SchemaText("a b", np.array([[0, 1], [2, 3]]), (window,), 2, 0)
    logits = np.array([[5.0, -5.0], [-5.0, tail]])[None, :, :, None]
    assert len(Decoder(tasks, (), 0.5).decode(text, [(TaskScores(1, logits),)]).relations) == count


def test_words_are_read_in_lower_case(tmp_path):
    folder = write_gliner2(tmp_path / "model", seed=EXPECTED["bert"][0])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    model, schema = unmask.load(folder), {"entities": ["person", "company"]}
    texts = (TEXTS[0].upper(), TEXTS[0].lower())
    upper, lower = (model.extract(text, schema, threshold=0.0).entities for text in texts)
    assert upper
    assert [(it.start, it.end, it.score) for it in upper] == [(it.start, it.end, it.score) for it in lower]
    assert [it.text.lower() for it in upper] == [it.text for it in lower]


def test_windows_count_by_their_words():
    (task,) = schema_of(
        {"classifications": [{"task": "mood", "labels": ["good", "bad"], "multi_label": True}]}
    )
    ids = np.zeros(4, dtype=np.int64)
    windows = [
        (SchemaWindow(ids, ids, (), ((0, 1),) * words, 0), TaskScores(0, np.array([logit, 0.0])))
        for words, logit in ((3, 40.0), (1, -40.0))
    ]
    assert classes_of(task, windows).scores == pytest.approx({"good": 0.75, "bad": 0.5})


def test_a_long_text_is_read_in_windows(model):
    text = " ".join(["Anna works for the bank", "a dull film of money"] * 40) + "."
    schema = {"entities": ["person", "film"], "classifications": [REVIEW]}
    result = model.extract(text, schema)
    assert result.windows > 1
    assert result.truncated_tokens == 0
    assert any(it.start > 0.8 * len(text) for it in result.entities)
    assert all(text[it.start : it.end] == it.text for it in result.entities)
    assert sum(result.classes["review"].scores.values()) == pytest.approx(1, abs=1e-6)
    ends = sorted((it.start, it.end) for it in result.entities if it.label == "film")
    assert all(second[0] >= first[1] for first, second in pairwise(ends))
    start = model.extract(text, schema, truncation="end")
    assert start.windows == 1
    assert start.truncated_tokens > 0
    assert start.tokens_read + start.truncated_tokens == result.tokens_read
    with pytest.raises(TextTooLong, match="of them at once with the schema; read it in"):
        model.extract(text, schema, truncation="error")
    with pytest.raises(InvalidRequest, match="the word 'Anna' of the text has 1; ask for less"):
        model.extract(text, {"entities": [f"the film {number}" for number in range(60)]})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "the schema is of type list; give a mapping"),
        ({}, "the schema asks for nothing; give one of entities"),
        ({"entity": ["a"]}, "the schema has the key 'entity'; it can have entities"),
        ({"entities": "person"}, "entities is a text; give a list of names"),
        ({"entities": ["a", "a"]}, "entities names the same twice"),
        ({"entities": [" "]}, "entities names ' '; give a text with letters"),
        ({"entities": {"a": 3}}, "the entity 'a' is said to be '3'; give a description, or an object"),
        ({"entities": {"a": {"kind": "list"}}}, "the entity 'a' has the key 'kind'; it can have desc"),
        ({"entities": {"a": {"threshold": 2}}}, "threshold of the entity 'a' is 2; it must be"),
        ({"entities": {"a": {"dtype": "int"}}}, "dtype of the entity 'a' is 'int'; it can be list or str"),
        (
            {"entities": ["[E]"]},
            r"'\[E\]' in the schema contains \[E\], which the model reads as a sign",
        ),
        ({"relations": ["a"], "entities": {"entities": ""}, "structures": {"a": ["b"]}}, "names 'a' twice"),
        (
            {"structures": {"film": {"fields": []}}},
            "the structure 'film' needs fields, each with",
        ),
        ({"structures": {"film": {"fields": ["a"], "mode": "b"}}}, "the structure 'film' has the key 'mode'"),
        ({"relations": {"a": {"dtype": "str"}}}, "the relation 'a' has the key 'dtype'; it can have desc"),
        ({"entities": {"a": {"choices": ["b"]}}}, "the entity 'a' has the key 'choices'; it can have desc"),
        ({"entities": {"a": {"description": 3}}}, "description of the entity 'a' is 3; give a text"),
        ({"structures": {"b": [{"name": "a", "choices": "red"}]}}, "choices of the field 'a' .* is a text"),
        ({"classifications": [{"task": "a", "labels": {"b": 3}}]}, "b of the label 'b' is 3; give a text"),
        ({"classifications": [{"task": "a", "labels": ["b"], "prompt": 3}]}, "prompt of the classification"),
        (
            {"classifications": [{"task": "a", "labels": ["b"], "examples": [["c"]]}]},
            "must be pairs of a text",
        ),
        ({"classifications": [{"task": "a", "labels": ["b"], "examples": 3}]}, "examples of the class"),
        ({"classifications": [{"task": "a", "labels": ["b"], "multi_label": 1}]}, "multi_label of the class"),
        ({"classifications": [{"task": "a", "label": []}]}, "the classification 'a' has the key 'label'"),
        ({"structures": {"film": [{"dtype": "str"}]}}, "the structure 'film' has a field without a name"),
        (
            {"classifications": [{"labels": ["a"]}]},
            "an item of classifications needs task, its name",
        ),
        ({"classifications": [{"task": "a"}]}, "the classification 'a' has no labels; give two or more"),
        (
            {"classifications": [{"task": "a", "labels": ["b"], "top_k": 0}]},
            "top_k of the classification 'a'",
        ),
        (
            {"classifications": [{"task": "a", "labels": ["b"], "class_act": "relu"}]},
            "class_act of the classification 'a' is 'relu'; it can be auto, sigmoid or softmax",
        ),
    ],
)
def test_schemas_that_are_refused(model, schema, said):
    with pytest.raises(InvalidRequest, match=said):
        model.extract("a film.", schema)


def test_texts_and_models_that_are_refused(model):
    with pytest.raises(EmptyText, match="has no words; give a text"):
        model.extract(" ", SCHEMA)
    with pytest.raises(InvalidText, match="in the schema holds a lone surrogate"):
        model.extract("a", {"entities": ["\ud800"]})
    with pytest.raises(InvalidRequest, match=r"threshold is 1\.5"):
        model.extract("a", SCHEMA, threshold=1.5)
    with pytest.raises(InvalidRequest, match="has no head for schemas; use a checkpoint of GLiNER2"):
        unmask.load("default").extract("a", SCHEMA)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"architecture": "boundary"}, UnknownArchitecture, "'boundary'; of GLiNER2 only models of spans"),
        ({"counting_layer": "count_gru"}, UnknownArchitecture, "counting_layer is 'count_gru'; only"),
        ({"token_pooling": "last"}, UnknownArchitecture, "token_pooling is 'last'; only"),
        ({"max_width": 0}, CorruptCheckpoint, "max_width"),
    ],
)
def test_folders_that_are_refused_by_name(folder, tmp_path, changes, error, said):
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(error, match=said):
        unmask.load(tmp_path)
    assert_one_sentence(run_here("inspect", tmp_path), next(iter(changes)))


def test_a_folder_without_the_encoder_is_refused(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(CorruptCheckpoint, match=r"has no encoder_config/config\.json"):
        unmask.load(tmp_path)


def test_the_command(folder, model, tmp_path):
    schema = {"entities": ["person"], "classifications": [REVIEW]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    expected = model.extract(TEXTS, schema)
    options = ("extract", "--model", folder, "--file", tmp_path / "texts.txt", "--json")
    for given_as in (json.dumps(schema), tmp_path / "schema.json"):
        ran = run_here(*options, "--schema", given_as)
        assert ran.code == 0, ran.err
        rows = [json.loads(line) for line in ran.out.splitlines()]
        for row, result, text in zip(rows, expected, TEXTS, strict=True):
            assert row["text"] == text
            assert [it["start"] for it in row["entities"]] == [it.start for it in result.entities]
            assert row["classes"]["review"]["labels"] == list(result.classes["review"].labels)
    ran = run_here("extract", "--model", folder, "--schema", json.dumps(SCHEMA), TEXTS[1])
    assert ran.code == 0, ran.err
    kinds = {line.split("\t")[0] for line in ran.out.splitlines()}
    assert kinds == {"entity", "relation", "record", "class"}
    refused = {"{": "--schema", "nothing.json": "neither JSON nor a file", "{}": "asks for nothing"}
    for schema, said in refused.items():
        assert_one_sentence(run_here("extract", "--model", folder, "--schema", schema, "a film"), said)


def test_shards_are_extracted_as_by_the_model(folder, model):
    predictor = BatchPredictor(str(folder), method="extract", options={"schema": SCHEMA})
    columns = predictor({"text": TEXTS})
    expected = model.extract(TEXTS, SCHEMA)
    assert [[it["text"] for it in row] for row in columns["entities"]] == [
        [it.text for it in result.entities] for result in expected
    ]
    assert columns["windows"] == [1, 1]
