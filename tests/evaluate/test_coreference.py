"""Heads on gold chains, against a search by hand over whole maps."""

import itertools
import json

import numpy as np
import pytest

import unmask
from tests.evaluate.test_dependencies import word_map
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, folder_of
from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.probes.coreference import BASELINES, head_of, measure_coreference, read_coreference

FILE = """\
#begin document (bn/one); part 000
d 0 0 The DT (TOP * - - - - * (0
d 0 1 bank NN * - - - - * -
d 0 2 of IN * - - - - * -
d 0 3 the DT * - - - - * (1
d 0 4 river NN * - - - - * 0)|1)
d 0 5 was VBD * - - - - * -
d 0 6 muddy JJ * - - - - * -

d 0 0 A DT * - - - - * (2
d 0 1 text NN * - - - - * 2)
d 0 2 was VBD * - - - - * -
d 0 3 it PRP * - - - - * (0)
d 0 4 bank NN * - - - - * (0)

#end document
#begin document (bn/two); part 000
d 0 0 xy NN * - - - - * (4)
d 0 1 was VBD * - - - - * -
d 0 2 river NN * - - - - * (5)
d 0 3 xy NN * - - - - * (4)
#end document
"""


@pytest.fixture(scope="module")
def folder():
    return folder_of("chains", 0, json.dumps(CONFIG))


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder, dtype="float64")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "dev.v4_gold_conll"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_documents_mentions_and_their_heads(file, tmp_path):
    one, two = read_coreference(file)
    assert one.name == "(bn/one); part 000"
    assert one.sentences == ((0, 7), (7, 12))
    assert [(m.chain, m.start, m.end, m.head) for m in one.mentions] == [
        (0, 0, 5, 1),  # "The bank of the river": its head is before "of"
        (1, 3, 5, 4),
        (2, 7, 9, 8),
        (0, 10, 11, 10),
        (0, 11, 12, 11),
    ]
    assert two.words == ("xy", "was", "river", "xy")
    assert [len(read_coreference(path)) for path in (file, tmp_path)] == [2, 2]
    assert len(read_coreference(file, limit=1)) == 1


def test_heads_by_parts_of_speech():
    assert head_of(["DT", "NN", "NN", "IN", "NN"], 0, 5) == 2
    assert head_of(["NNP", "POS", "NN"], 0, 2) == 0
    assert head_of(["JJ", "CD"], 0, 2) == 1
    assert head_of(["IN", "DT", "NN", ",", "NN"], 0, 5) == 2


def by_hand(model, documents, layer, head, longest=10**6):
    """Right answers of one head, of the baselines, and the share of right candidates, mention by mention."""
    rows = []
    for document in documents:
        weights = word_map(model, document.words, layer, head)
        for mention in document.mentions:
            heads = sorted({m.head for m in document.mentions if m.head < mention.head})
            right = {m.head for m in document.mentions if m.chain == mention.chain and m.head < mention.head}
            if not right:
                continue
            best = max(heads, key=lambda word: (weights[mention.head, word], -word))
            same = [w for w in heads if document.words[w].lower() == document.words[mention.head].lower()]
            pronoun = document.words[mention.head] == "it"
            rows.append(
                (
                    best in right,
                    heads[-1] in right,
                    (same or heads)[-1] in right,
                    pronoun,
                    len(right) / len(heads),
                )
            )
    return np.array(rows, dtype=float)


def test_accuracies_are_those_of_whole_maps(model, file):
    documents = read_coreference(file)
    found = measure_coreference(model, documents)
    assert (found.documents, found.windows, found.mentions, found.outside) == (2, 2, 8, 0)
    all_, pronoun, other = found.kinds
    for layer, head in itertools.product(range(3), range(4)):
        rows = by_hand(model, documents, layer, head)
        assert all_.accuracy[layer][head] == pytest.approx(rows[:, 0].mean())
        assert pronoun.accuracy[layer][head] == pytest.approx(rows[rows[:, 3] == 1, 0].mean())
        assert other.accuracy[layer][head] == pytest.approx(rows[rows[:, 3] == 0, 0].mean())
        assert list(all_.baselines.values()) == pytest.approx(rows[:, 1:3].mean(0))
        assert all_.chance == pytest.approx(rows[:, 4].mean())
    assert (all_.mentions, pronoun.mentions, other.mentions) == (3, 1, 2)
    assert all_.baselines == {"nearest": 1 / 3, "same head": 2 / 3}
    assert all_.comparison is None


