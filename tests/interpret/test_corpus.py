"""Heads over a corpus equal a dense float64 computation, in every encoder and in any order of texts."""

import functools
import json

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, FakeModel, folder_of
from tests.support.specs import SPECS, random_encoder
from unmask.base.progress import unwatched
from unmask.errors import Cancelled, EmptyText, InvalidRequest, InvalidText
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import attention_statistics
from unmask.interpret.attention.layer_statistics import CLASSES, LABELS, label_heads
from unmask.interpret.corpus import measure, statistics
from unmask.interpret.corpus.batch import DISTANT, PATTERNS, ROWS, EqualLengthBatch, relations
from unmask.interpret.corpus.measure import find_examples, measure_corpus
from unmask.interpret.corpus.statistics import NONE, HeadTotals, cache_file
from unmask.interpret.corpus.texts import Corpus, CorpusText, read_corpus, shipped_corpus
from unmask.interpret.overview.figures import BatchWords
from unmask.interpret.words.words import words
from unmask.spec.attention import has_sinks

pytestmark = pytest.mark.long

LENGTHS = (9, 9, 9, 14, 14, 3)
KEPT = 4


@functools.cache
def encodings():
    return [dense.random_text(length, seed) for seed, length in enumerate(LENGTHS)]


def measured(encoder, order=None):
    """Totals of the texts, read in batches of one length, these in some order."""
    mixers = [layer.mixer for layer in encoder.spec.layers]
    totals = HeadTotals.empty(len(mixers), max(mixer.heads for mixer in mixers), KEPT)
    for length in order or sorted(set(LENGTHS)):
        numbers = [number for number, one in enumerate(LENGTHS) if one == length]
        some = [encodings()[number] for number in numbers]
        batch, words = EqualLengthBatch.run(encoder, some, unwatched), BatchWords.of(some)
        for layer, mixer in enumerate(mixers):
            attention, sinks = batch.attention(layer), has_sinks(mixer)
            totals.add(layer, *attention, relations(some), np.array(numbers), words=words, sinks=sinks)
        totals.count(len(some), length, words.drifts(batch.states))
    return totals


def pairs(encoding, pattern):
    """Pairs of query and key in a relation, from its definition."""
    of, ids, special = words(encoding).of_token, encoding.ids, encoding.special
    comma = [piece == "," for piece in encoding.pieces]
    found = {
        "edge": lambda i, j: not special[j],
        "previous": lambda i, j: j == i - 1 and not special[j],
        "next": lambda i, j: j == i + 1 and not special[j],
        "self": lambda i, j: i == j,
        "word": lambda i, j: i != j and of[i] == of[j],
        "repeat": lambda i, j: i != j and ids[i] == ids[j] and not special[j],
        "punctuation": lambda i, j: comma[j] and not special[j] and not comma[i],
        "first": lambda i, j: j == 0,
        "special": lambda i, j: special[j] and j > 0,
        "distant": lambda i, j: abs(i - j) >= DISTANT and not special[j],
    }
    length = range(len(encoding))
    return [(i, j) for i in length for j in length if not special[i] and found[pattern](i, j)]


def score(p, encoding, pattern):
    """The score of one head in one text, and its strongest pair; None where no query has a key."""
    found = pairs(encoding, pattern)
    if not found:
        return None
    best = max(found, key=lambda pair: (p[pair], -pair[0], -pair[1]))
    if pattern == "edge":
        return p[best], best
    asking = sorted({i for i, _ in found})
    return sum(sum(p[i, j] for a, j in found if a == i) for i in asking) / len(asking), best


