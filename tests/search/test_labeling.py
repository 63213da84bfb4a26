"""Labels that are probably wrong, and texts to label next: by hand, on planted errors, and by commands."""

import json
import re
import shlex
from contextlib import contextmanager

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.places import REPOSITORY
from unmask.errors import InvalidRequest
from unmask.search import labeling
from unmask.search.labeling import choose_texts, confident_classes, find_label_errors

pytest.importorskip("sklearn", reason="classifiers are fitted with scikit-learn")

WORDS = {"river": ["river", "fish", "deep", "water"], "bank": ["loan", "money", "month", "lends"]}


@pytest.fixture(scope="module")
def rows():
    """120 different texts of two classes, which one word in each tells apart."""
    return [(f"{words[n % 4]} {n}", label) for label, words in WORDS.items() for n in range(60)]


@pytest.fixture
def clear(monkeypatch):
    """Vectors by the class of a text's word, with noise that its number draws, in place of a model's."""
    calls = []

    @contextmanager
    def vectors(model, texts, *_, **__):
        calls.append(len(texts))
        found = []
        for text in texts:
            word, number = text.casefold().split()
            center = np.eye(8)[[word in words for words in WORDS.values()].index(True)]
            noise = np.random.default_rng(int(number)).normal(size=8)
            vector = center + 0.15 * noise
            found.append(vector / np.linalg.norm(vector))
        yield np.array(found, dtype=np.float32).reshape(-1, 8), 0

    monkeypatch.setattr(labeling, "document_vectors", vectors)
    return calls


# --- label errors ------------------------------------------------------------------------------------------


def test_the_confident_joint_by_hand():
    """Means of own probabilities are 0.8 for class 0 and 0.65 for class 1."""
    p_SC = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
    classes_S = np.array([0, 0, 0, 1, 1])
    assert confident_classes(p_SC, classes_S).tolist() == [0, 0, -1, 1, -1]
    swapped = np.array([0, 0, 1, 1, 1])  # class 0: 0.9; class 1: 0.5666...
    assert confident_classes(p_SC, swapped).tolist() == [0, 0, -1, 1, -1]
    three = np.array([[0.5, 0.4, 0.1], [0.3, 0.35, 0.35], [0.0, 0.2, 0.8]])
    # Thresholds 0.5, 0.35, 0.8; of several eligible classes the most probable one counts.
    assert confident_classes(three, np.array([0, 1, 2])).tolist() == [0, 1, 2]
    assert confident_classes(np.array([[0.6, 0.9], [0.6, 0.2]]), np.array([0, 1])).tolist() == [1, 0]
    assert confident_classes(np.array([[0.5, 0.5]] * 4), np.array([0, 0, 1, 1])).tolist() == [0, 0, 0, 0]
    assert confident_classes(np.array([[0.1, 0.9]]), np.array([0])).tolist() == [0]  # no text has 1


def test_given_probabilities_are_ranked_by_self_confidence():
    labels = ["a", "b", "a", "b"]
    probabilities = [{"a": 0.9, "b": 0.1}, {"a": 0.8, "b": 0.2}, {"b": 0.4, "a": 0.6}, {"a": 0.3, "b": 0.7}]
    result = find_label_errors(["w", "x", "y", "z"], labels, probabilities=probabilities)
    assert [row.row for row in result.rows] == [1, 2, 3, 0]
    first = result.rows[0]
    assert (first.label, first.suggested, first.is_confident) == ("b", "a", True)
    assert (first.self_confidence, first.suggested_probability) == (0.2, 0.8)
    assert result.classes == ("a", "b")
    assert result.confident_joint == ((1, 0), (1, 1))  # thresholds 0.75 and 0.45
    assert (result.errors, result.agreement, result.model, result.folds) == (1, 0.75, None, None)


def test_the_confident_class_is_suggested():
    """Of the first text b is more probable than c, and does not reach the mean of texts with b."""
    values = [(0.1, 0.5, 0.4), (0.9, 0.1, 0.0), (0.2, 0.7, 0.1), (0.4, 0.3, 0.3)]
    probabilities = [dict(zip("abc", row, strict=True)) for row in values]
    first = find_label_errors(list("wxyz"), ["a", "a", "b", "c"], probabilities=probabilities).rows[0]
    assert (first.row, first.suggested, first.suggested_probability) == (0, "c", 0.4)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_replaced_labels_are_found(clear, model, rows, seed):
    draw = np.random.default_rng(seed)
    wrong = set(draw.choice(len(rows), 6, replace=False).tolist())
    other = {"river": "bank", "bank": "river"}
    labels = [other[label] if row in wrong else label for row, (_, label) in enumerate(rows)]
    result = find_label_errors([text for text, _ in rows], labels, model, seed=seed)
    assert {row.row for row in result.rows[:6]} == wrong
    confident = {row.row for row in result.rows if row.is_confident}
    assert confident <= wrong
    assert len(confident) == result.errors >= 4
    assert sum(map(sum, result.confident_joint)) <= len(rows)
    assert all(row.suggested == other[row.label] for row in result.rows)
    assert result == find_label_errors([text for text, _ in rows], labels, model, seed=seed)
    assert [row.self_confidence for row in result.rows] == sorted(row.self_confidence for row in result.rows)


