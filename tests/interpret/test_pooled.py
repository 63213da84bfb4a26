"""Maps pooled over heads and layers, against whole maps in float64."""

import csv
import json

import numpy as np
import pytest
import torch

import unmask
from tests.support import dense
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, folder_of
from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret import AttentionView
from unmask.interpret.attention import rectangles as pooled

LENGTH = 19
TEXT = "the river, a bank was muddy."


@pytest.mark.parametrize("name", SPECS)
def test_pools_are_those_of_whole_maps_in_float64(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(LENGTH)
    view = AttentionView(encoder, encoding, global_tokens=lambda _: global_tokens(LENGTH))
    maps = [p for p, _, _ in dense.maps(encoder, encoding, view.globals_N)]
    rows, columns = slice(4, 15), slice(2, 18)
    for layer, p in [*enumerate(maps), (None, np.concatenate(maps))]:
        for pool, how in (("mean", np.mean), ("max", np.max)):
            np.testing.assert_allclose(view.pooled(layer, pool), how(p, axis=0), atol=1e-6)
            part = view.pooled(layer, pool, rows, columns)
            np.testing.assert_allclose(part, how(p, axis=0)[rows, columns], atol=1e-6)


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "linear"])
def test_weights_by_norms_are_those_of_whole_maps(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(LENGTH)
    view = AttentionView(encoder, encoding)
    w = [p * norms for p, norms, _ in dense.maps(encoder, encoding)]
    w = [one / one.sum(-1, keepdims=True) for one in w]
    np.testing.assert_allclose(view.pooled(1, weight="norm"), w[1].mean(0), atol=1e-6)
    np.testing.assert_allclose(view.pooled(None, "max", weight="norm"), np.concatenate(w).max(0), atol=1e-6)


def test_blocks_of_one_row_give_the_same_and_can_be_stopped(monkeypatch):
    view = AttentionView(random_encoder(SPECS["post-norm"]), dense.random_text(LENGTH))
    whole, seen = view.pooled(), []
    monkeypatch.setattr("unmask.interpret.attention.rows.cells_at_once", lambda _: 1)
    np.testing.assert_allclose(view.pooled(watch=lambda *at: seen.append(at)), whole, atol=1e-7)
    assert len(seen) == 3 * LENGTH + 1

    def stop(*_):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        view.pooled(watch=stop)


def test_wrong_layers_pools_and_weights_are_refused():
    view = AttentionView(random_encoder(SPECS["post-norm"]), dense.random_text(5))
    for wrong in ({"layer": 3}, {"pool": "sum"}, {"weight": "raw "}, {"rows": slice(0, 4, 2)}):
        with pytest.raises(InvalidRequest):
            view.pooled(**wrong)


@pytest.fixture(scope="module")
def folder():
    return folder_of("pooled", 0, json.dumps(CONFIG))


@pytest.mark.parametrize("options", [("--pool", "mean"), ("--pool", "max", "-l", 2), ("-l", 1, "-H", 3)])
@pytest.mark.parametrize("cells", [1, 1 << 22])
def test_the_table_holds_the_map(folder, tmp_path, options, cells, monkeypatch):
    monkeypatch.setattr(pooled, "CSV_CELLS", cells)
    path = tmp_path / "map.csv"
    ran = run_here("look", TEXT, *options, "--csv", path, "-m", folder, "--json")
    assert ran.code == 0, ran.err
    view = unmask.load(folder).attention(TEXT)
    expected = {
        3: lambda: view.probabilities(1, 3),
        "mean": view.pooled,
        2: lambda: view.pooled(2, "max"),
    }[options[-1]]()
    with path.open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    surfaces = [view.encoding.surface(token) for token in range(len(view))]
    assert head == ["position", "query", *surfaces]
    assert [row[:2] for row in rows] == [[str(i), one] for i, one in enumerate(surfaces)]
    np.testing.assert_allclose(np.array([row[2:] for row in rows], dtype=float), expected, atol=1e-6)
    edges = json.loads(ran.out)["edges"]
    for query, row in enumerate(expected):
        mine = [edge for edge in edges if edge["query"] == query]
        np.testing.assert_allclose([one["probability"] for one in mine], -np.sort(-row)[:3], atol=1e-6)
        np.testing.assert_allclose([row[one["key"]] for one in mine], -np.sort(-row)[:3], atol=1e-6)


def test_a_pool_is_drawn_and_printed(folder, tmp_path):
    path = tmp_path / "map.svg"
    ran = run_here("look", TEXT, "--pool", "max", "-m", folder, "--picture", path)
    assert "all layers, max over heads" in ran.out
    assert "sum to more than 1" in ran.out
    assert "attention, max over heads" in path.read_text(encoding="utf-8")


def test_options_without_a_map_or_with_two(folder, tmp_path):
    ran = run_here("look", TEXT, "--csv", tmp_path / "a.csv", "-l", 1, "-m", folder)
    assert_one_sentence(ran, "--csv", "--pool")
    both = run_here("look", TEXT, "--pool", "mean", "-l", 1, "-H", 0, "-m", folder)
    assert_one_sentence(both, "--pool", "--head 0")
    assert_one_sentence(run_here("look", TEXT, "--pool", "mean", "--overview", "-m", folder), "--overview")
    assert_one_sentence(run_here("look", TEXT, "--pool", "mean", "-l", 9, "-m", folder), "layer is 9")
