"""Tags and classes of shards: the fields of the results, in every kind of file and batch."""

import json
import pickle
from dataclasses import asdict

import pyarrow
import pytest
from pyarrow import parquet

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.bulk import BatchClassifier, BatchEmbedder, BatchPredictor, BatchTagger, run_shards
from unmask.bulk.predictor import predicting_methods
from unmask.errors import InvalidRequest, TextError

pytestmark = pytest.mark.long

TEXTS = [
    "Angela Merkel met Tim Cook in Paris.",
    "Nothing at all.",
    "What a wonderful film from Berlin, such joy!",
    "A dreadful, boring evening.",
]
NAMES = BatchTagger(load={"adapter": "names"}, threads=1)
SENTIMENT = BatchClassifier(load={"adapter": "sentiment"}, threads=1)
NO_ENTITY_FIRST = [TEXTS[1], TEXTS[3], TEXTS[0], TEXTS[2]]


@pytest.fixture(scope="module")
def names():
    return unmask.load("default", adapter="names")


@pytest.fixture(scope="module")
def sentiment():
    return unmask.load("default", adapter="sentiment")


def as_lists(result, *left_out):
    """A result as JSON has it."""
    return {k: v for k, v in json.loads(json.dumps(asdict(result))).items() if k not in left_out}