@pytest.mark.parametrize("name", SPECS)
def test_totals_and_examples_are_those_of_whole_maps_in_float64(name):
    encoder = random_encoder(SPECS[name], dtype=torch.float64)
    totals = measured(encoder)
    caches = [ActivationCache.of(encoder, encoding) for encoding in encodings()]
    maps = [dense.maps(encoder, cache.encoding, cache.globals_N) for cache in caches]
    assert (totals.texts, totals.queries) == (len(LENGTHS), sum(LENGTHS))
    for layer in range(len(maps[0])):
        for head in range(len(maps[0][layer][0])):
            entropy = share = distance = 0.0
            for text in maps:
                p, keys = (
                    text[layer][0][head],
                    np.broadcast_to(text[layer][2], text[layer][0].shape[:2])[head],
                )
                p = p / p.sum(-1, keepdims=True)  # without what an attention sink takes
                rows = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
                i, j = np.indices(p.shape)
                entropy, distance = entropy + rows.sum(), distance + (p * abs(i - j)).sum()
                share += (rows / np.log(np.maximum(keys, 2))).sum()
            at = layer, head
            np.testing.assert_allclose(totals.entropy_LH[at], entropy, rtol=1e-6)
            np.testing.assert_allclose(totals.entropy_share_LH[at], share, rtol=1e-6)
            np.testing.assert_allclose(totals.distance_LH[at], distance, rtol=1e-6)
            for number, pattern in enumerate(PATTERNS):
                scored = [
                    (*found, text)
                    for text, (map_, one) in enumerate(zip(maps, encodings(), strict=True))
                    if (found := score(map_[layer][0][head], one, pattern)) is not None
                ]
                expected = sorted(scored, key=lambda one: (-one[0], one[2]))[:KEPT]
                place = (*at, number, slice(len(expected)))
                np.testing.assert_allclose(totals.score_LHPk[place], [one[0] for one in expected], atol=1e-7)
                assert totals.text_LHPk[place].tolist() == [one[2] for one in expected]
                assert (totals.text_LHPk[(*at, number)][len(expected) :] == NONE).all()
                weights = [maps[text][layer][0][head][pair] for _, pair, text in expected]
                np.testing.assert_allclose(totals.weight_LHPk[place], weights, atol=1e-7)


@pytest.mark.parametrize("name", SPECS)
def test_classes_and_labels_are_those_of_each_text_alone(name):
    encoder = random_encoder(SPECS[name], dtype=torch.float64)
    totals = measured(encoder)
    classes, labels = np.zeros_like(totals.classes_LHX), np.zeros_like(totals.labels_LHB)
    for encoding in encodings():
        statistics = attention_statistics(ActivationCache.of(encoder, encoding))
        for layer, one in enumerate(statistics.layers):
            classes[layer, : one.heads] += one.classes_HX * len(encoding)
            for head, label in enumerate(label_heads(one, encoding.special)):
                labels[layer, head, LABELS.index(label.label)] += 1
    np.testing.assert_allclose(totals.classes_LHX, classes, atol=2e-5)
    assert totals.labels_LHB.tolist() == labels.tolist()


