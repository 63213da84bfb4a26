"""Scores of models with a head: SQuAD's rules, entities, classes, and the commands that print them."""

import collections
import json
import random
import re
import string

import numpy as np
import pytest
from sklearn import metrics

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.training.finetune.test_finetune import place, table
from unmask.base.intervals import samples
from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.runs import data_settings
from unmask.evaluate.protocols.scores import classification_scores, entity_intervals, scored_entities
from unmask.evaluate.protocols.squad import Answered, scored_answers, squad_scores
from unmask.training.finetune.run import finetune

pytestmark = pytest.mark.long

__all__ = ["place"]


@pytest.fixture(scope="module")
def models(place, tmp_path_factory):
    """A tiny model of each kind, trained for a few steps."""
    out = tmp_path_factory.mktemp("models")
    data = {"classify": "tsv", "ner": "conll", "squad": "json"}
    tasks = {"classify": "classification", "ner": "tagging", "squad": "answering"}
    found = {}
    for name, ending in data.items():
        given = {"task": tasks[name], "data": {"train": [f"train.{ending}"]}, "evaluation": {}, "epochs": 2}
        found[name] = finetune(table(out / name, **given), base=place).folder
    return found


# SQuAD: the official script's own steps, written anew from their description


def official_normalize(text):
    text = "".join(one for one in text.lower() if one not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text, flags=re.UNICODE).split())


def official_f1(gold, found):
    one, other = official_normalize(gold).split(), official_normalize(found).split()
    if not one or not other:
        return int(one == other)
    same = sum((collections.Counter(one) & collections.Counter(other)).values())
    if not same:
        return 0
    precision, recall = same / len(other), same / len(one)
    return 2 * precision * recall / (precision + recall)


