"""Fine-tuning in two processes: the same run, and one error message."""

import json

import pytest
from torch import distributed

from tests.support.command import run_here
from tests.training.finetune.test_finetune import place
from tests.training.test_distributed import assert_well, only_one_speaks, parent, run_together
from unmask.training.run.log import read_events

__all__ = ["parent", "place"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed"),
]


def run_file(folder, place, *lines):
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(
        "\n".join(
            (
                *lines,
                'name = "a"\ntask = "classification"\nepochs = 1\nbatch_size = 30\nout = "out"',
                f'model.start_from = "{place / "tiny"}"\ndata.train = ["{place / "train.tsv"}"]',
                f'data.dev = ["{place / "dev.tsv"}"]\nevaluation.metric = "accuracy"',
                "log.every = 1",
            )
        )
    )
    return folder / "run.toml"


def test_a_wrong_run_file_is_one_sentence(parent, place, tmp_path):
    path = run_file(tmp_path, place, "lables = 1")
    only_one_speaks(run_together(parent, "finetune", path), "lables")


def test_two_processes_train_as_one_with_several_seeds(parent, place, tmp_path):
    lines = ("micro_batches = 2", "seeds = [1, 2]", "r_drop = 0.5")
    two, one = (run_file(tmp_path / name, place, *lines) for name in ("two", "one"))
    ran = run_together(parent, "finetune", two)
    assert_well(ran)
    assert "the best seed is" in ran[0].out
    assert run_here("finetune", one).code == 0
    results = [json.loads((path.parent / "out" / "result.json").read_text()) for path in (two, one)]
    assert results[0]["mean"] == pytest.approx(results[1]["mean"], abs=1e-6)
    losses = [
        [event["classification/loss"] for event in read_events(path.parent / "out/seed-2/log.jsonl")
         if event["event"] == "step"]
        for path in (two, one)
    ]  # fmt: skip
    assert len(losses[0]) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    again = run_together(parent, "finetune", two)
    assert_well(again)
    assert again[0].err.count("already finished") == 2


@pytest.mark.slow
def test_two_processes_sweep_as_one(parent, place, tmp_path):
    """Only one of them has the record of the trials, and both train the same trial."""
    lines = ("micro_batches = 2", 'sweep."optimizer.learning_rate" = [1e-4, 5e-3]', "sweep.r_drop = [0.5]")
    two, one = (run_file(tmp_path / name, place, *lines) for name in ("two", "one"))
    ran = run_together(parent, "finetune", two)
    assert_well(ran)
    assert ran[0].out.count("the best trial is") == 1
    assert run_here("finetune", one).code == 0
    first, other = (json.loads((path.parent / "out" / "result.json").read_text()) for path in (two, one))
    assert first["best_trial"] == other["best_trial"]
    for mine, alone in zip(first["trials"], other["trials"], strict=True):
        assert mine["values"] == alone["values"]
        assert mine["dev"] == pytest.approx(alone["dev"], abs=1e-6)
    again = run_together(parent, "finetune", two)
    assert_well(again)
    assert again[0].err.count("already finished") == 2