def close(value, wanted):
    """Equal, scores up to the last bits, which depend on the texts beside it."""
    if isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(close(value[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(close, value, wanted))
    return value == (pytest.approx(wanted, abs=1e-6) if isinstance(wanted, float) else wanted)


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def rows_of(folder):
    return [json.loads(line) for part in sorted(folder.glob("part-*.jsonl")) for line in lines_of(part)]


@pytest.mark.parametrize(
    ("command", "task", "left_out"),
    [
        (("tag",), "tag", ("words",)),
        (("tag", "--words", "--scheme", "BIOES"), "tag", ()),
        (("classify", "--adapter", "sentiment"), "classify", ()),
    ],
)
def test_shards_have_the_fields_of_the_command_and_of_python(
    command, task, left_out, quick, tmp_path, names, sentiment
):
    source, out, whole = tmp_path / "texts.jsonl", tmp_path / "out", tmp_path / "whole.jsonl"
    source.write_text("".join(json.dumps({"id": n, "body": text}) + "\n" for n, text in enumerate(TEXTS)))
    options = (*command, "--file", source, "--field", "body")
    ran = run_here(*options, "-o", out, "--engine", "processes", "--rows-per-shard", "3", "--json")
    assert (ran.code, json.loads(ran.out)["texts"], json.loads(ran.out)["shards"]) == (0, 4, 2), ran
    assert run_here(*options, "-o", whole).code == 0
    found = rows_of(out)
    assert [(row.pop("id"), row.pop("body")) for row in found] == list(enumerate(TEXTS))
    lines = [json.loads(line) for line in lines_of(whole)]
    for line in lines:
        assert line.pop("text") in TEXTS
        del line["model"], line["revision"], line["source"], line["line"]
    assert close(found, lines)
    results = {"tag": names.tag, "classify": sentiment.classify}[task](TEXTS)
    if "--scheme" in command:
        results = [one.in_scheme("BIOES") for one in results]
    assert close(found, [as_lists(one, *left_out) for one in results])
    totals = json.loads((out / "manifest.json").read_text())["shards"]
    assert sum(one["tokens"] for one in totals) == sum(one.tokens_read for one in results)


@pytest.mark.parametrize("task", [NAMES, BatchTagger(load={"adapter": "names"}, words=True), SENTIMENT])
def test_parquet_has_the_values_of_lines_with_one_schema(task, quick, tmp_path):
    """A shard without a single entity has the types of the others."""
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": one}) + "\n" for one in NO_ENTITY_FIRST)
    )
    parquet.write_table(pyarrow.table({"text": NO_ENTITY_FIRST}), tmp_path / "texts.parquet")
    for kind in ("jsonl", "parquet"):
        run_shards([str(tmp_path / f"texts.{kind}")], str(tmp_path / kind), task, rows_per_shard=2)
    parts = [parquet.read_table(path) for path in sorted((tmp_path / "parquet").glob("part-*"))]
    if isinstance(task, BatchTagger):
        assert [part["entities"].to_pylist() == [[], []] for part in parts] == [True, False]
    assert parts[0].schema == parts[1].schema
    assert parts[0].schema.names == ["text", *task.outputs]
    assert [row for part in parts for row in part.to_pylist()] == rows_of(tmp_path / "jsonl")


@pytest.mark.parametrize("task", [NAMES, SENTIMENT], ids=["tag", "classify"])
def test_batches_keep_their_kind(task):
    copy = pickle.loads(pickle.dumps(task))
    columns = task({"text": TEXTS})
    assert copy({"text": TEXTS}) == columns
    assert list(columns) == ["text", *task.outputs]
    (table,) = task.iterate([pyarrow.table({"text": TEXTS})])
    assert table.to_pydict() == {key: list(values) for key, values in json.loads(json.dumps(columns)).items()}
    assert {key: len(values) for key, values in task({"text": []}).items()} == dict.fromkeys(columns, 0)
    assert task(pyarrow.table({"text": pyarrow.array([], pyarrow.string())})).schema == table.schema
    with pytest.raises(TextError, match="row 1 of the batch"):
        task({"text": ["a word", " "]})


def test_data_frames_keep_their_index():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = SENTIMENT(pandas.DataFrame({"text": TEXTS}, index=[4, 5, 6, 7]))
    assert list(frame.index) == [4, 5, 6, 7]
    assert list(frame["label"]) == SENTIMENT({"text": TEXTS})["label"]


def test_words_that_are_given_are_tagged_as_words(names):
    words = [["Angela", "Merkel", "spoke", "."], ["She", "lives", "in", "Paris", "."]]
    found = NAMES(pyarrow.table({"text": words}))["entities"].to_pylist()
    assert close(found, [as_lists(one)["entities"] for one in names.tag(words)])
    assert [[one["text"] for one in some] for some in found] == [["Angela Merkel"], ["Paris"]]


def test_pairs_and_candidate_labels(quick, tmp_path):
    entailment = unmask.load("default", adapter="entailment")
    rows = [{"a": "A man sleeps.", "b": "A person rests."}, {"a": "It rains.", "b": "The sun shines."}]
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--adapter", "entailment", "--file", source, "--field", "a", "--engine", "processes")
    assert run_here("classify", *options, "--pair-field", "b", "-o", tmp_path / "pairs").code == 0
    wanted = entailment.classify([row["a"] for row in rows], [row["b"] for row in rows])
    assert close(
        rows_of(tmp_path / "pairs"), [row | as_lists(w) for row, w in zip(rows, wanted, strict=True)]
    )
    labels = ("weather", "sport")
    ran = run_here("classify", *options, "--candidate-labels", "weather, sport", "-o", tmp_path / "zero")
    assert ran.code == 0, ran
    wanted = entailment.zero_shot([row["a"] for row in rows], labels)
    assert close(rows_of(tmp_path / "zero"), [row | as_lists(w) for row, w in zip(rows, wanted, strict=True)])
    asked, read = {"column": "a", "load": {"adapter": "entailment"}}, pyarrow.table({"a": ["It rains."]})
    table = BatchClassifier(candidate_labels=labels, **asked)(read)
    assert [one.name for one in table.schema.field("scores").type] == list(labels)
    for threshold in (0.0, 1.0):
        options = {"multi_label": True, "threshold": threshold, "hypothesis_template": "It is about {}."}
        table = BatchClassifier(candidate_labels=labels, **options, **asked)(read)
        (wanted,) = entailment.zero_shot(["It rains."], labels, **options)
        assert table["labels"].to_pylist() == [list(wanted.labels)] == [[] if threshold else list(labels)]
        assert close(table["scores"].to_pylist(), [as_lists(wanted)["scores"]])


def test_any_method_that_predicts_is_mapped(tmp_path):
    """Answers and choices have no class of their own: the method's results say what the columns are."""
    assert set(predicting_methods()) == {
        "answer",
        "check_answer",
        "choose",
        "classify",
        "extract",
        "follows",
        "prune",
        "tag",
        "zero_shot",
    }
    answers = BatchPredictor(
        method="answer", column="question", columns={"contexts": "text"}, load={"adapter": "answers"}
    )
    rows = {"question": ["Who met Tim Cook?", "Where?"], "text": [TEXTS[0], [TEXTS[0], TEXTS[2]]]}
    wanted = unmask.load("default", adapter="answers").answer(rows["question"], rows["text"])
    assert close(
        pickle.loads(pickle.dumps(answers))(rows)["answers"], [as_lists(one)["answers"] for one in wanted]
    )
    table = answers(pyarrow.table({"question": rows["question"], "text": [TEXTS[0]] * 2}))
    assert table.schema.field("answers").type.value_type.get_field_index("score") >= 0
    write_checkpoint(tmp_path / "choices", tiny_bert("BertForMultipleChoice"), sentence=False)
    choose = BatchPredictor(str(tmp_path / "choices"), method="choose", columns={"choices": "options"})
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": "the river", "options": ["a bank", "a text"]}) + "\n" for _ in range(3))
    )
    run_shards([str(tmp_path / "rows.jsonl")], str(tmp_path / "out"), choose, rows_per_shard=2)
    expected = as_lists(unmask.load(tmp_path / "choices").choose("the river", ["a bank", "a text"]))
    for row in rows_of(tmp_path / "out"):
        assert close({name: row[name] for name in expected}, expected)
    with pytest.raises(InvalidRequest, match="method is 'embed'; it can be 'answer', 'check_answer'"):
        BatchPredictor(method="embed").check()
    with pytest.raises(InvalidRequest, match="has no choice head"):
        BatchPredictor(method="choose", columns={"choices": "options"}).check()
    with pytest.raises(InvalidRequest, match="missing a required argument: 'choices'; give its arguments in"):
        BatchPredictor(method="choose").check()
    with pytest.raises(InvalidRequest, match="unexpected keyword argument 'treshold'"):
        BatchPredictor(options={"treshold": 1}).check()