def official(said, threshold):
    """make_eval_dict, apply_no_ans_threshold and find_all_best_thresh of the script for 2.0."""
    exact, f1 = {}, {}
    for number, one in enumerate(said):
        gold = [text for text in one.gold if official_normalize(text)] or [""]
        exact[number] = max(int(official_normalize(text) == official_normalize(one.text)) for text in gold)
        f1[number] = max(official_f1(text, one.text) for text in gold)

    def with_threshold(scores):
        return {
            number: float(not one.gold) if one.null_difference > threshold else scores[number]
            for number, one in enumerate(said)
        }

    def mean(scores, some):
        return 100 * sum(scores[number] for number in some) / len(some)

    def best(scores):
        # The script counts every span given to a question without an answer as wrong here, also "the", and
        # the empty one as right.
        scores = {
            number: scores[number] if one.gold else float(not one.text) for number, one in enumerate(said)
        }
        every = []  # the mean with each possible threshold, tried one by one
        for tried in sorted({one.null_difference for one in said}):
            kept = {
                number: float(not one.gold) if one.null_difference > tried else scores[number]
                for number, one in enumerate(said)
            }
            every.append((mean(kept, kept), tried))
        nothing = 100 * sum(not one.gold for one in said) / len(said)
        top = max([nothing, *(value for value, _ in every)])
        first = next((tried for value, tried in every if value == pytest.approx(top, abs=1e-9)), 0.0)
        return top, 0.0 if nothing == pytest.approx(top, abs=1e-9) else first

    has = [number for number, one in enumerate(said) if one.gold]
    no = [number for number, one in enumerate(said) if not one.gold]
    kept = with_threshold(exact), with_threshold(f1)
    return {
        "exact": mean(kept[0], range(len(said))), "f1": mean(kept[1], range(len(said))),
        "HasAns_exact": mean(kept[0], has), "HasAns_f1": mean(kept[1], has),
        "NoAns_exact": mean(kept[0], no), "NoAns_f1": mean(kept[1], no),
        "best_exact": best(exact), "best_f1": best(f1),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_scored_as_by_the_official_script(seed):
    draw = random.Random(seed)
    words = ["the", "Beyoncé", "1990s", "late", "a", "river,", "bank"]

    def text(least):
        return " ".join(draw.choices(words, k=draw.randint(least, 3)))

    said = [
        Answered(
            tuple(text(1) for _ in range(draw.randint(0, 3))) if draw.random() < 0.6 else (),
            text(0),
            0.5 if number == 0 else draw.uniform(-3, 3),  # one at the threshold itself
        )
        for number in range(60)
    ]
    assert any(not one.text and not one.gold for one in said) or seed
    wanted, found = official(said, 0.5), scored_answers(said, threshold=0.5)
    assert (found.exact_match, found.f1) == pytest.approx((wanted["exact"], wanted["f1"]))
    has, no, best = found.has_answer, found.no_answer, found.best_threshold
    assert (has.exact_match, has.f1) == pytest.approx((wanted["HasAns_exact"], wanted["HasAns_f1"]))
    assert (no.exact_match, no.f1) == pytest.approx((wanted["NoAns_exact"], wanted["NoAns_f1"]))
    assert has.questions + no.questions == found.questions == 60
    assert (best.exact_match, best.exact_match_threshold) == pytest.approx(wanted["best_exact"])
    assert (best.f1, best.f1_threshold) == pytest.approx(wanted["best_f1"])
    assert best.f1 >= found.f1


def test_version_1_has_no_threshold():
    said = [Answered(("the river",), "River!", 9.0), Answered(("a bank", "muddy bank"), "muddy", 9.0)]
    found = scored_answers(said)
    assert (found.exact_match, found.threshold, found.best_threshold, found.no_answer) == (
        50,
        None,
        None,
        None,
    )
    assert found.f1 == pytest.approx(100 * (1 + 2 / 3) / 2), "the best over the accepted answers"


def write_v2(place, folder):
    content = json.loads((place / "dev.json").read_text())
    for number, paragraph in enumerate(content["data"][0]["paragraphs"]):
        if number % 3 == 0:
            paragraph["qas"][0] |= {"is_impossible": True, "answers": []}
    (folder / "v2.json").write_text(json.dumps(content))
    return folder / "v2.json"


def test_a_model_answers_version_2(models, place, tmp_path):
    path = write_v2(place, tmp_path)
    model = unmask.load(models["squad"])
    always, never = (
        squad_scores(model, data_settings({"format": "squad"}, path), threshold=value)
        for value in (1e9, -1e9)
    )
    assert always.no_answer.f1 < 100, "a span of articles alone counts as no answer"
    assert (never.has_answer.f1, never.no_answer.f1, never.no_answer.questions) == (0, 100, 10)
    plain = squad_scores(model, data_settings({"format": "squad"}, place / "dev.json"))
    assert plain.threshold is None
    assert always.has_answer.questions == 20
    said = model.answer("the bank", "the river was muddy", no_answer=True, null_threshold=1.0)
    content = {"data": [{"paragraphs": [{"context": "the river was muddy", "qas": [
        {"id": "x", "question": "the bank", "answers": [{"text": "river", "answer_start": 4}]},
        {"id": "y", "question": "the bank", "answers": []},
    ]}]}]}  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps(content))
    difference = float(np.log(said.null_score) - np.log(said.answers[0].score))
    above, below = (
        squad_scores(
            model, data_settings({"format": "squad"}, tmp_path / "one.json"), threshold=difference + step
        )
        for step in (1e-4, -1e-4)
    )
    assert above.no_answer.exact_match == 0, "the span is given, because no answer does not exceed it by more"
    assert below.no_answer.exact_match == 100


def test_without_a_model_the_default_one_is_scored(place, tmp_path):
    """With the adapter that answers or finds names where none is named, as in `unmask answer` and `tag`."""
    context = "Ada Lovelace lived in London."
    asked = {
        "id": "q",
        "question": "Where did she live?",
        "answers": [{"text": "London", "answer_start": 22}],
    }
    squad, conll = tmp_path / "one.json", tmp_path / "one.conll"
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [asked]}]}]}))
    conll.write_text("Ada\tB-PER\nLovelace\tI-PER\nlived\tO\nin\tO\nLondon\tB-LOC\n")
    for adapter in ((), ("--adapter", "answers")):
        ran = run_here("evaluate", "squad", "--data", squad, *adapter, "--json")
        assert json.loads(ran.out)["f1"] == 100, ran.err
    ran = run_here("evaluate", "ner", "--data", conll, "--json")
    assert json.loads(ran.out)["f1"] == 1, ran.err


def test_scores_do_not_depend_on_the_offsets_of_answers(models, place, tmp_path):
    content = json.loads((place / "dev.json").read_text())
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                for answer in asked["answers"]:
                    answer["answer_start"] += 1
    (tmp_path / "moved.json").write_text(json.dumps(content))
    model = unmask.load(models["squad"])
    settings = {"format": "squad"}
    expected = squad_scores(model, data_settings(settings, place / "dev.json"))
    moved = squad_scores(model, data_settings(settings, tmp_path / "moved.json"))
    assert (moved.exact_match, moved.f1) == (expected.exact_match, expected.f1)
    answered = run_here("answer", "-m", models["squad"], "--questions", tmp_path / "moved.json", "--json")
    assert answered.code == 0, answered.err


