"""Heads on gold trees, against whole maps in float64 and a search by hand; the statistics of the choice."""

import itertools
import json

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, folder_of
from unmask.errors import Cancelled, InvalidRequest, InvalidText
from unmask.evaluate.probes import head_accuracy
from unmask.evaluate.probes.dependencies import (
    ALL,
    DIRECTIONS,
    OFFSETS,
    Tree,
    _Asked,
    measure_dependencies,
    read_trees,
)
from unmask.evaluate.probes.head_accuracy import Answers, accuracies, compare_all, holm, sign_flip
from unmask.interpret.corpus import measure, word_links
from unmask.interpret.corpus.word_links import right_answers

CONLLU = """\
# text = The keys to the bank are muddy .
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tkeys\tkey\tNOUN\t_\tNumber=Plur\t7\tnsubj\t_\t_
3\tto\tto\tADP\t_\t_\t5\tcase\t_\t_
4\tthe\tthe\tDET\t_\t_\t5\tdet\t_\t_
5\tbank\tbank\tNOUN\t_\tNumber=Sing\t2\tnmod:of\t_\t_
6\tare\tbe\tAUX\t_\tNumber=Plur|Tense=Pres|VerbForm=Fin\t7\tcop\t_\t_
7\tmuddy\tmuddy\tADJ\t_\t_\t0\troot\t_\t_
8\t.\t.\tPUNCT\t_\t_\t7\tpunct\t_\t_

1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tit\tPRON\t_\tNumber=Sing\t3\tnsubj\t_\t_
2\t's\tbe\tAUX\t_\tNumber=Sing|Tense=Pres|VerbForm=Fin\t3\tcop\t_\t_
3\triver\triver\tNOUN\t_\tNumber=Sing\t0\troot\t_\t_

1\tShe\tshe\tPRON\t_\tNumber=Sing\t2\tnsubj\t_\t_
2\tran\trun\tVERB\t_\tNumber=Sing|Tense=Past|VerbForm=Fin\t0\troot\t_\t_
"""


@pytest.fixture(scope="module")
def model():
    return unmask.load(folder_of("trees", 0, json.dumps(CONFIG)), dtype="float64")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gold.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    return path


def test_links_of_a_file(file):
    one, two, three = read_trees(file)
    assert one.words == ("The", "keys", "to", "the", "bank", "are", "muddy", ".")
    assert [link for link in one.links if link[0] == "nmod"] == [("nmod", 4, 1)]
    assert ("punct", 7, 6) in one.links
    assert sorted(link[1:] for link in one.links if link[0] == ALL) == [
        (0, 1), (1, 6), (2, 4), (3, 4), (4, 1), (5, 6),
    ]  # fmt: skip
    agreeing = [[link for link in tree.links if link[0].startswith("agree")] for tree in (one, two, three)]
    assert agreeing == [
        [("agreement", 1, 5), ("agreement, attractor", 1, 5)],  # "are", the copula, across "bank"
        [("agreement", 0, 1)],
        [],  # "ran" shows no number
    ]
    assert len(read_trees(file, limit=2)) == 2


@pytest.mark.parametrize(("number", "attracts"), [("Number=Sing", 1), ("_", 0), ("Number=Plur", 0)])
def test_only_a_noun_of_the_other_number_attracts(tmp_path, number, attracts):
    path = tmp_path / "one.conllu"
    path.write_text(
        "1\tkeys\tkey\tNOUN\t_\tNumber=Plur\t3\tnsubj\t_\t_\n"
        f"2\tsheep\tsheep\tNOUN\t_\t{number}\t1\tnmod\t_\t_\n"
        "3\tlie\tlie\tVERB\t_\tNumber=Plur|Tense=Pres|VerbForm=Fin\t0\troot\t_\t_\n"
    )
    (tree,) = read_trees(path)
    kinds = [kind for kind, _, _ in tree.links if kind.startswith("agree")]
    assert kinds == ["agreement", *["agreement, attractor"] * attracts]


@pytest.mark.parametrize(
    ("line", "says"),
    [("1\ta\ta\tX\t_\t_\t9\tdet\t_\t_", "head '9'"), ("1\ta\ta\tX\t_\t_\t0\t_\t_\t_", "without a relation")],
)
def test_broken_trees_are_named(tmp_path, line, says):
    path = tmp_path / "broken.conllu"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InvalidText, match=says):
        read_trees(path)