def test_refusals_come_before_the_folder(quick, tmp_path):
    source, out = tmp_path / "texts.jsonl", tmp_path / "out"
    source.write_text('{"text": "A word.", "label": 1}\n')
    engine = ("--engine", "processes", "-o", out)
    for command, said in (
        (("classify", "--file", source, *engine), "has no sequence head"),
        (
            ("classify", "--file", source, "--adapter", "sentiment", "--threshold", "2", *engine),
            "threshold is 2",
        ),
        (("classify", "--file", source, "--pairs", *engine), "--pairs is for lines with a tab"),
        (("tag", "--file", source, "-m", "unmask-mini", *engine), "has no tokens head"),
        (("tag", "--file", source, "--conll", *engine), "--conll is for lines"),
        (("tag", "--file", source, "--format", "lines", *engine), "leave --format out"),
        (("tag", "A text.", *engine), "name one, or several with *, by --file"),
        (("tag", *engine), "name one, or several with *, by --file"),
    ):
        assert_one_sentence(run_here(*command), said)
        assert not out.exists()
    with pytest.raises(InvalidRequest, match="leave one out"):
        BatchClassifier(pair_column="b", candidate_labels=("a",), load={"adapter": "entailment"}).check()
    refused = run_here("classify", "--file", source, "--adapter", "sentiment", *engine)
    assert_one_sentence(refused, "line 1 of", "already has 'label'", "rename it")


def test_a_run_is_not_resumed_with_another_task(quick, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("One.\nTwo.\n")
    out = str(tmp_path / "out")
    (tmp_path / "out").mkdir()
    run_shards([str(source)], out, NAMES)
    (tmp_path / "out" / "manifest.json").rename(tmp_path / "out" / ".plan.json")
    for task in (SENTIMENT, BatchEmbedder(threads=1), BatchTagger(load={"adapter": "names"}, words=True)):
        with pytest.raises(unmask.errors.OutputError, match="other texts or settings"):
            run_shards([str(source)], out, task)
