"""Names of earlier versions keep working for one release, each with one warning."""

import json

import numpy as np
import pytest

import unmask
from tests.support.command import run_here
from tests.support.places import REPOSITORY
from unmask.bench.scaling.settings import ScalingSettings
from unmask.deprecation import MODEL_NAMES, SPEC_NAMES, RenamedWarning
from unmask.explorer.sessions.identity import candidate_of
from unmask.spec.encoder import EncoderSpec
from unmask.spec.plain import from_plain, to_plain
from unmask.training.objectives.build import read_objective
from unmask.training.run.settings import ModelSettings
from unmask.training.table import read_table

VARIANTS = sorted(path.name for path in (REPOSITORY / "unmask/shipped/variants").iterdir())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda view: view.atlas().layers[0].entropy_HN, lambda view: view.statistics().layers[0].entropy_HN),
        (lambda view: view.top_edges(0, 1, k=2).keys, lambda view: view.topk(0, 1, k=2).keys),
        (lambda view: view.received, lambda view: view.attention_received),
        (lambda view: view.recording.final_ND, lambda view: view.cache.final_ND),
    ],
    ids=["atlas", "top_edges", "received", "recording"],
)
def test_an_attention_view_by_its_old_names(old, new):
    view = unmask.load("variant/alibi").attention("the old man")
    with pytest.warns(RenamedWarning, match="is now called"):
        found = old(view)
    np.testing.assert_array_equal(found, new(view))


def test_the_module_of_analyses_by_its_old_name():
    with pytest.warns(RenamedWarning, match=r"unmask.see is now called unmask.interpret"):
        assert unmask.see is unmask.interpret


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_spec_that_an_earlier_version_wrote_is_read(variant):
    config = json.loads((REPOSITORY / "unmask/shipped/variants" / variant / "config.json").read_text())
    spec = from_plain(EncoderSpec, config["encoder"], "the spec")
    text = json.dumps(to_plain(spec))
    for old, new in SPEC_NAMES.items():
        text = text.replace(f'"{new}"', f'"{old}"')
    assert "FullAttention" not in text
    assert '"pattern"' not in text
    assert from_plain(EncoderSpec, json.loads(text), "the spec") == spec


def test_a_shipped_model_by_its_old_name():
    with pytest.warns(RenamedWarning, match="the model design/alibi is now called variant/alibi") as notes:
        assert unmask.load("design/alibi").name == "variant/alibi"
    assert len(notes) == 1
    assert sorted(MODEL_NAMES.values()) == sorted(f"variant/{name}" for name in VARIANTS)
    assert candidate_of("design/alibi").name == "variant/alibi"


@pytest.mark.parametrize(
    "arguments", [("look", "the old man", "-m"), ("inspect",)], ids=["option", "argument"]
)
def test_a_command_with_the_old_name_of_a_shipped_model(arguments):
    ran = run_here(*arguments, "design/alibi", "--json")
    assert ran.code == 0
    (note,) = ran.err.splitlines()
    assert note.startswith("unmask: note: ")
    assert note.endswith("variant/alibi")
    assert "variant/alibi" in ran.out


def test_length_scaling_by_its_old_names():
    with pytest.warns(RenamedWarning, match="the argument shape is now called architecture"):
        settings = ScalingSettings(shape="bert-base-uncased", seconds=3)
    assert settings == ScalingSettings(architecture="bert-base-uncased", seconds=3)
    with pytest.raises(TypeError, match="both 'architecture' and its old name 'shape'"):
        ScalingSettings(shape="a", architecture="b")


def test_a_run_file_by_its_old_names():
    with pytest.warns(RenamedWarning, match="shape is now called architecture"):
        assert read_table(ModelSettings, {"shape": "bert-base-uncased"}, "model").architecture
    with pytest.warns(RenamedWarning) as notes:
        new = read_objective({"kind": "segments", "question": "sentence_order"})
    assert len(notes) == 2
    assert new == read_objective({"kind": "sentence_pairs", "task": "sentence_order"})
