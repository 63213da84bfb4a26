"""What a run takes from the checkpoint that it starts from, in particular from one of another task."""

import pytest
import torch

from tests.training.finetune.test_finetune import Heard, place, table
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.finetune.start import task_checkpoint, task_encoder
from unmask.training.run.base_model import first_checkpoint
from unmask.weights.build import build

__all__ = ["place"]

SOURCES = {
    "classification": {},
    "tagging": {"task": "tagging", "data": {"train": ["train.conll"]}, "evaluation": {}},
    "answering": {"task": "answering", "data": {"train": ["train.json"]}, "evaluation": {}},
    "regression": {
        "task": "regression",
        "data": {"train": ["train.tsv"], "label": "length"},
        "evaluation": {},
    },
}


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
    """The models of short runs, by task."""
    out = tmp_path_factory.mktemp("finished")
    return {
        task: finetune(table(out / task, epochs=1, **changes), base=place).folder
        for task, changes in SOURCES.items()
    }


def started(folder, place, labels, **changes):
    """The checkpoint before the run, the encoder at its start, and what was said."""
    settings = settings_of_table(table(place / "x", model={"start_from": str(folder)}, **changes))
    begun = first_checkpoint(settings, place)
    heard = Heard()
    encoder = task_encoder(settings, task_checkpoint(settings, begun, labels), begun, heard.say)
    return build(begun), encoder, heard.said


@pytest.mark.parametrize(
    ("labels", "same", "sentence"),
    [
        (("dry", "wet"), True, "for dry, wet is trained further, because the task is the same"),
        (("wet", "dry"), False, "for dry, wet is left out, and the run starts with a new one for wet, dry"),
        (("a", "b", "c"), False, "for dry, wet is left out, and the run starts with a new one for a, b, c"),
        (tuple("abcdefgh"), False, "a new one for a, b, c, d, e, f and 2 more"),
    ],
)
def test_a_head_is_trained_further_only_for_the_same_labels(finished, place, labels, same, sentence):
    before, encoder, said = started(finished["classification"], place, labels)
    assert [one for one in said if sentence in one], said
    assert len(said) == 1, "one sentence says it all"
    ours, theirs = encoder.state_dict(), before.state_dict()
    head = {name for name in ours if name.startswith("heads.")}
    assert len(ours["heads.sequence.out.weight"]) == len(labels)
    for name in ours.keys() - head:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    for name in head:
        assert torch.equal(ours[name], theirs[name]) == same, name


def test_the_same_labels_of_another_kind_of_task_need_another_head(finished, place):
    before, encoder, said = started(finished["classification"], place, ("dry", "wet"), task="multi_label")
    assert said == [
        f"the head of {finished['classification']} for dry, wet is left out, and the run starts with a new "
        "one for several of dry, wet"
    ]
    name = "heads.sequence.out.weight"
    assert not torch.equal(encoder.state_dict()[name], before.state_dict()[name])
    before, encoder, said = started(finished["regression"], place, (), task="regression")
    assert "for numbers is trained further" in said[0]
    assert torch.equal(encoder.state_dict()[name], before.state_dict()[name])


@pytest.mark.parametrize(
    ("source", "role"), [("tagging", "tokens"), ("answering", "span"), ("regression", "sequence")]
)
def test_another_kind_of_head_is_left_out_and_all_else_is_kept(finished, place, source, role):
    before, encoder, said = started(finished[source], place, ("a", "b", "c"))
    ours, theirs = encoder.state_dict(), before.state_dict()
    kept = [name for name in ours if name.startswith(("embedding.", "layers."))]
    assert kept
    for name in kept:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    assert set(encoder.heads) == {"sequence"}
    if role == "sequence":
        assert said == [
            f"the head of {finished[source]} for numbers is left out, and the run starts with a new one for "
            "a, b, c"
        ]
    else:
        assert said == [
            f"{finished[source]} has no heads.sequence.out, pooler.dense; the run starts with new weights "
            "there",
            f"the heads of {finished[source]} that the task does not use are left out: {role}",
        ]


@pytest.mark.long
@pytest.mark.parametrize("source", ["tagging", pytest.param("regression", marks=pytest.mark.slow)])
def test_a_run_from_another_task_learns(finished, place, tmp_path, source):
    """With other labels, and with a head of another kind."""
    heard = Heard()
    given = {"epochs": 10, "model": {"start_from": str(finished[source])}}
    result = finetune(table(tmp_path / source, **given), base=place, callback=heard)
    assert result.dev["dev/accuracy"] > 0.9
    assert sum("left out" in sentence for sentence in heard.said) == 1