def test_squad_prints(models, place, tmp_path):
    path = write_v2(place, tmp_path)
    here = ("evaluate", "squad", "-m", models["squad"], "--data", path)
    found = json.loads(run_here(*here, "--json", "--output", tmp_path / "r.json").out)
    assert json.loads((tmp_path / "r.json").read_text()) == found
    assert found["has_answer"]["questions"] == 20
    shown = run_here(*here).out
    assert f"{found['exact_match']:.2f}" in shown
    assert "with the best thresholds on the same data" in shown
    assert "best thresholds" not in run_here(*here[:-1], place / "dev.json").out


# Entities: seqeval's published examples, and its rules of where a chunk starts and ends, written anew


def chunks(labels):
    """Entities by the rules of conlleval, which seqeval's default mode follows."""
    found, kind_before, tag_before, begin = [], "", "O", 0
    for number, label in enumerate([*labels, "O"]):
        tag, _, kind = label.partition("-")
        ends = tag_before in ("E", "S") or (tag_before in ("B", "I") and tag in ("B", "S", "O"))
        ends = ends or (tag_before not in ("O", ".") and kind_before != kind)
        if ends and tag_before != "O":
            found.append((kind_before, begin, number))
        starts = tag in ("B", "S") or (tag in ("E", "I") and tag_before in ("E", "S", "O"))
        if starts or (tag not in ("O", ".") and kind_before != kind):
            begin = number
        tag_before, kind_before = tag, kind
    return found


def independent(gold, found):
    """Micro and per type: precision, recall, F1."""
    sets = [
        {(number, *one) for number, labels in enumerate(part) for one in chunks(labels)}
        for part in (gold, found)
    ]
    kinds = sorted({one[1] for one in sets[0] | sets[1]})
    result = {}
    for kind in [None, *kinds]:
        theirs, ours = ({one for one in part if kind in (None, one[1])} for part in sets)
        right = len(theirs & ours)
        precision, recall = right / max(1, len(ours)), right / max(1, len(theirs))
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        result[kind] = (precision, recall, f1, len(theirs))
    return result


def test_the_example_of_seqeval():
    gold = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    found = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    scores = scored_entities(gold, found)
    assert (scores.precision, scores.recall, scores.f1) == (0.5, 0.5, 0.5)
    assert scores.accuracy == pytest.approx(0.80)
    assert {name: (one.f1, one.gold) for name, one in scores.types.items()} == {"MISC": (0, 1), "PER": (1, 1)}


@pytest.mark.parametrize("prefixes", ["BIO", "IO", "BIOES"])
def test_entities_are_those_of_an_independent_count(prefixes):
    draw = random.Random(0)
    names = ["O", *(f"{prefix}-{kind}" for prefix in prefixes if prefix != "O" for kind in ("PER", "LOC"))]
    for _ in range(200):
        gold, found = ([draw.choices(names, k=length) for length in (1, 5, 9)] for _ in range(2))
        found[2] = [
            one if draw.random() < 0.7 else other for one, other in zip(gold[2], found[2], strict=True)
        ]
        wanted, scores = independent(gold, found), scored_entities(gold, found)
        micro = wanted.pop(None)
        assert (scores.precision, scores.recall, scores.f1) == pytest.approx(micro[:3])
        types = {name: (one.precision, one.recall, one.f1, one.gold) for name, one in scores.types.items()}
        assert types.keys() == wanted.keys()
        for name, values in wanted.items():
            assert types[name] == pytest.approx(values), (name, gold, found)


def test_ner_of_a_model(models, place):
    here = ("evaluate", "ner", "-m", models["ner"], "--data", place / "dev.conll")
    found = json.loads(run_here(*here, "--json").out)
    model = unmask.load(models["ner"])
    sentences = [block.splitlines() for block in (place / "dev.conll").read_text().strip().split("\n\n")]
    gold = [[line.split("\t")[1] for line in block] for block in sentences]
    tagged = model.tag([[line.split("\t")[0] for line in block] for block in sentences])
    ours = [[word.label for word in one.words] for one in tagged]
    assert found["f1"] == pytest.approx(independent(gold, ours)[None][2])
    assert found["types"]["W"]["gold"] == independent(gold, ours)["W"][3]
    assert found["words"] == sum(map(len, gold))
    assert "over all entities (micro)" in run_here(*here).out