def trees(count, seed=0):
    """Random trees over words of one, two and three tokens."""
    draw = np.random.default_rng(seed)
    known = ("the", "river", "bank", "muddy", "text", "xy", "abc", ".")
    found = []
    for _ in range(count):
        words = tuple(draw.choice(known, draw.integers(3, 8)).tolist())
        links = []
        for word in range(1, len(words)):
            head = int(draw.integers(0, word))
            links += [(str(draw.choice(["det", "obj"])), word, head), (ALL, word, head)]
        found.append(Tree(words, tuple(links)))
    return found


def word_map(model, words, layer, head):
    """From whole maps, token by token."""
    encoding = model.tokenizer.encode_words(words)
    p = unmask.interpret.AttentionView(model.encoder, encoding).probabilities(layer, head).astype(np.float64)
    of = encoding.words
    found = np.zeros((len(words), len(words)))
    for i, j in itertools.product(range(len(words)), repeat=2):
        found[i, j] = np.mean(
            [sum(p[a, b] for b in np.flatnonzero(of == j)) for a in np.flatnonzero(of == i)]
        )
    return found


def by_hand(model, some, layer, head):
    """For each kind: right answers in both directions, over all trees."""
    found = {}
    for tree in some:
        weights = word_map(model, tree.words, layer, head)
        np.fill_diagonal(weights, -1)
        for kind, word, of in tree.links:
            hits = found.setdefault(kind, [])
            hits.append((weights[word].argmax() == of, weights[:, word].argmax() == of))
    return {kind: np.mean(hits, axis=0) for kind, hits in found.items()}


def test_accuracies_are_those_of_whole_maps(model):
    some = trees(12)
    assert any(len(one) > 1 for tree in some for one in tree.words)
    found = measure_dependencies(model, some)
    assert found.relations[0].relation == ALL
    for layer, head in itertools.product(range(3), range(4)):
        expected = by_hand(model, some, layer, head)
        for one in found.relations:
            for way, name in enumerate(DIRECTIONS):
                assert one.accuracy[name][layer][head] == pytest.approx(expected[one.relation][way])
                assert (
                    one.low[name][layer][head]
                    <= one.accuracy[name][layer][head]
                    <= one.high[name][layer][head]
                )
    for one in found.relations:
        links = [link for tree in some for link in tree.links if link[0] == one.relation]
        assert one.links == len(links)
        for offset in OFFSETS:
            share = np.mean([head - word == offset for _, word, head in links])
            assert one.offsets[offset] == pytest.approx(share)


def test_a_head_that_knows_is_found_and_one_that_does_not_is_not(model, monkeypatch):
    """Answers made by hand: head 1.2 backward is right in 9 of 10 cases, all others in 1 of 3."""
    some = [Tree(("a",) * 6, (("det", 0, 3), ("det", 1, 5), ("obj", 2, 4))) for _ in range(80)]
    some += [Tree(("a",) * 6, (("det", 0, 5), ("det", 1, 3), ("obj", 2, 0))) for _ in range(80)]
    draw = np.random.default_rng(2)

    def answers(encoder, texts, **_):
        questions = sum(map(len, texts))
        right = draw.random((3, 4, questions)) < 1 / 3
        backward = np.concatenate([one.backward_M for one in texts])
        kinds = np.concatenate([np.isin(one.source_M, (0, 1)) for one in texts])
        right[1, 2] = np.where(backward & kinds, draw.random(questions) < 0.9, right[1, 2])
        return right

    monkeypatch.setattr("unmask.evaluate.probes.dependencies.right_answers", answers)
    found = {one.relation: one for one in measure_dependencies(model, some).relations}
    det, obj = found["det"], found["obj"]
    assert det.head == (1, 2, "from head")
    assert det.comparison.head.measured.value == pytest.approx(0.9, abs=0.05)
    assert det.comparison.better
    assert det.comparison.p_holm < 0.01
    assert obj.offset in (2, -2)
    assert obj.comparison.baseline.measured.value == pytest.approx(0.5, abs=0.1)
    assert not obj.comparison.better


def test_sentences_that_are_too_long_are_counted(model):
    long = Tree(("text",) * 60, ((ALL, 0, 1),))
    found = measure_dependencies(model, [*trees(3), long])
    assert (found.sentences, found.too_long) == (3, 1)


def test_a_word_without_a_token_has_no_links(model):
    tree = Tree(("the", "\u200b\x01", "bank"), ((ALL, 0, 2), (ALL, 1, 2)))
    found = measure_dependencies(model, [tree])
    assert found.without_token == 1
    assert found.relations[0].links == 1


