"""Named patterns of maps, against whole maps in float64 and against maps made by hand."""

import json

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, folder_of
from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.interpret import ActivationCache
from unmask.interpret.attention import patterns
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.patterns import DISTANT, SHAPES, head_patterns, segments_of, shifted
from unmask.text.borders import sentence_ends

LENGTH = 33
BORDERS = (9, 20)
"""The first tokens of the second and third sentence."""


def sentences():
    """Three sentences; the first and the last token are special."""
    surfaces = [". " if i + 1 in BORDERS else "W" if i in BORDERS else "w" for i in range(LENGTH)]
    ids = np.random.default_rng(5).integers(0, 97, LENGTH)
    return dense.text_of(ids, special=(0, LENGTH - 1), surfaces=surfaces)


def scores_of(p, seen, encoding):
    """The scores of one head's whole map (N, N), from the definitions, one query at a time."""
    length = len(p)
    special = encoding.special
    found = {"vertical": (p.mean(0).max() - 1 / length) / (1 - 1 / length)}
    for name, offset in (("previous", -1), ("next", 1), ("self", 0)):
        asking = [i for i in range(length) if 0 <= i + offset < length]
        even = np.mean([1 / seen[i].sum() for i in asking])
        found[name] = (np.mean([p[i, i + offset] for i in asking]) - even) / (1 - even)
    kinds = []
    for segment in ([sum(i >= b for b in BORDERS) for i in range(length)], middles(length)):
        above = most = 0.0
        for i in range(length):
            far = [j for j in range(length) if seen[i, j] and abs(i - j) > 1 and not special[i] | special[j]]
            if far:
                own = [j for j in far if segment[i] == segment[j]]
                above += p[i, own].sum() - p[i, far].sum() * len(own) / len(far)
                most += 1 - len(own) / len(far)
        kinds.append(min(max(above / most, 0), 1) if most else np.nan)
    shifted_s = np.nan_to_num(kinds[1])
    found["block"] = (kinds[0] - shifted_s) / (1 - shifted_s)
    links = []
    for i in range(length):
        far = [
            j for j in range(length) if seen[i, j] and abs(i - j) >= DISTANT and not special[i] | special[j]
        ]
        if far:
            links.append(max(0, *(p[i, j] - p[:, j].mean() for j in far)))
    found["distant"] = np.mean(links) if links else np.nan
    return np.clip([found[name] for name in SHAPES], 0, 1)


def middles(length):
    """Segments whose borders are in the middle of the sentences 1-8, 9-19 and 20-31."""
    return [sum(i >= b for b in (5, 15, 26)) for i in range(length)]


@pytest.mark.parametrize("name", SPECS)
def test_scores_are_those_of_whole_maps_in_float64(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), sentences()
    cache = ActivationCache.of(encoder, encoding, global_tokens=lambda _: global_tokens(LENGTH))
    patterns = head_patterns(cache, AttentionStatistics(cache))
    assert patterns.segments == 3
    for layer, (p, _, keys) in enumerate(dense.maps(encoder, encoding, cache.globals_N)):
        for head in range(len(p)):
            seen = p[head] > 0
            assert (seen.sum(-1) == np.broadcast_to(keys, p.shape[:2])[head]).all()
            expected = scores_of(p[head], seen, encoding)
            np.testing.assert_allclose(patterns.scores_LHP[layer, head], expected, atol=2e-6)


def test_small_blocks_of_rows_give_the_same(monkeypatch):
    cache = ActivationCache.of(random_encoder(SPECS["post-norm"]), sentences())
    whole = head_patterns(cache, AttentionStatistics(cache))
    monkeypatch.setattr("unmask.interpret.attention.rows.cells_at_once", lambda _: 3 * LENGTH * 4)
    ticks = []
    parts = head_patterns(cache, AttentionStatistics(cache), watch=lambda *at: ticks.append(at))
    assert len([at for at in ticks if at[0] == "finding patterns"]) > 3 * LENGTH // 4
    np.testing.assert_allclose(whole.scores_LHP, parts.scores_LHP, atol=1e-6)