# Classes


def test_classes_beside_scikit_learn(models, place):
    model = unmask.load(models["classify"])
    data = data_settings({"long_texts": "window"}, place / "dev.tsv")
    found = classification_scores(model, data)
    rows = [line.split("\t") for line in (place / "dev.tsv").read_text().splitlines()[1:]]
    said = model.classify([row[0] for row in rows])
    gold, ours = [row[1] for row in rows], [one.label for one in said]
    assert found.accuracy == metrics.accuracy_score(gold, ours)
    assert found.macro_f1 == pytest.approx(metrics.f1_score(gold, ours, average="macro"))
    assert found.matthews == pytest.approx(metrics.matthews_corrcoef(gold, ours))
    labels = ["dry", "wet"]
    np.testing.assert_array_equal(found.confusion, metrics.confusion_matrix(gold, ours, labels=labels))
    each = metrics.precision_recall_fscore_support(gold, ours, labels=labels, zero_division=0)
    for place_, name in enumerate(labels):
        one = found.classes[name]
        wanted = tuple(part[place_] for part in each)
        assert (one.precision, one.recall, one.f1, one.gold) == pytest.approx(wanted)
    p = [[one.scores[label] for label in labels] for one in said]
    assert found.calibration["nll"] == pytest.approx(metrics.log_loss(gold, p, labels=labels))


def test_classify_prints_and_renames(models, place, tmp_path):
    here = ("evaluate", "classify", "-m", models["classify"], "--data")
    found = json.loads(run_here(*here, place / "dev.tsv", "--json").out)
    assert f"accuracy {found['accuracy']:.4f}" in run_here(*here, place / "dev.tsv").out
    text = (place / "dev.tsv").read_text().replace("\twet\t", "\t1\t").partition("\n")[2]
    (tmp_path / "other.tsv").write_text(text)
    options = ("--columns", "text,label,length", "--rename-labels", "1=wet")
    renamed = json.loads(run_here(*here, tmp_path / "other.tsv", *options, "--json").out)
    assert renamed["confusion"] == found["confusion"]


# Fine-tuning first


def test_ner_and_squad_by_a_protocol(place, tmp_path):
    for kind, protocol, ending in (("ner", "ner/conll", "conll"), ("squad", "squad/v1", "json")):
        here = ("evaluate", kind, "-m", place / "tiny", "--data", place / f"dev.{ending}", "--seeds", "1,2")
        runs = tmp_path / kind
        more = ("--protocol", protocol, "--train", place / f"train.{ending}", "--runs", runs)
        more += ("--dev", place / "dev.conll") if kind == "ner" else ()
        ran = run_here(*here, *more, "--json")
        assert ran.code == 0, ran.err
        report = json.loads(ran.out)
        (task,) = report["tasks"].values()
        name = {"ner": "NER F1", "squad": "SQuAD 1.1 F1"}[kind]
        for seed in ("1", "2"):
            folder = runs / kind / f"seed-{seed}" / "model"
            alone = run_here("evaluate", kind, "-m", folder, "--data", place / f"dev.{ending}", "--json")
            assert json.loads(alone.out)["f1"] == pytest.approx(task["columns"][name]["values"][seed])
            assert task["scores"][seed]["f1"] == task["columns"][name]["values"][seed]
        assert report["note"].startswith("These are scores on the data given")
        assert (runs / "report.md").is_file()
        again = run_here(*here, *more)
        assert f"{kind}/seed-1: already finished" in again.err
        assert name in again.out


# What cannot be