def test_the_order_in_which_batches_come_changes_no_example():
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64)
    one, other = measured(encoder), measured(encoder, order=[14, 3, 9])
    for name in ("score_LHPk", "text_LHPk", "query_LHPk", "key_LHPk", "weight_LHPk"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_of_equal_scores_the_text_that_comes_first_is_kept():
    one = encodings()[0]
    p = torch.full((3, 1, 9, 9), 1 / 9, dtype=torch.float64)
    totals = HeadTotals.empty(1, 1, 2)
    for texts in ([7, 5, 6], [2, 9, 4]):
        totals.rank(0, slice(0, 1), p, relations([one] * 3), np.array(texts))
    assert (totals.text_LHPk[0, 0, PATTERNS.index("previous")] == [2, 4]).all()


TEXTS = [
    "the river bank was muddy.",
    "a river, a bank!",
    "the text was another text.",
    "banks",
    "a a a a",
    "the text was muddy.",
]


@pytest.fixture(scope="module")
def model():
    return FakeModel()


def read(model, texts=TEXTS, **options):
    corpus = Corpus.of_strings(texts)
    return measure_corpus(model.encoder, model.tokenizer, corpus, max_tokens=model.max_tokens, **options)


def values(found):
    return {name: np.asarray(value).tolist() for name, value in vars(found.totals).items()}


def test_shuffled_texts_give_the_same_to_the_last_bit(model, monkeypatch):
    monkeypatch.setattr(measure, "FIRST_ROUND", 2)
    one, other = read(model), read(model, TEXTS[::-1])
    assert values(one) == values(other)
    assert [e.text for e in one.examples(1, 2)] == [e.text for e in other.examples(1, 2)]


def test_rounds_of_any_size_give_the_same_examples(model, monkeypatch):
    whole = read(model)
    calls = []
    monkeypatch.setattr(measure, "FIRST_ROUND", 1)
    parts = read(model, partial=lambda some: calls.append((some.totals.texts, some.complete)))
    assert calls == [(1, False), (3, False), (6, True)]
    assert values(whole)["text_LHPk"] == values(parts)["text_LHPk"]
    np.testing.assert_allclose(parts.entropy, whole.entropy, rtol=1e-6)


def test_an_example_marks_the_query_and_the_key_of_its_weight(model):
    found = read(model)
    examples = found.examples(2, 3, "previous")
    assert len(examples) == len(TEXTS)
    for example in examples:
        view = model.attention(example.text)
        assert example.key_token == example.query_token - 1
        assert view.probabilities(2, 3)[example.query_token, example.key_token] == pytest.approx(
            example.weight, abs=1e-5
        )
        assert example.text[slice(*example.query)] == view.encoding.surface(example.query_token)
        assert example.text[slice(*example.key)] == view.encoding.surface(example.key_token)
    special = found.examples(0, 0, "special")[0]
    assert (special.key, special.key_piece) == ((0, 0), "[SEP]")


def test_means_are_over_queries(model):
    found = read(model)
    views = [model.attention(text) for text in TEXTS]
    expected = np.concatenate([view.entropy for view in views], axis=-1).mean(-1)
    np.testing.assert_allclose(found.entropy, expected, rtol=1e-4)
    np.testing.assert_allclose(found.labels.sum(-1), 1)
    np.testing.assert_allclose(found.classes[..., CLASSES.index("first")] <= 1, True)


def test_a_head_is_called_by_a_sink_only_if_it_does_nothing_else(model):
    found = read(model)

    def called(**texts):
        found.totals.labels_LHB[0, 0] = [texts.get(name, 0) for name in LABELS]
        return found.label(0, 0)

    assert called(first=5, repeat=1) == ("repeat", pytest.approx(1 / 6))
    assert called(special=5, previous=1) == ("previous", pytest.approx(1 / 6))
    # Neither of these says what the head attends to.
    assert called(first=4, mixed=1, diffuse=1) == ("first", pytest.approx(4 / 6))
    assert called(mixed=4, previous=1, first=1) == ("mixed", pytest.approx(4 / 6))
    found.totals.texts = 11
    assert called(first=10, repeat=1) == ("first", pytest.approx(10 / 11))


def test_a_stopped_pass_goes_on_where_its_last_round_ended(model, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "FIRST_ROUND", 2)
    file, told = tmp_path / "kept.heads", []

    def stop(what, done, total):
        told.append(done)
        if done > 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        read(model, cache=file, identity="m", watch=stop)
    told.clear()
    resumed = read(model, cache=file, identity="m", watch=lambda what, done, total: told.append(done))
    assert min(told) >= 2
    assert not resumed.from_cache
    assert values(resumed) == values(read(model))


def test_a_second_pass_reads_the_file_and_runs_nothing(model, monkeypatch, tmp_path):
    file = tmp_path / "kept.heads"
    first = read(model, cache=file, identity="m")
    monkeypatch.setattr(EqualLengthBatch, "run", None)
    again = read(model, cache=file, identity="m")
    assert again.from_cache
    assert values(again) == values(first)
    assert [example.text for example in again.examples(0, 1)] == [
        example.text for example in first.examples(0, 1)
    ]


def test_a_file_of_texts_that_were_cut_elsewhere_is_not_used(model, tmp_path):
    file = tmp_path / "kept.heads"
    whole = read(model, cache=file, identity="m")
    options = {"max_tokens": 6, "cache": file, "identity": "m"}
    short = measure_corpus(model.encoder, model.tokenizer, Corpus.of_strings(TEXTS), **options)
    assert short.truncated > whole.truncated
    assert not short.from_cache
    assert short.totals.queries < whole.totals.queries


@pytest.mark.parametrize("damage", ["identity", "corpus", "bit", "half", "empty", "other"])
def test_a_file_that_is_stale_or_damaged_is_not_used(model, tmp_path, damage):
    file = tmp_path / "kept.heads"
    first = read(model, cache=file, identity="m")
    data = bytearray(file.read_bytes())
    if damage == "bit":
        data[len(data) // 2] ^= 1
    changed = {"half": data[: len(data) // 2], "empty": b"", "other": b"PK" + data}.get(damage, data)
    file.write_bytes(changed)
    texts = [*TEXTS, "another bank"] if damage == "corpus" else TEXTS
    again = read(model, texts, cache=file, identity="n" if damage == "identity" else "m")
    assert not again.from_cache
    assert again.complete
    if damage != "corpus":
        assert values(again) == values(first)
    assert read(model, texts, cache=file, identity="n" if damage == "identity" else "m").from_cache


def test_a_file_is_named_by_the_model_and_the_corpus(tmp_path):
    names = {cache_file(tmp_path / "x", *of).name for of in (("a", "b"), ("a", "c"), ("d", "b"))}
    assert len(names) == 3


def test_long_texts_are_truncated_and_counted(model):
    found = read(model, ["the river bank was muddy. " * 20, "a text"])
    assert found.truncated == 1
    assert found.totals.queries == 32 + 4


def test_what_is_not_there_is_refused_in_a_sentence(model):
    found = read(model)
    for arguments, sentence in (
        ((3, 0), "layer is 3"),
        ((0, 4), "head is 4"),
        ((0, 0, "backwards"), "pattern"),
        ((0, 0, "edge", 99), "top is 99"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            found.examples(*arguments)


def test_a_file_of_lines_and_one_of_objects_are_one_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("one text\n\n another text \none text\n")
    (tmp_path / "a.jsonl").write_text('{"text": "another text"}\n{"text": "one text", "id": 3}\n')
    lines, objects = read_corpus(tmp_path / "a.txt"), read_corpus(tmp_path / "a.jsonl")
    assert lines.sha256 == objects.sha256
    assert (len(lines), lines.repeated) == (2, 1)
    assert {text.source for text in lines.texts} == {f"line {n} of {tmp_path / 'a.txt'}" for n in (1, 3)}


@pytest.mark.parametrize(
    ("name", "content", "error", "sentence"),
    [
        ("a.csv", b"x", InvalidRequest, "give a .txt file"),
        ("a.txt", b"\n \n", EmptyText, "has no text"),
        ("a.txt", b"good\n\xff\n", InvalidText, "line 2 of .* is not UTF-8"),
        ("a.jsonl", b"{'x'}", InvalidText, "line 1 of .* is not JSON"),
        ("a.jsonl", b'{"words": "x"}', InvalidText, "no string under 'text'"),
        ("a.txt.gz", b"not compressed", InvalidText, "cannot read"),
        ("missing.txt", None, InvalidText, "cannot read"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path, name, content, error, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=sentence) as found:
        read_corpus(tmp_path / name)
    assert "\n" not in str(found.value)


def test_too_many_texts_are_refused(monkeypatch):
    monkeypatch.setattr("unmask.interpret.corpus.texts.MOST_TEXTS", 3)
    with pytest.raises(InvalidRequest, match="more than 3 texts"):
        Corpus.of("many", (CorpusText(str(number), "") for number in range(4)))


def test_the_corpus_of_the_package_is_small_clean_and_named():
    corpus = shipped_corpus()
    assert 3000 <= len(corpus) <= 4000
    assert all(6 <= len(text.text.split()) <= 40 for text in corpus.texts)
    assert all(text.source.count(", ") >= 2 for text in corpus.texts)
    assert len({text.source for text in corpus.texts}) > 300


def test_examples_with_a_word_are_those_of_whole_maps(model):
    found = read(model)
    asked = find_examples(model.encoder, found, 1, 2, query="TEXT", top=20)
    assert (asked.matching, asked.read) == (2, 2)
    best = {}
    for text in (TEXTS[2], TEXTS[5]):
        view = model.attention(text)
        p, special = view.probabilities(1, 2), view.encoding.special
        queries = [at for at in range(len(view)) if view.encoding.surface(at) == "text"]
        best[text] = max(p[at, key] for at in queries for key in range(len(view)) if not special[key])
    assert {example.text: pytest.approx(example.score, abs=1e-5) for example in asked.examples} == best
    assert {example.text[slice(*example.query)] for example in asked.examples} == {"text"}
    both = find_examples(model.encoder, found, 1, 2, query="river", key="bank", pattern="distant")
    assert (both.matching, both.examples) == (2, ())
    nowhere = find_examples(model.encoder, found, 1, 2, key="anot")
    assert (nowhere.matching, nowhere.examples) == (0, ())


def test_a_search_without_a_word_is_refused(model):
    with pytest.raises(InvalidRequest, match="no word was given"):
        find_examples(model.encoder, read(model), 0, 0, query=" ")


def test_the_digest_of_a_model_is_of_what_it_computes(model):
    same, other = FakeModel(), FakeModel(seed=1)
    assert same.content_digest() == model.content_digest() != other.content_digest()
    with torch.no_grad():
        same.trainable_encoder().embedding.words.weight[7] += 1
    assert same.content_digest() != model.content_digest()


def test_a_model_reads_files_lists_and_the_corpus_of_the_package(model, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(TEXTS))
    one, other = model.attention_over(file, cache=tmp_path), model.attention_over(TEXTS)
    assert values(one) == values(other)
    assert model.attention_over(TEXTS, cache=tmp_path).from_cache
    with pytest.raises(InvalidText, match="text 2 of the corpus"):
        model.attention_over(["a", 3])


def test_the_command_prints_the_examples_of_a_head(tmp_path):
    (tmp_path / "mine.txt").write_text("\n".join(TEXTS))
    folder = str(folder_of("fake", 0, json.dumps(CONFIG | {"max_position_embeddings": 32}, sort_keys=True)))
    common = ["--corpus", str(tmp_path / "mine.txt"), "-m", folder, "--cache", str(tmp_path / "kept")]
    ran = run_here("head", "1.2", *common, "--json", "--pattern", "next")
    report = json.loads(ran.out)
    assert ran.code == 0
    assert report["texts"] == len(TEXTS)
    assert len(report["examples"]) == len(TEXTS)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert "2 texts have these words; 2 were read" in run_here("head", "1.2", *common, "--query", "river").out
    for given, sentence in (("7.0", "no head 7.0"), ("x", "give LAYER.HEAD")):
        assert_one_sentence(run_here("head", given, *common), sentence)


@pytest.mark.parametrize(("length", "texts"), [(3, 1), (14, 9), (9, 15), (64, 2), (50, 3)])
def test_batches_have_few_numbers_of_rows(length, texts):
    """Each number of rows is a product that oneDNN compiles and keeps; texts do not see the rows added."""
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64)
    some = [dense.random_text(length, seed) for seed in range(texts)]
    rows = []

    def record(place, layer, x_TD):
        rows.append(len(x_TD))

    encode = encoder.encode
    encoder.encode = lambda batch, hook: encode(batch, hook=lambda *at: (record(*at), hook(*at))[1])
    batch = EqualLengthBatch.run(encoder, some, unwatched)
    assert set(rows) == {-(-length * texts // ROWS) * ROWS}
    p_SHNN, _ = batch.attention(1)
    assert p_SHNN.shape[::2] == (texts, length)
    alone = EqualLengthBatch.run(encoder, some[-1:], unwatched).attention(1)[0]
    torch.testing.assert_close(p_SHNN[-1:], alone)


def test_examples_of_long_texts_are_found_a_few_maps_at_a_time(monkeypatch):
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64)
    at_once = measured(encoder)
    monkeypatch.setattr(statistics, "CELLS_OF_EXAMPLES", 500)
    for name, array in vars(measured(encoder)).items():
        np.testing.assert_array_equal(array, getattr(at_once, name), err_msg=name)