def test_a_label_is_not_judged_by_itself_or_by_equal_texts(clear, model, rows, monkeypatch):
    """A wrong label that stands at ten copies of a text would otherwise confirm itself."""
    seen = []
    predicted = labeling._predicted

    def recorded(x_SE, classes_S, other_SE, count, strength):
        seen.append((x_SE, other_SE))
        return predicted(x_SE, classes_S, other_SE, count, strength)

    monkeypatch.setattr(labeling, "_predicted", recorded)
    texts = [text for text, _ in rows] + ["River  0", "RIVER 0"] * 5
    labels = [label for _, label in rows] + ["bank"] * 10
    result = find_label_errors(texts, labels, model, folds=4)
    assert len(seen) == 4
    for fitted_SE, judged_SE in seen:
        assert not (fitted_SE[:, None] == judged_SE[None]).all(-1).any()
    assert sum(len(judged_SE) for _, judged_SE in seen) == len(texts)
    assert {row.row for row in result.rows if row.is_confident} == set(range(120, 130))


def test_folds_have_about_as_many_of_each_class(rows):
    classes_S = np.repeat([0, 1], 60)
    folds_S = labeling._folds([text for text, _ in rows], classes_S, 5, seed=3)
    for fold in range(5):
        assert np.bincount(classes_S[folds_S == fold]).tolist() == [12, 12]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": ["a"]}, "there are 3 texts and 1 labels; give one for each"),
        ({"labels": ["a", "a", "a"]}, "there are 1 labels (a); at least two are needed"),
        ({"labels": ["a", "b", None]}, "label 3 is None; give a text or a whole number"),
        ({"labels": ["a", "b", True]}, "label 3 is True"),
        ({"labels": ["a", "b", 1.5]}, "label 3 is 1.5"),
        ({"labels": ["a", "b", ""]}, "label 3 is ''"),
        ({"labels": ["a", "a", "b"]}, "1 labels have a single text, such as 'b'"),
        ({"folds": 1}, "folds is 1; it must be at least 2"),
        ({"seed": -1}, "seed is -1"),
        ({"texts": "abc"}, "texts is 'abc'"),
        ({"probabilities": [{"a": 1.0}]}, "there are 3 texts and probabilities of 1"),
        ({"probabilities": [{"a": 1.0}] * 3}, "probabilities of text 1 lack the label 'b'"),
        ({"probabilities": [None] * 3}, "probabilities of text 1 lack the label 'a'"),
        ({"probabilities": [{"a": 2, "b": 0}] * 3}, "probabilities of text 1 are [2, 0]"),
        ({"probabilities": [{"a": float("nan"), "b": 0}] * 3}, "probabilities of text 1 are"),
        ({"probabilities": [{"a": 0.7, "b": 0.7}] * 3}, "probabilities of text 1 sum to 1.400"),
    ],
)
def test_wrong_arguments_of_label_errors(model, change, sentence):
    arguments = {"texts": ["x", "y", "z"], "labels": ["a", "a", "b"], "model": model} | change
    if "probabilities" in change:
        arguments["labels"] = ["a", "b", "a"]
    with pytest.raises(InvalidRequest) as error:
        find_label_errors(**arguments)
    assert sentence in str(error.value)


# --- what to label next ------------------------------------------------------------------------------------