def shape(name):
    """A map that is purely one pattern."""
    p = np.zeros((LENGTH, LENGTH))
    segment = segments_of(sentences())
    for i in range(LENGTH):
        if name == "vertical":
            p[i, 12] = 1
        elif name in ("previous", "next", "self"):
            p[i, min(max(i + {"previous": -1, "next": 1, "self": 0}[name], 0), LENGTH - 1)] = 1
        elif name == "block":
            inside = [j for j in range(LENGTH) if segment[j] == segment[i] and abs(i - j) > 1]
            p[i, inside] = 1 / len(inside) if inside else 0
        elif name == "distant":
            p[i, 1 + (i + LENGTH // 2) % (LENGTH - 2)] = 1
    p[p.sum(-1) == 0, 0] = 1
    return p


@pytest.mark.parametrize("name", SHAPES)
def test_a_pure_pattern_has_the_largest_score(name):
    scores = dict(
        zip(SHAPES, scores_of(shape(name), np.ones((LENGTH, LENGTH), bool), sentences()), strict=True)
    )
    assert scores[name] > 0.85
    assert max(scores, key=scores.get) == name
    assert all(score < 0.3 for other, score in scores.items() if other != name)


def test_a_head_that_only_looks_near_has_no_blocks():
    i, j = np.indices((LENGTH, LENGTH))
    near = np.exp(-abs(i - j) / 3)
    scores = scores_of(near / near.sum(-1, keepdims=True), np.ones_like(near, bool), sentences())
    assert scores[SHAPES.index("block")] < 0.15


def test_uniform_attention_has_no_pattern():
    even = np.full((LENGTH, LENGTH), 1 / LENGTH)
    np.testing.assert_allclose(scores_of(even, even > 0, sentences()), 0, atol=1e-12)


def test_segments_are_sentences_or_the_texts_of_a_pair():
    encoding = sentences()
    expected = [-1, *(0,) * 8, *(1,) * 11, *(2,) * 12, -1]
    assert segments_of(encoding).tolist() == expected
    moved = shifted(np.array(expected))
    assert moved[1:-1].tolist() == middles(LENGTH)[1:-1]
    assert moved[[0, -1]].tolist() == [-1, -1]
    assert sentence_ends("Mr. A. Fox ran. It hid! why? So it is. ") == [15, 23 + 5, 38]


def test_one_sentence_has_no_blocks_and_a_short_text_no_links():
    cache = ActivationCache.of(
        random_encoder(SPECS["post-norm"]), dense.text_of([3, 4, 5, 6], special=(0, 3))
    )
    patterns = head_patterns(cache, AttentionStatistics(cache))
    assert patterns.segments == 1
    scores = patterns.of(0, 0)
    assert (scores["block"], scores["distant"]) == (None, None)
    assert all(scores[name] is not None for name in SHAPES[:4])


TEXT = "the river bank was muddy. A text was another text! The bank, a river."


@pytest.fixture(scope="module")
def folder():
    return folder_of("patterns", 0, json.dumps(CONFIG))


def test_the_command_prints_what_python_finds(folder):
    import unmask

    ran = run_here("look", TEXT, "--patterns", "-m", folder, "--json")
    printed = json.loads(ran.out)
    view = unmask.load(folder).attention(TEXT)
    patterns = head_patterns(view.cache, view.statistics())
    assert (printed["tokens"], printed["segments"]) == (len(view), 3)
    assert [(head["layer"], head["head"]) for head in printed["heads"]] == [
        (a, b) for a in range(3) for b in range(4)
    ]
    for head in printed["heads"]:
        assert head["scores"] == pytest.approx(patterns.of(head["layer"], head["head"]))
        assert head["pattern"] == patterns.named(head["layer"], head["head"])[0]
    table = run_here("look", TEXT, "--patterns", "-m", folder, "--layer", 1)
    assert sum(line.startswith("1.") for line in table.out.splitlines()) == 4
    assert not any(line.startswith("0.") for line in table.out.splitlines())


def test_a_name_needs_a_clear_score():
    scores = np.array([[[0.1, 0.2, patterns.CLEAR, np.nan, 0.0, np.nan], [0.1, 0.29, 0, 0, 0, 0]]])
    found = patterns.HeadPatterns(scores, 1)
    assert found.named(0, 0) == ("next", patterns.CLEAR)
    assert found.named(0, 1) == ("none", 0.29)


def test_options_that_exclude_each_other(folder):
    for other in (("--overview",), ("--layer", 0, "--head", 0), ("--against", "a")):
        assert_one_sentence(run_here("look", TEXT, "--patterns", *other, "-m", folder), "--patterns")
    assert_one_sentence(run_here("look", TEXT, "--patterns", "--layer", 7, "-m", folder), "layer is 7")