def test_a_stopped_run_is_resumed(model, tmp_path, monkeypatch):
    texts = [_Asked.of(model, tree, 1).text for tree in trees(14)]
    whole = right_answers(model.encoder, texts)
    monkeypatch.setattr(word_links, "TEXTS_BETWEEN_WRITES", 1)
    monkeypatch.setattr(measure, "CELLS_AT_ONCE", 1)
    path, read = tmp_path / "kept", []

    def stop(_, done, of):
        if done >= 6:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        right_answers(model.encoder, texts, cache=path, identity="a", watch=stop)
    real = word_links.EqualLengthBatch.run
    monkeypatch.setattr(word_links.EqualLengthBatch, "run", lambda *at: read.append(len(at[1])) or real(*at))
    again = right_answers(model.encoder, texts, cache=path, identity="a")
    np.testing.assert_array_equal(again, whole)
    assert 0 < sum(read) < len(texts)
    read.clear()
    right_answers(model.encoder, texts, cache=path, identity="another model")
    assert sum(read) == len(texts)
    (tmp_path / "notes.txt").write_text("notes of a day")
    with pytest.raises(InvalidRequest, match=r"notes\.txt holds something else than progress of this work"):
        right_answers(model.encoder, texts, cache=tmp_path / "notes.txt", identity="a")
    path.write_bytes(path.read_bytes()[:-3])
    np.testing.assert_array_equal(
        right_answers(model.encoder, texts, cache=path, identity="another model"), whole
    )


def test_intervals_hold_what_they_promise():
    """Of 200 sets of answers with a known accuracy, about 95 of 100 intervals hold it."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        asked = draw.integers(0, 6, 60)
        right = draw.binomial(asked, 0.6)[:, None]
        _, low, high = accuracies(right, asked)
        held += low[0] <= 0.6 <= high[0]
    assert 86 <= held <= 100


def test_the_test_keeps_its_level_and_finds_differences():
    draw = np.random.default_rng(3)
    assert sign_flip(np.zeros(40, dtype=np.int64)) == 1
    assert sign_flip(np.ones(40, dtype=np.int64)) == pytest.approx(1 / (1 + head_accuracy.FLIPS))
    p = [sign_flip(draw.integers(-1, 2, 40)) for _ in range(60)]
    assert 0 < sum(one < 0.1 for one in p) < 16
    assert sign_flip(np.array([1, 1, 1, 1])) == pytest.approx(2 / 16, abs=0.02)  # exact: 2 of 16 signs


def test_holm_is_that_of_the_definition():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_halves_choose_and_measure():
    """Head 0 is right where the others choose, head 1 where they measure: the measured figure is honest."""
    chooses = np.arange(80) % 2 == 0
    heads = np.stack([chooses, ~chooses], axis=1).astype(np.int64)
    (found,) = compare_all([Answers(np.ones(80, dtype=np.int64), heads, np.zeros((80, 1), dtype=np.int64))])
    assert (found.head.number, found.head.chosen_at, found.head.measured.value) == (0, 1.0, 0.0)
    few = Answers(np.ones(40, dtype=np.int64), heads[:40], heads[:40])
    assert compare_all([few]) == [None]


def test_the_command_prints_what_python_finds(file, tmp_path):
    folder = folder_of("trees", 0, json.dumps(CONFIG))
    path = tmp_path / "result.json"
    ran = run_here("evaluate", "dependencies", "-m", folder, "--data", file, "--json", "-o", path)
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert json.loads(path.read_text()) == said
    python = measure_dependencies(unmask.load(folder), read_trees(file))
    assert said["relations"][0]["accuracy"]["to head"] == [
        list(r) for r in python.relations[0].accuracy["to head"]
    ]
    table = run_here("evaluate", "dependencies", "-m", folder, "--data", file)
    assert "too few links" in table.out


def test_bad_requests(file, tmp_path):
    folder = folder_of("trees", 0, json.dumps(CONFIG))
    ran = run_here("evaluate", "dependencies", "-m", folder, "--data", tmp_path / "none.conllu")
    assert_one_sentence(ran, "none.conllu")
    assert_one_sentence(
        run_here("evaluate", "dependencies", "-m", folder, "--data", file, "--limit", 0), "limit is 0"
    )
    (tmp_path / "empty.conllu").write_text("# nothing\n")
    with pytest.raises(InvalidRequest, match="no sentence"):
        read_trees(tmp_path / "empty.conllu")