def test_the_least_sure_texts_are_chosen(clear, model, rows):
    texts = [text for text, _ in rows]
    known = [0, 1, 2, 60, 61, 62]
    options = {"labeled": [texts[row] for row in known], "labels": [rows[row][1] for row in known]}
    everything = choose_texts(texts, 200, model, by="margin", **options)
    margins = [text.margin for text in everything.rows]
    assert margins == sorted(margins)
    assert {text.row for text in everything.rows} == set(range(120)) - set(known)
    assert (everything.pool, everything.labeled, everything.classes) == (114, 6, ("bank", "river"))
    for text in everything.rows:
        p = (1 + text.margin) / 2
        assert text.entropy == pytest.approx(-(p * np.log(p) + (1 - p) * np.log(1 - p)))
    assert np.mean([text.predicted == rows[text.row][1] for text in everything.rows]) > 0.95
    few = choose_texts(texts, 5, model, **options)
    assert (few.by, few.rows) == ("margin", everything.rows[:5])
    entropies = [text.entropy for text in choose_texts(texts, 30, model, by="entropy", **options).rows]
    assert entropies == sorted(entropies, reverse=True)
    both = choose_texts(texts, 10, model, by="both", **options)
    assert {text.row for text in both.rows} <= {text.row for text in everything.rows[:50]}
    assert both == choose_texts(texts, 10, model, by="both", **options)
    assert both.rows != choose_texts(texts, 10, model, by="both", seed=1, **options).rows


def test_the_farthest_text_is_next(clear, model, rows):
    """Greedy k-center, by brute force."""
    texts = [text for text, _ in rows]
    with labeling.document_vectors(model, texts) as (x_SE, _):
        distances_SS = 1 - x_SE @ x_SE.T
    covered, expected = [5, 70], []
    for _ in range(12):
        nearest_S = distances_SS[:, covered].min(1)
        nearest_S[covered] = -1
        expected.append(int(nearest_S.argmax()))
        covered.append(expected[-1])
    result = choose_texts(
        texts, 12, model, labeled=[texts[5], texts[70]], labels=["river", "bank"], by="k_center"
    )
    assert [text.row for text in result.rows] == expected
    far = [text.distance for text in result.rows]
    assert far == sorted(far, reverse=True)


def test_without_labels_texts_differ(clear, model, rows):
    texts = [text for text, _ in rows]
    result = choose_texts(texts, 4, model)
    assert (result.by, result.classes) == ("both", ())
    assert [text.distance is None for text in result.rows] == [True, False, False, False]
    assert all((text.predicted, text.margin, text.entropy) == (None, None, None) for text in result.rows)
    counts = []
    for seed in range(10):
        chosen = choose_texts(texts, 2, model, seed=seed).rows
        counts.append(len({rows[text.row][1] for text in chosen}))
    assert np.mean(counts) > 1.7  # without the distance, 1.5
    one = choose_texts(texts, 3, model, labeled=["river 0"], labels=["river"], by="k_center")
    assert rows[one.rows[0].row][1] == "bank"


def test_equal_texts_are_one_and_labeled_ones_are_left_out(clear, model):
    pool = ["river 1", "RIVER  1", "loan 2", "loan 3", "river 4"]
    result = choose_texts(pool, 9, model, labeled=["Loan 2"], labels=["bank"], by="random")
    assert result.pool == 3
    assert sorted(text.row for text in result.rows) == [0, 3, 4]
    assert choose_texts(["loan 2"], 1, model, labeled=["loan 2"], labels=["bank"]).rows == ()
    assert choose_texts([], 1, model).rows == ()


def test_equal_vectors_can_all_be_chosen(monkeypatch, model):
    @contextmanager
    def vectors(model, texts, *_, **__):
        yield np.tile(np.eye(1, 4, dtype=np.float32), (len(texts), 1)), 0

    monkeypatch.setattr(labeling, "document_vectors", vectors)
    for by in ("both", "k_center", "random"):
        result = choose_texts(["a", "b", "c"], 3, model, by=by)
        assert sorted(text.row for text in result.rows) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"number": 0}, "number is 0; it must be at least 1"),
        ({"by": "luck"}, "by is 'luck'; it can be 'margin'"),
        ({"by": "margin"}, "by is 'margin' and the labeled texts have 0 labels"),
        ({"labeled": ["x"]}, "there are 1 texts and 0 labels"),
        ({"labeled": ["x"], "labels": ["a", "b"]}, "there are 1 texts and 2 labels"),
        ({"pool": "abc"}, "pool is 'abc'"),
    ],
)
def test_wrong_arguments_of_choosing(model, options, sentence):
    with pytest.raises(InvalidRequest) as error:
        choose_texts(**{"pool": ["x", "y"], "number": 1, "model": model} | options)
    assert sentence in str(error.value)