@pytest.mark.parametrize(
    ("kind", "options", "parts"),
    [
        ("squad", ("-m", "ner"), ("cannot answer questions", "no span head")),
        ("ner", ("-m", "classify"), ("cannot label words", "no tokens head")),
        ("classify", ("-m", "ner"), ("cannot classify texts",)),
        ("classify", ("--label", "kind"), ("no column 'kind'", "text, label, length")),
        ("classify", ("--label", "length"), ("line 2 of", "has the label", "predicts dry, wet", "OLD=NEW")),
        ("classify", ("--rename-labels", "dry"), ("--rename-labels is 'dry'",)),
        ("classify", ("--rename-labels", ","), ("--rename-labels is ','",)),
        ("ner", ("--data", "odd.conll"), ("has the label 'B-X'", "predicts O, B-W")),
        ("ner", ("--data", "none.conll"), ("none.conll does not exist",)),
        ("squad", ("--data", "dev.tsv"), ("dev.tsv is not JSON",)),
        ("squad", ("--max-answer-tokens", "0"), ("max_answer_tokens is 0",)),
        ("squad", ("--threshold", "nan"), ("threshold is nan",)),
        ("squad", ("--train", "train.json"), ("--train is given without --protocol",)),
        ("squad", ("--protocol", "v1"), ("--protocol is given without --train",)),
        ("ner", ("--protocol", "conll", "--train", "x", "--runs", "y", "--adapter", "z"), ("--adapter",)),
        ("ner", ("--protocol", "conll", "--train", "x", "--runs", "y"), ("x does not exist",)),
        (
            "ner",
            ("--protocol", "squad/v1", "--train", "x", "--runs", "y"),
            ("no protocol 'squad/v1' for ner",),
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(models, place, kind, options, parts, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    (place / "odd.conll").write_text("the\tO\nbank\tB-X\n")
    ending = {"classify": "tsv", "ner": "conll", "squad": "json"}[kind]
    given = {"-m": kind, "--data": f"dev.{ending}"} | dict(zip(options[::2], options[1::2], strict=True))
    given["-m"] = models[given["-m"]]
    assert_one_sentence(
        run_here("evaluate", kind, *(part for pair in given.items() for part in pair)), *parts
    )


def test_other_heads_are_refused(place, tmp_path):
    data = {"train": ["train.tsv"], "label": "length"}
    given = {"task": "regression", "data": data, "evaluation": {}, "epochs": 1}
    model = unmask.load(finetune(table(tmp_path / "numbers", **given), base=place).folder)
    with pytest.raises(InvalidRequest, match="is for regression, and this evaluation is of one label"):
        classification_scores(model, data_settings({}, place / "dev.tsv"))


# Intervals


def test_every_evaluation_has_intervals_in_its_table_and_its_json(models, place):
    figures = {"squad": ("exact_match", "f1"), "ner": ("precision", "f1", "accuracy", "f1[W]")}
    figures["classify"] = ("accuracy", "macro_f1", "matthews", "f1[wet]", "nll", "brier")
    for kind, names in figures.items():
        data = place / f"dev.{ {'squad': 'json', 'ner': 'conll', 'classify': 'tsv'}[kind] }"
        here = ("evaluate", kind, "-m", models[kind], "--data", data)
        found = json.loads(run_here(*here, "--json").out)
        assert set(names) <= found["intervals"].keys()
        assert all(one["low"] <= one["high"] for one in found["intervals"].values())
        for name in names:
            value = found.get(name, found["intervals"][name]["low"])
            assert found["intervals"][name]["low"] <= value <= found["intervals"][name]["high"], name
        shown = " ".join(run_here(*here).out.split())
        assert "95 %" in shown
        places = 2 if kind == "squad" else 4
        one = found["intervals"][names[0]]
        assert f"{one['low']:.{places}f} to {one['high']:.{places}f}" in shown


def test_intervals_are_those_of_a_plain_bootstrap():
    draw = random.Random(1)
    names = ["O", "B-PER", "I-PER", "B-LOC"]
    gold = [draw.choices(names, k=draw.randint(1, 9)) for _ in range(40)]
    found = [[one if draw.random() < 0.7 else draw.choice(names) for one in some] for some in gold]
    values = collections.defaultdict(list)
    for chosen in samples(40):
        scores = scored_entities([gold[n] for n in chosen], [found[n] for n in chosen])
        values["f1"].append(scores.f1)
        values["accuracy"].append(scores.accuracy)
        values["f1[LOC]"] += [scores.types["LOC"].f1] if "LOC" in scores.types else []
    intervals = entity_intervals(gold, found)
    for name, some in values.items():
        expected = np.quantile(some, (0.025, 0.975))
        assert (intervals[name].low, intervals[name].high) == pytest.approx(expected), name
    said = [Answered(("the river",), "river" if n % 3 else "bank", -9.0) for n in range(30)]
    exact = np.array([n % 3 != 0 for n in range(30)]) * 100.0
    expected = np.quantile([exact[chosen].mean() for chosen in samples(30)], (0.025, 0.975))
    one = scored_answers(said).intervals["exact_match"]
    assert (one.low, one.high) == pytest.approx(expected)
