"""One run with several seeds: what it computes, skips, resumes and writes."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

from tests.support.command import run_here
from tests.training.finetune.test_finetune import Heard, place, table
from unmask.errors import InvalidRequest
from unmask.training.finetune.result import FinetuneResult
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.finetune.sweep import SeedsResult, summarized
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

__all__ = ["place"]

SEEDS = [3, 1, 8]


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
    """A run with three seeds, and its folder."""
    out = tmp_path_factory.mktemp("seeds") / "run"
    return finetune(table(out, epochs=1, seeds=SEEDS), base=place)


def test_every_seed_is_the_run_with_that_seed(finished, place, tmp_path):
    assert isinstance(finished, SeedsResult)
    assert list(finished.runs) == SEEDS
    alone = finetune(table(tmp_path / "alone", epochs=1, seed=8), base=place)
    assert isinstance(alone, FinetuneResult)
    run = finished.runs[8]
    assert run.folder == finished.folder / "seed-8" / "model"
    assert (run.dev, run.steps, run.best_step) == (alone.dev, alone.steps, alone.best_step)
    name = "model.safetensors"
    assert (run.folder / name).read_bytes() == (alone.folder / name).read_bytes()
    assert (run.folder / name).read_bytes() != (finished.runs[1].folder / name).read_bytes()
    assert not (finished.folder / "model").exists(), "no seed is chosen silently"


def test_the_result_has_every_value_with_mean_and_deviation(finished):
    written = json.loads((finished.folder / "result.json").read_text())
    assert list(written["seeds"]) == ["3", "1", "8"]
    for name, mean in written["mean"].items():
        each = [written["seeds"][str(seed)]["dev"][name] for seed in SEEDS]
        assert each == [finished.runs[seed].dev[name] for seed in SEEDS]
        assert mean == pytest.approx(np.mean(each), abs=1e-15) == finished.mean[name]
        assert written["standard_deviation"][name] == pytest.approx(np.std(each, ddof=1), abs=1e-15)
    assert "dev/accuracy" in written["mean"]
    assert written["best_seed"] == finished.best_seed
    assert (finished.folder / written["seeds"]["3"]["model"] / "config.json").is_file()


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [("accuracy", [0.5, 0.7, 0.6], 1), ("mean_squared_error", [0.5, 0.7, 0.4], 8), (None, [1, 2, 3], None)],
)
def test_the_best_seed_is_named_by_the_metric(tmp_path, metric, values, best):
    given = {"evaluation": {"metric": metric}} if metric else {"evaluation": {}}
    settings = settings_of_table(table(tmp_path, seeds=SEEDS, **given))
    name = f"dev/{metric or 'accuracy'}"
    runs = {
        seed: FinetuneResult("x", tmp_path, 1, 1, {name: value, f"dev/f1[{seed}]": 1.0})
        for seed, value in zip(SEEDS, values, strict=True)
    }
    found = summarized(settings, tmp_path, runs)
    assert found.best_seed == best
    assert found.mean == {name: pytest.approx(np.mean(values))}, "only figures that all runs have"
    assert found.standard_deviation == {name: pytest.approx(np.std(values, ddof=1))}


def test_finished_seeds_are_not_repeated(finished, place, monkeypatch, tmp_path):
    started = []
    made = FinetuneRun.__init__
    monkeypatch.setattr(
        FinetuneRun,
        "__init__",
        lambda self, one, *rest, **more: (started.append(one.seed), made(self, one, *rest, **more))[1],
    )
    heard = Heard()
    folder = shutil.copytree(finished.folder, tmp_path / "run")  # other tests read the three seeds
    given = table(folder, epochs=1, seeds=[*SEEDS, 4], log={"every": 2})
    again = finetune(given, base=place, callback=heard)
    assert started == [4]
    runs = {seed: replace(again.runs[seed], folder=finished.runs[seed].folder) for seed in SEEDS}
    assert runs == finished.runs
    assert "seed 1, 2 of 4: already finished" in heard.said
    assert "seed 4, 4 of 4" in heard.said
    with pytest.raises(InvalidRequest, match="was started with other settings: batch_size was 8 and is 4"):
        finetune(table(folder, epochs=1, seeds=SEEDS, batch_size=4), base=place)


def test_a_stopped_seed_resumes_bit_by_bit(finished, place, tmp_path, monkeypatch):
    step, taken = Trainer._step, []

    def stop_once(self, reporter):
        step(self, reporter)
        taken.append((self.settings.seed, self.loop.step))
        if taken == [*taken[:-1], (1, 5)] and taken.count((1, 5)) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", stop_once)
    given = table(tmp_path / "run", epochs=1, seeds=SEEDS)
    with pytest.raises(Stopped):
        finetune(given, base=place)
    assert not (tmp_path / "run" / "result.json").exists()
    again = finetune(given, base=place)
    assert taken == [(seed, number) for seed in SEEDS for number in range(1, 9)], "no step is repeated"
    assert again.mean == finished.mean
    for seed in SEEDS:
        name = "model.safetensors"
        one, other = (result.runs[seed].folder / name for result in (again, finished))
        assert one.read_bytes() == other.read_bytes()


def test_a_model_that_was_removed_is_exported_again(place, tmp_path):
    given = table(tmp_path / "run", epochs=1, seeds=[1, 2])
    first = finetune(given, base=place)
    before = (first.runs[2].folder / "model.safetensors").read_bytes()
    shutil.rmtree(first.runs[2].folder)
    again = finetune(given, base=place)
    assert (again.runs[2].folder / "model.safetensors").read_bytes() == before
    assert again.mean == first.mean


def test_the_command_prints_all_of_it(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        'name = "a"\ntask = "classification"\nepochs = 1\nbatch_size = 30\nseeds = [1, 2]\nout = "out"\n'
        f'model.start_from = "{place / "tiny"}"\ndata.train = ["{place / "train.tsv"}"]\n'
        f'data.dev = ["{place / "dev.tsv"}"]\nevaluation.metric = "accuracy"\n'
    )
    ran = run_here("finetune", "run.toml")
    assert ran.code == 0, ran.err
    assert "a: 1 epoch of 2 steps, 2 in all, of 30 texts, in float32 on cpu" in ran.err
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    each = [written["seeds"][seed]["dev"]["dev/accuracy"] for seed in ("1", "2")]
    line = f"dev/accuracy: {np.mean(each):.4f} ± {np.std(each, ddof=1):.4f} ({each[0]:.4f}, {each[1]:.4f})"
    assert line in ran.out.splitlines()
    assert ran.out.splitlines()[-1] == f"the best seed is {written['best_seed']}"
    (one,) = map(json.loads, run_here("finetune", "run.toml", "--json").out.splitlines())
    assert one["runs"]["2"]["dev"] == written["seeds"]["2"]["dev"]
    assert one["runs"]["2"]["folder"] == "out/seed-2/model"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"seeds": [4]}, r"seeds is \[4\]; give at least two different numbers"),
        ({"seeds": [4, 4]}, r"seeds is \[4, 4\]; give at least two different"),
        ({"seeds": [4, -1]}, "seeds is -1; it must be at least 0"),
        ({"seeds": [4, 5], "seed": 1}, r"seed is 1 and seeds is \[4, 5\]; give one of the two"),
    ],
)
def test_seeds_that_cannot_be(tmp_path, given, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        settings_of_table(table(tmp_path, **given))