# --- commands ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(folder, rows, tmp_path, monkeypatch):
    """The files that the page names, with one wrong label."""
    monkeypatch.chdir(tmp_path)
    labels = ["bank", *(label for _, label in rows[1:])]
    with open("reviews.csv", "w") as file:
        file.write("id,text,label\n")
        file.writelines(
            f'{n},"{text}",{label}\n' for n, ((text, _), label) in enumerate(zip(rows, labels, strict=True))
        )
    with open("predicted.jsonl", "w") as file:
        for (text, label), given in zip(rows, labels, strict=True):
            scores = {name: 0.9 if name == label else 0.1 for name in WORDS}
            file.write(json.dumps({"text": text, "label": given, "scores": scores}) + "\n")
    with open("numbers.jsonl", "w") as file:
        file.writelines(
            json.dumps({"text": text, "label": int(label == "bank")}) + "\n" for text, label in rows
        )
    with open("pool.txt", "w") as file:
        file.writelines(f"{word} {n}\n" for n in range(200, 220) for word in ("fish", "money"))
    with open("labeled.csv", "w") as file:
        file.write("text,label\nriver 1,river\nloan 2,bank\nfish 3,river\n")
    return tmp_path


def lines(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_the_command_lists_wrong_labels(clear, place, folder, rows):
    *suspects, summary = lines(run_here("label-errors", "reviews.csv", "-m", folder))
    assert suspects == [
        {
            "source": "reviews.csv", "row": 2, "text": "river 0", "label": "bank", "suggested": "river",
            "self_confidence": suspects[0]["self_confidence"], "is_confident": True,
            "suggested_probability": suspects[0]["suggested_probability"],
        }
    ]  # fmt: skip
    assert (summary["kind"], summary["errors"], summary["classes"]) == ("summary", 1, ["bank", "river"])
    assert summary["confident_joint"][0][1] == 1
    assert len(lines(run_here("label-errors", "reviews.csv", "-m", folder, "--top", "7"))) == 8
    *none, summary = lines(run_here("label-errors", "numbers.jsonl", "-m", folder, "--json"))
    assert (none, summary["classes"], summary["errors"]) == ([], ["0", "1"], 0)


def test_the_command_reads_probabilities(place):
    """Without a model."""
    command = ["label-errors", "predicted.jsonl", "--probabilities-field", "scores", "-m", "no/model"]
    *suspects, summary = lines(run_here(*command))
    assert [(row["line"], row["self_confidence"]) for row in suspects] == [(1, 0.1)]
    assert summary["model"] is None


def test_the_command_chooses_rows(clear, place, folder):
    command = ["next", "pool.txt", "--labeled", "labeled.csv", "-m", folder, "-n", "3"]
    *chosen, summary = lines(run_here(*command, "-o", "chosen.txt"))
    pool = (place / "pool.txt").read_text().splitlines()
    assert [pool[row["line"] - 1] for row in chosen] == [row["text"] for row in chosen]
    assert sorted((place / "chosen.txt").read_text().splitlines()) == sorted(row["text"] for row in chosen)
    assert (summary["by"], summary["chosen"], summary["pool"], summary["labeled"]) == ("margin", 3, 40, 3)
    *first, summary = lines(run_here("next", "pool.txt", "-m", folder, "-n", "2"))
    assert summary["by"] == "both"
    assert len(first) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["label-errors"], "no inputs are given"),
        (["label-errors", "pool.txt"], "pool.txt is taken for a file of format lines"),
        (
            ["label-errors", "reviews.csv", "--label-field", "stars"],
            "set --label-field to one of: id, text",
        ),
        (["label-errors", "reviews.csv", "--top", "0"], "--top is 0"),
        (["label-errors", "reviews.csv", "--probabilities-field", "p"], "has no 'p'"),
        (["label-errors", "predicted.jsonl", "--label-field", "scores"], "has no text under 'scores'"),
        (["next"], "no inputs are given"),
        (["next", "pool.txt", "--by", "margin"], "at least two are needed"),
        (["next", "pool.txt", "-o", "a.csv"], "names another format"),
    ],
)
def test_misuse_of_the_commands(place, folder, arguments, sentence):
    assert_one_sentence(run_here(*arguments, *(["-m", folder] if len(arguments) > 1 else [])), sentence)


def test_the_page_runs(clear, place, folder, rows, monkeypatch):
    page = (REPOSITORY / "docs" / "labels.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(labeling, "load", lambda _: unmask.load(folder))
    texts = [text for text, _ in rows]
    values = {"texts": texts, "labels": [label for _, label in rows], "pool": ["fish 300", "money 301"]}
    for kind, block in found:
        if kind == "python":
            exec(block, values)
        for line in block.splitlines() if kind == "sh" else ():
            lines(run_here(*shlex.split(line)[1:], "-m", folder))
    assert len(values["chosen"].rows) == 2
    assert (place / "first.txt").exists()
    assert (place / "next.txt").exists()
    assert [kind for kind, _ in found] == ["sh", "python", "sh", "python"]
