"""``unmask bench accuracy --task``: what a number format costs a head, on labeled data, and its bound."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.places import shared
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.bench.benchmark_model import benchmark_model
from unmask.bench.machine import LeftOut
from unmask.bench.speed import accuracy
from unmask.bench.speed.accuracy import (
    DATA_SETS,
    check_drop,
    disorder,
    labeled_data,
    measure_task_accuracy,
)
from unmask.errors import AccuracyLoss, InvalidRequest

pytestmark = pytest.mark.long

WORDS = ("river", "bank", "muddy", "text", "another", "the", "was", "a")
TEXTS = [" ".join(pair) for pair in itertools.permutations(WORDS[:6], 2)]
TAGS = ("O", "B-X", "I-X")


def labels(*names, **more):
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}, **more}


KINDS = {
    "classification": ("BertForSequenceClassification", labels("bad", "good")),
    "several": (
        "BertForSequenceClassification",
        labels("wet", "dry", "old", problem_type="multi_label_classification"),
    ),
    "scores": ("BertForSequenceClassification", labels("score", problem_type="regression")),
    "tagging": ("BertForTokenClassification", labels(*TAGS)),
    "answers": ("BertForQuestionAnswering", {}),
}


def question(number, context):
    word = context.split()[number % 2]
    answer = {"text": word, "answer_start": context.index(word)}
    return {"id": str(number), "question": WORDS[number % 8], "answers": [answer]}


def write_data(folder):
    """A labeled file for each kind."""
    rows = {
        "classification": [{"text": t, "label": ("bad", "good")[i % 2]} for i, t in enumerate(TEXTS)],
        "several": [{"text": t, "label": ["wet", "old"][: i % 3]} for i, t in enumerate(TEXTS)],
        "scores": [{"s1": t, "s2": TEXTS[-i], "much": i % 6 / 2} for i, t in enumerate(TEXTS)],
    }
    for name, records in rows.items():
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    sentences = ["".join(f"{word}\t{TAGS[len(word) % 3 % 2]}\n" for word in text.split()) for text in TEXTS]
    (folder / "tagging.conll").write_text("\n".join(sentences))
    paragraphs = [{"context": text, "qas": [question(i, text)]} for i, text in enumerate(TEXTS)]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (folder / "answers.json").write_text(json.dumps(squad))
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("heads")
    for name, (kind, config) in KINDS.items():
        # With this seed both classes occur.
        write_checkpoint(made / name, tiny_bert(kind, seed=10, **config), sentence=False)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("labeled"))


COLUMNS = {"scores": {"text": "s1", "pair": "s2", "label": "much"}}
EXPECTED = {
    "classification": ("accuracy", "labels", 30),
    "several": ("micro_f1", "sets of labels", 30),
    "scores": ("spearman", "orders of two texts", 30 * 29 // 2),
    "tagging": ("f1", "labels of words", 60),
    "answers": ("f1", "answers", 30),
}


def measured(folder, files, name, **options):
    task = "classification" if name == "several" else name
    with benchmark_model(str(folder / name), None, layers=None, seed=0) as subject:
        data = labeled_data(task, files[name], COLUMNS.get(name, {}))
        return measure_task_accuracy(subject, task, data, **options)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_head(folder, files, name):
    report = measured(folder, files, name, dtypes=("int8",))
    exact, narrow = report.rows
    assert (report.metric, report.counted, narrow.predictions) == EXPECTED[name]
    assert (exact.dtype, exact.flips, exact.change, exact.largest_logit_difference) == ("float32", 0, 0, 0)
    assert (exact.change_interval.low, exact.change_interval.high) == (0, 0)
    assert narrow.dtype == "int8"
    assert 0 < narrow.largest_logit_difference < 2
    assert narrow.change == pytest.approx(narrow.metric - exact.metric)
    assert narrow.change_interval.low <= narrow.change <= narrow.change_interval.high
    assert 0 <= narrow.flips < narrow.predictions
    (line,) = report.card
    for part in ("int8", files[name].name, f"{narrow.metric:.4f}", f"{narrow.flips:,} of", report.counted):
        assert part in line


def test_flips_and_differences_are_those_of_the_outputs(folder, files):
    """Counted here from what the two models give."""
    texts = [json.loads(line)["text"] for line in files["classification"].read_text().splitlines()]
    models = [unmask.load(folder / "classification", dtype=dtype) for dtype in ("float32", "int8")]
    exact, narrow = ([one.label for one in model.classify(texts)] for model in models)
    logits = [model.logits(texts).values for model in models]
    report = measured(folder, files, "classification", dtypes=("int8",))
    row = report.rows[1]
    assert row.flips == sum(a != b for a, b in zip(exact, narrow, strict=True))
    assert row.largest_logit_difference == pytest.approx(np.abs(logits[0] - logits[1]).max(), abs=1e-6)
    right = [("bad", "good")[i % 2] for i in range(len(texts))]
    assert set(exact) == {"bad", "good"}
    assert report.rows[0].metric == np.mean(np.array(exact) == right)
    assert row.metric == np.mean(np.array(narrow) == right)


def other_labels(monkeypatch, folder):
    """Let the model in bfloat16 be one with the labels exchanged."""
    real = accuracy.load

    def load(source, *, dtype="float32", **options):
        model = real(source, **options)
        if dtype == "bfloat16":
            infer = model.engine.logits
            monkeypatch.setattr(model.engine, "logits", lambda batch, role: -infer(batch, role))
        return model

    monkeypatch.setattr(accuracy, "load", load)


def test_a_model_that_predicts_the_opposite(monkeypatch, folder, files):
    other_labels(monkeypatch, folder)
    report = measured(folder, files, "classification", dtypes=("bfloat16",))
    exact, narrow = report.rows
    assert narrow.flips == 30
    assert narrow.metric == pytest.approx(1 - exact.metric)
    assert narrow.change_interval.high - narrow.change_interval.low > 0.2
    scores = measured(folder, files, "scores", dtypes=("bfloat16",))
    assert scores.rows[1].flips == scores.rows[1].predictions
    assert scores.rows[1].metric == pytest.approx(-scores.rows[0].metric)


@pytest.mark.parametrize("seed", range(3))
def test_disorder(seed):
    draw = np.random.default_rng(seed)
    ours, theirs = draw.integers(0, 5, (2, 13)).astype(float)
    pairs = list(itertools.combinations(range(13), 2))
    differ = sum(np.sign(ours[a] - ours[b]) != np.sign(theirs[a] - theirs[b]) for a, b in pairs)
    assert disorder(ours, theirs) == (differ, len(pairs))
    assert disorder(ours, 2 * ours + 1) == (0, len(pairs))


def test_the_first_texts(folder, files):
    report = measured(folder, files, "tagging", dtypes=("int8",), count=7)
    assert (report.texts, report.rows[1].predictions) == (7, 14)


def with_change(report, *changes):
    """The same report with these changes of the metric."""
    exact = report.rows[0]
    rows = [replace(exact, dtype=name, metric=exact.metric + change) for name, change in changes]
    return replace(report, rows=(exact, *rows))


def test_the_bound(folder, files):
    report = measured(folder, files, "classification", dtypes=())
    check_drop(with_change(report, ("int8", -0.02), ("bfloat16", 0.3)), 0.02 + 1e-12)
    expected = r"int8 lowers accuracy by 0\.0201 from .* and 0\.02 is allowed; use another"
    with pytest.raises(AccuracyLoss, match=expected):
        check_drop(with_change(report, ("bfloat16", 0.0), ("int8", -0.0201)), 0.02)
    unmeasured = replace(report, left_out=(LeftOut("int8", "", "it is not supported"),))
    with pytest.raises(AccuracyLoss, match="int8 was not measured: it is not supported"):
        check_drop(unmeasured, 1.0)


def test_the_command_ends_with_an_error_after_the_report(monkeypatch, folder, tmp_path):
    other_labels(monkeypatch, folder)
    right, out = tmp_path / "right.jsonl", tmp_path / "report.json"
    model = unmask.load(folder / "classification")
    rows = [{"text": text, "label": model.classify(text).label} for text in TEXTS]
    right.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["bench", "accuracy", "-m", folder / "classification", "--task", "classification"]
    arguments += ["--data", right, "--dtype", "bfloat16", "-o", out]
    assert run_here(*arguments, "--max-drop", 1).code == 0
    done = run_here(*arguments, "--max-drop", 0.99)
    assert done.code == 1
    assert done.err.endswith(
        "unmask: bfloat16 lowers accuracy by 1.0000 from 1.0000 to 0.0000, and 0.99 is allowed; use another "
        "number format, or allow more\n"
    )
    assert "for a model card: bfloat16" in done.out
    report = json.loads(out.read_text())
    assert report["protocol"] == "task accuracy"
    assert report["rows"][1]["change_interval"] == {"low": -1, "high": -1}
    assert report["card"][0].startswith("bfloat16 compared with float32 on 30 texts of right.jsonl")


def test_a_chart(folder, files, tmp_path):
    picture = tmp_path / "flips.svg"
    arguments = ["-m", folder / "tagging", "--task", "tagging", "--data", files["tagging"], "--dtype", "int8"]
    assert run_here("bench", "accuracy", *arguments, "--picture", picture).code == 0
    drawn = picture.read_text()
    assert "labels of words" in drawn
    assert "30 texts" in drawn


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--task", "tagging"), ("--task tagging needs labeled texts", "--data")),
        (("--task", "tagging", "--data", "x", "--texts", "y"), ("--texts is given with --task tagging",)),
        (("--task", "tagging", "--data", "nowhere.conll"), ("nowhere.conll does not exist",)),
        (("--task", "tagging", "--data", ".", "--label", "1"), ("label is given and . is a folder",)),
        (("--adapter", "names"), ("--adapter is given without --task",)),
        (("--rename-labels", "a=b"), ("--rename-labels is given without --task",)),
        (("--max-drop", "0.1"), ("--max-drop is given and no metric is measured",)),
        (("--task", "tagging", "--data", "x", "--max-drop", "nan"), ("--max-drop is nan",)),
        (("--task", "tagging", "--data", "x", "--max-drop", "-1"), ("--max-drop is -1",)),
        (("--count", "0"), ("--count is 0",)),
    ],
)
def test_errors_are_one_sentence(folder, arguments, parts):
    assert_one_sentence(run_here("bench", "accuracy", "-m", folder / "tagging", *arguments), *parts)


def test_a_head_of_another_kind_is_named(folder, files):
    with benchmark_model(str(folder / "scores"), None, layers=None, seed=0) as subject:
        data = labeled_data("classification", files["classification"], {})
        with pytest.raises(InvalidRequest, match="gives a number; use scores"):
            measure_task_accuracy(subject, "classification", data)
    with benchmark_model(str(folder / "classification"), None, layers=None, seed=0) as subject:
        data = labeled_data("scores", files["scores"], COLUMNS["scores"])
        with pytest.raises(InvalidRequest, match="gives labels; use classification"):
            measure_task_accuracy(subject, "scores", data)


@pytest.mark.parametrize("task", DATA_SETS)
def test_the_files_of_a_folder_of_data_sets(task):
    folder = shared("data")
    data = labeled_data(task, folder, {"pair": None})
    assert data.dev == (str(folder / DATA_SETS[task][0]),)


def test_a_shipped_adapter_on_the_folder_of_data_sets():
    folder = shared("data")
    arguments = ["--task", "classification", "--adapter", "sentiment", "--data", folder, "--count", "40"]
    done = run_here("bench", "accuracy", *arguments, "--dtype", "int8", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["adapter"], report["texts"], report["source"]) == ("sentiment", 40, "dev.tsv.xz")
    assert report["rows"][0]["metric"] > 0.8
