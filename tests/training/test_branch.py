"""New runs that begin with weights and moments of another run's checkpoint."""

import shutil

import pytest
import torch

from tests.training.runs import (
    EVERYTHING,
    RUN,
    Heard,
    Instead,
    changed,
    ended,
    last_tensors,
    lines,
    same_tensors,
    write_run,
)
from unmask.errors import InvalidRequest
from unmask.training import train
from unmask.training.optim import Ema
from unmask.training.run.checkpoint import steps_of

pytestmark = pytest.mark.long

BRANCH = {"moments": True, "progress": True}


def start(step="checkpoints/step-00000008", run="stable", **more):
    """Keys of a run that starts from a checkpoint of another."""
    return {"tokenizer": None, "model": Instead(start_from=f"{run}/{step}", **more)}


def stable(place, **changes):
    """A run without a decay, with checkpoints of all steps kept."""
    schedule = {"kind": "constant", "warmup_steps": 2}
    kept = {"every": 4, "keep": 9}
    return write_run(place, **{"schedule": schedule, "checkpoints": kept, "out": "stable", **changes})


@pytest.mark.parametrize("kind", ["plain", "everything"])
def test_a_branch_is_the_run_that_went_on(kind, place, monkeypatch):
    """With the same settings, at every bit; and resumed from a checkpoint of its own."""
    table = EVERYTHING if kind == "everything" else {}
    train(stable(place, **table))
    for out, stop in (("branch", None), ("resumed", 10)):
        path = stable(place, **table, out=out, **start(**BRANCH))
        if stop:
            ended(path, monkeypatch, stop)
        train(path)
        same_tensors(last_tensors(place / out), last_tensors(place / "stable"))
        later = [one for one in lines(place / "stable") if one["step"] > 8]
        held_out, *own = lines(place / out)
        assert (held_out["event"], held_out["step"]) == ("held_out", 8)
        assert own[1:] == later[1:]
        assert own[0]["masked/loss"] != later[0]["masked/loss"]  # of steps 9 alone, not 7 to 9


def test_a_decay_branches_off_a_stable_run(place):
    """The branch is the stable run with the other schedule from there on."""
    train(stable(place, steps=8))
    decay = {"kind": "wsd", "warmup_steps": 2, "decay_steps": 4, "decay_shape": "one_minus_sqrt"}
    train(stable(place, schedule=Instead(decay), out="branch", log={"every": 1}, **start(**BRANCH)))
    rates = [one["learning_rate"] for one in lines(place / "branch", kinds=("step",))]
    assert rates == pytest.approx([3e-3 * (1 - (left / 4) ** 0.5) for left in range(4)])
    # The same by hand: its checkpoints under the other schedule, which counts as another run.
    straight = stable(place, schedule=Instead(decay), out="straight")
    ended_at = place / "straight/checkpoints"
    shutil.copytree(place / "stable/checkpoints", ended_at)
    with pytest.raises(InvalidRequest, match=r"schedule\.kind was 'constant' and is 'wsd'"):
        train(straight)


def test_moments_alone_begin_at_step_0_with_other_text(place, monkeypatch):
    train(stable(place, **EVERYTHING))
    sources = changed(RUN)["data"]["sources"][:1]
    path = stable(
        place,
        **changed(EVERYTHING, optimizer={"learning_rate": 1e-4, "weight_decay": 0.0}),
        **start(moments=True),
        out="phase",
        seed=9,
        steps=2,
        data={"sources": sources},
    )
    seen = {}

    def look(self, reporter):
        seen.update({name: one.clone() for name, one in self.loop.objective.state_dict().items()})
        seen["counts"] = {int(kept["step"]) for kept in self.loop.optimizer.state.values()}
        seen["updates"] = self.loop.averages.updates

    with monkeypatch.context() as patch:
        patch.setattr("unmask.training.run.trainer.Trainer._evaluate", look)
        patch.setattr("unmask.training.run.trainer.Trainer._step", look_and_stop)
        with pytest.raises(Seen):
            train(path)
    there = dict(steps_of(place / "stable/checkpoints"))[8]
    from safetensors.torch import load_file

    stored = load_file(there / "tensors.safetensors")
    for name, tensor in stored.items():
        if name.startswith("objective."):
            assert torch.equal(seen[name.removeprefix("objective.")], tensor), name
    assert (seen["counts"], seen["updates"]) == ({8}, 8)
    assert train(path).steps == 2


class Seen(Exception):
    pass


def look_and_stop(self, reporter):
    assert self.loop.step == 0
    raise Seen


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"optimizer": {"kind": "muon"}}, "objective, sizes or optimizer.*groups of parameters"),
        ({"objective": {"kind": "replaced"}}, "a different objective"),
    ],
)
def test_what_does_not_fit_is_refused(changes, match, place):
    train(stable(place, steps=8))
    with pytest.raises(InvalidRequest, match=match):
        train(stable(place, out="other", **start(moments=True), **changes))


def test_other_sizes_other_text_and_other_folders_are_refused(place):
    train(stable(place, steps=8))
    small = {"hidden_size": 16}
    with pytest.raises(InvalidRequest, match="keep the sizes of the checkpoint"):
        train(stable(place, out="a", **start(moments=True, config=small)))
    with pytest.raises(InvalidRequest, match="the data state was written with"):
        train(stable(place, out="b", seed=4, **start(**BRANCH)))
    with pytest.raises(InvalidRequest, match=r"is not a checkpoint of a run; name one, such as"):
        train(stable(place, out="c", **start("model", moments=True)))
    with pytest.raises(InvalidRequest, match="moments is true and start_from is not given"):
        train(stable(place, out="d", model={"moments": True}))
    with pytest.raises(InvalidRequest, match="progress is true and moments is not"):
        train(stable(place, out="e", **start(progress=True)))


def test_a_checkpoint_of_a_run_without_moments_is_its_model(place):
    train(stable(place, **EVERYTHING))
    heard = Heard()
    for out, step in (("one", "checkpoints/step-00000012"), ("two", "checkpoints/step-00000012/model")):
        train(stable(place, steps=2, out=out, **start(step)), callback=heard)
    same_tensors(last_tensors(place / "one"), last_tensors(place / "two"))
    assert not any("fresh weights" in sentence for sentence in heard.sentences)


def test_averages_that_only_one_of_the_runs_keeps(place):
    train(stable(place, steps=8))
    kept = stable(place, out="kept", steps=9, averaging={"decay": 0.5, "warm_up": False}, **start(**BRANCH))
    train(kept)
    before, after = (
        dict(steps_of(place / run / "checkpoints"))[step] for run, step in (("stable", 8), ("kept", 9))
    )
    from safetensors.torch import load_file

    old, new = load_file(before / "tensors.safetensors"), load_file(after / "tensors.safetensors")
    for name, mean in new.items():
        if name.startswith("averages."):
            own = name.replace("averages.", "objective.", 1)
            torch.testing.assert_close(mean, (old[own] + new[own]) / 2)
    heard = Heard()
    train(
        stable(place, out="none", steps=10, **start("checkpoints/step-00000009", "kept", **BRANCH)),
        callback=heard,
    )
    assert any("this run keeps none" in sentence for sentence in heard.sentences)


def test_an_average_that_is_restarted_is_the_parameters_of_now():
    module = torch.nn.Linear(2, 2)
    averages = Ema(module, decay=0.9, warm_up=False)
    averages.update()
    with torch.no_grad():
        module.weight.fill_(3.0)
    averages.restart()
    assert averages.updates == 0
    assert torch.equal(averages.averages["weight"], module.weight)
