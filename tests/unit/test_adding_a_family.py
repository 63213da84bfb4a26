"""docs/adding-a-family.md, run as it stands: its page becomes a family, and its checkpoint a model."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.support import plain
from unmask import families
from unmask.weights.build import on_meta
from unmask.weights.tensor_report import moves

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-family.md"
FAMILY, FOLDER, USE = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def family(monkeypatch):
    """The page's module, with the line that registers it."""
    name = "unmask.families.lighthouse"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(FAMILY, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, module.LIGHTHOUSE))
    return module.LIGHTHOUSE


@pytest.fixture
def used(family, tmp_path, monkeypatch):
    """The names that the page's other blocks leave behind, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in (FOLDER, USE):
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_what_it_prints_is_what_it_says(used):
    assert [tuple(state.shape) for state in used["states"]] == [(7, 20), (3, 20)]
    assert "# [(7, 20), (3, 20)]" in USE


def test_its_checkpoint_gives_what_the_formulas_give(used):
    """Their tensors put into our places by hand, not by the page's rows."""
    theirs = {
        name.removeprefix("model."): tensor.double().numpy() for name, tensor in used["tensors"].items()
    }
    weights = {
        "embedding.words.weight": theirs["tokens.weight"],
        "embedding.norm.weight": theirs["tokens_norm.weight"],
    }
    weights["final_norm.weight"] = theirs["norm.weight"]
    for layer in range(3):
        at, here = f"blocks.{layer}.", f"layers.{layer}."
        qkv, up = (
            [theirs[f"{at}{part}.weight"] for part in parts]
            for parts in (("attn.q", "attn.k", "attn.v"), ("mlp.gate", "mlp.up"))
        )
        weights[here + "attention.qkv.weight"] = np.concatenate(qkv)
        weights[here + "attention.out.weight"] = theirs[at + "attn.o.weight"]
        weights[here + "attention_norm.weight"] = theirs[at + "norm_1.weight"]
        weights[here + "feedforward_norm.weight"] = theirs[at + "norm_2.weight"]
        weights[here + "feedforward.inner.weight"] = np.concatenate(up)
        weights[here + "feedforward.outer.weight"] = theirs[at + "mlp.down.weight"]
    model = used["model"]
    for text, state in zip(["a light in the dark", "house"], used["states"], strict=True):
        ids = model.tokenize([text])[0].ids
        expected = plain.encode(model.spec, weights, list(ids), [0] * len(ids), None)[-1]
        np.testing.assert_allclose(np.asarray(state), expected, rtol=0, atol=1e-4)


def test_it_is_saved_in_its_own_layout(used):
    copy = load_file("lighthouse-copy/model.safetensors")
    original = {name: tensor for name, tensor in used["tensors"].items() if "inv_freq" not in name}
    assert copy.keys() == original.keys()
    for name, tensor in original.items():
        assert (copy[name] == tensor).all(), name


def test_its_page_keeps_the_contract(family):
    from unmask.base.json_settings import JsonSettings

    spec = family.read(JsonSettings("config.json", {}), "published")
    config = JsonSettings("config.json", family.write(spec))
    assert family.read(config, "published") == spec
    theirs = [name for move in moves(family.tensor_map, on_meta(spec).state_dict()) for name in move.theirs]
    assert len(set(theirs)) == len(theirs)


def test_without_the_line_it_is_not_known(tmp_path, monkeypatch):
    import unmask
    from unmask.errors import UnknownArchitecture

    monkeypatch.chdir(tmp_path)
    exec(compile(FOLDER, str(PAGE), "exec"), {})
    with pytest.raises(UnknownArchitecture, match="'lighthouse', which is not built"):
        unmask.load(tmp_path / "lighthouse-tiny")