AMBIGUOUS = """\
d 0 0 river NN (1)
d 0 1 river NN (2)
d 0 2 text NN (3)
d 0 3 river NN (2)

d 0 0 the DT (4
d 0 1 bank NN (1)
d 0 2 river NN 4)
"""


def test_the_nearest_of_one_form_and_a_mention_inside_another(model, tmp_path):
    """Two rivers come before the third; "bank" is inside a mention whose head comes after it."""
    path = tmp_path / "ambiguous.conll"
    path.write_text(AMBIGUOUS)
    documents = read_coreference(path)
    (found,) = (one for one in measure_coreference(model, documents).kinds if one.kind == "all")
    assert found.baselines == {"nearest": 0, "same head": 1 / 2}
    for layer, head in itertools.product(range(3), range(4)):
        rows = by_hand(model, documents, layer, head)
        assert found.accuracy[layer][head] == pytest.approx(rows[:, 0].mean())
        assert list(found.baselines.values()) == pytest.approx(rows[:, 1:3].mean(0))
        assert found.chance == pytest.approx(rows[:, 4].mean()) == pytest.approx((1 / 3 + 1 / 4) / 2)


def many(count, seed=0):
    """Documents in which the chain is always that of the same form."""
    draw = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        lines.append(f"#begin document ({number}); part 000")
        for place, word in enumerate(draw.permutation(["river", "bank", "text", "river", "bank", "text"])):
            chain = ["river", "bank", "text"].index(word)
            lines.append(f"d 0 {place} {word} NN * ({chain})")
        lines.append("#end document")
    return "\n".join(lines) + "\n"


def test_the_best_baseline_is_chosen_and_heads_are_compared_with_it(model, tmp_path):
    path = tmp_path / "many.conll"
    path.write_text(many(40))
    found = measure_coreference(model, read_coreference(path)).kinds[0]
    assert (found.mentions, found.baseline) == (120, BASELINES[1])
    assert found.comparison.baseline.measured.value == 1
    assert not found.comparison.better
    layer, head = found.head
    assert found.comparison.head.measured.value < 1
    assert 0 < found.accuracy[layer][head] < 1


def test_a_long_document_is_read_in_windows_of_sentences(model, tmp_path):
    lines = ["#begin document (long); part 000"]
    for _ in range(12):
        lines += ["d 0 0 river NN * (1)", "d 0 1 bank NN * (2)", "d 0 2 river NN * (1)", ""]
    path = tmp_path / "long.conll"
    path.write_text("\n".join([*lines, *["d 0 0 text NN * -"] * 40, ""]))
    found = measure_coreference(model, read_coreference(path))
    # 32 tokens: [CLS], ten sentences of three words, [SEP]; then two; the sentence of 40 words is left out.
    assert (found.windows, found.too_long) == (2, 1)
    assert found.outside == 2  # the first river and bank of the second window
    assert found.kinds[0].mentions == (20 - 1 + 10 - 1) + (4 - 1 + 2 - 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("d 0 0 a", "4 columns"),
        ("d 0 0 a NN 3)", "none is open"),
        ("d 0 0 a NN (3", "never closed"),
        ("d 0 0 a NN x3", "'x3'"),
    ],
)
def test_broken_files_are_named(tmp_path, line, says):
    path = tmp_path / "broken.conll"
    path.write_text(line + "\n")
    with pytest.raises(InvalidText, match=says):
        read_coreference(path)


def test_the_command_and_its_refusals(folder, file, tmp_path):
    ran = run_here("evaluate", "coreference", "-m", folder, "--data", file, "--json")
    assert ran.code == 0, ran.err
    python = measure_coreference(unmask.load(folder), read_coreference(file))
    assert json.loads(ran.out)["kinds"][0]["accuracy"] == [list(row) for row in python.kinds[0].accuracy]
    assert "too few" in run_here("evaluate", "coreference", "-m", folder, "--data", file).out
    (tmp_path / "none.conll").write_text("d 0 0 a NN (3)\nd 0 1 b NN -\n")
    refused = run_here("evaluate", "coreference", "-m", folder, "--data", tmp_path / "none.conll")
    assert_one_sentence(refused, "no links to score")
    with pytest.raises(InvalidRequest, match="limit is 0"):
        read_coreference(file, limit=0)
