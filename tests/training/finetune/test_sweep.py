"""A sweep over a grid: what its trials compute, what survives a kill, and what is refused at first."""

import itertools
import json
import os
import signal
import warnings

import optuna
import pytest

from tests.support.command import assert_one_sentence, run_here
from tests.training.finetune.test_finetune import Heard, place, table
from unmask.errors import InvalidRequest, OutputError
from unmask.training.finetune.grid import checked_grid, with_values
from unmask.training.finetune.result import FinetuneResult
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.finetune.sweep import SweepResult, TrialResult, Trials, _compared
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

__all__ = ["place"]

GRID = {"optimizer.learning_rate": [5e-3, 1e-4], "epochs": [1, 2]}


def swept(out, **changes):
    return table(out, **{"batch_size": 30, "sweep": GRID} | changes)


def weights(result, number):
    return (result.folder / f"trial-{number}" / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
    """A sweep of four trials."""
    out = tmp_path_factory.mktemp("sweep") / "run"
    return finetune(swept(out), base=place)


def test_every_trial_is_the_run_with_its_values(finished, place, tmp_path):
    assert isinstance(finished, SweepResult)
    points = [tuple(one.values[key] for key in GRID) for one in finished.trials]
    assert sorted(points) == sorted(itertools.product(*GRID.values())), "every combination once"
    for one in finished.trials:
        rate, epochs = one.values["optimizer.learning_rate"], one.values["epochs"]
        assert one.run.folder == finished.folder / f"trial-{one.number}" / "model"
        assert one.run.steps == 2 * epochs
        assert one.metric == one.run.dev["dev/accuracy"]
        if (rate, epochs) == (1e-4, 2):
            given = table(tmp_path / "alone", batch_size=30, epochs=2, optimizer={"learning_rate": 1e-4})
            alone = finetune(given, base=place)
            assert (alone.folder / "model.safetensors").read_bytes() == weights(finished, one.number)
            assert alone.dev == one.run.dev
    assert not (finished.folder / "model").exists(), "no trial is exported silently"


def test_the_result_has_every_trial(finished):
    written = json.loads((finished.folder / "result.json").read_text())
    best = max(written["trials"], key=lambda one: one["accuracy"])
    assert written["best_trial"] == finished.best_trial
    assert written["trials"][finished.best_trial]["accuracy"] == best["accuracy"]
    assert "chosen on the dev data" in written["best_trial_is"]
    for one, trial in zip(written["trials"], finished.trials, strict=True):
        assert one["values"] == trial.values
        assert one["dev"] == trial.run.dev
        assert (finished.folder / one["model"] / "config.json").is_file()
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{finished.folder / 'sweep.db'}")
    assert [one.value for one in study.trials] == [one["accuracy"] for one in written["trials"]]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [("accuracy", [0.5, 0.7, 0.7], 1), ("mean_squared_error", [0.5, 0.4, 0.7], 1), ("loss", [3, 2, 1], 2)],
)
def test_the_best_trial_by_the_metric(tmp_path, metric, values, best):
    settings = settings_of_table(table(tmp_path, evaluation={"metric": metric}))
    runs = [
        TrialResult(number, {}, value, FinetuneResult("x", tmp_path, 1, 1, {}))
        for number, value in enumerate(values)
    ]
    assert _compared(settings, tmp_path, runs).best_trial == best


def test_finished_trials_are_not_repeated(finished, place, monkeypatch):
    started = []
    monkeypatch.setattr(FinetuneRun, "__init__", lambda self, *rest: started.append(rest))
    heard = Heard()
    again = finetune(swept(finished.folder, log={"every": 2}), base=place, callback=heard)
    assert (started, again) == ([], finished)
    assert sum("already finished" in one for one in heard.said) == 4
    with pytest.raises(InvalidRequest, match="batch_size was 30 and is 20"):
        finetune(swept(finished.folder, batch_size=20), base=place)
    with pytest.raises(InvalidRequest, match=r"epochs was \[1, 2\] and is \[1, 3\]; restore the run file"):
        finetune(swept(finished.folder, sweep={**GRID, "epochs": [1, 3]}), base=place)


def test_without_the_record_finished_trials_are_kept(finished, place, tmp_path, monkeypatch):
    """The order of trials is that of the grid alone, so the record can be made again."""
    record = finished.folder / "sweep.db"
    record.write_bytes(b"damaged" * 1000)
    with pytest.raises(OutputError, match=r"record of the sweep: .*; remove that file"):
        finetune(swept(finished.folder), base=place)
    record.unlink()
    monkeypatch.setattr(FinetuneRun, "__init__", None)
    assert finetune(swept(finished.folder), base=place) == finished


@pytest.mark.parametrize(
    "moment",
    [*(pytest.param(moment, marks=pytest.mark.slow) for moment in ("asked", "suggested")), "step", "told"],
)
def test_a_killed_sweep_resumes_bit_by_bit(finished, place, tmp_path, monkeypatch, moment):
    """SIGKILL at the third trial; the second process takes up exactly that trial."""
    given = swept(tmp_path / "run", checkpoints={"every": 1})

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()
    if child == 0:
        _die_in_the_third(moment, die)
        finetune(given, base=place)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "run" / "result.json").exists()
    steps, step = [], Trainer._step
    monkeypatch.setattr(
        Trainer, "_step", lambda self, *rest: (step(self, *rest), steps.append(self.settings.out))[0]
    )
    again = finetune(given, base=place)
    assert [one.values for one in again.trials] == [one.values for one in finished.trials]
    assert [one.metric for one in again.trials] == [one.metric for one in finished.trials]
    for number in range(4):
        assert weights(again, number) == weights(finished, number)
    assert not any(one.endswith(("trial-0", "trial-1")) for one in steps), "finished trials are kept"
    in_third = sum(one.endswith("trial-2") for one in steps)
    whole = finished.trials[2].run.steps
    assert in_third == {"told": 0, "step": whole - 1}.get(moment, whole)
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'run' / 'sweep.db'}")
    assert [one.state.name for one in study.trials] == ["COMPLETE"] * 4, "no trial is there twice"


def _die_in_the_third(moment, die):
    """In this process the third trial ends with a kill."""
    if moment == "step":
        step = Trainer._step

        def dying(self, reporter):
            if self.settings.out.endswith("trial-2") and self.loop.step == 1:
                die()
            step(self, reporter)

        Trainer._step = dying
        return
    kind, name, after = {
        "asked": (optuna.Study, "ask", True),
        "suggested": (optuna.Trial, "suggest_categorical", True),
        "told": (optuna.Study, "tell", False),
    }[moment]
    call, count = getattr(kind, name), itertools.count(1)
    last = 5 if moment == "suggested" else 3

    def run(*arguments, **options):
        number = next(count)
        if number == last and not after:
            die()
        made = call(*arguments, **options)
        if number == last:
            die()
        return made

    setattr(kind, name, run)


def test_a_stopped_trial_is_not_a_failed_one(place, tmp_path, monkeypatch):
    step = Trainer._step
    once = iter([True])

    def stop_once(self, reporter):
        step(self, reporter)
        if next(once, False):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", stop_once)
    given = swept(tmp_path / "run", sweep={"epochs": [1, 2]})
    with pytest.raises(Stopped):
        finetune(given, base=place)
    assert [one.number for one in finetune(given, base=place).trials] == [0, 1]
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'run' / 'sweep.db'}")
    assert [one.state.name for one in study.trials] == ["COMPLETE"] * 2


def test_the_mean_of_seeds_decides(place, tmp_path):
    given = swept(tmp_path / "run", sweep={"optimizer.learning_rate": [1e-4, 5e-3]}, seeds=[1, 2])
    result = finetune(given, base=place)
    written = json.loads((result.folder / "result.json").read_text())
    for one, trial in zip(written["trials"], result.trials, strict=True):
        each = [one["seeds"][seed]["dev"]["dev/accuracy"] for seed in ("1", "2")]
        assert trial.metric == pytest.approx(sum(each) / 2) == one["accuracy"] == one["mean"]["dev/accuracy"]
        assert (result.folder / one["seeds"]["2"]["model"] / "config.json").is_file()
    assert result.trials[result.best_trial].metric == max(one.metric for one in result.trials)


def test_the_command(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = (
        'name = "a"\ntask = "classification"\nbatch_size = 30\nout = "out"\n'
        f'model.start_from = "{place / "tiny"}"\ndata.train = ["{place / "train.tsv"}"]\n'
        f'data.dev = ["{place / "dev.tsv"}"]\nevaluation.metric = "accuracy"\n'
    )
    # With quotes or without, TOML gives the same keys.
    (tmp_path / "run.toml").write_text(
        lines + '[sweep]\n"optimizer.learning_rate" = [5e-3, 1e-4]\nepochs = [1]\n'
    )
    (tmp_path / "other.toml").write_text(
        lines + "[sweep]\noptimizer.learning_rate = [5e-3, 1e-4]\nepochs = [1]\n"
    )
    ran = run_here("finetune", "run.toml")
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[0] == ["trial", "optimizer.learning_rate", "epochs", "dev/accuracy"]
    assert rows[1:3] == [
        [str(one["trial"]), *map(str, one["values"].values()), f"{one['accuracy']:.4f}"]
        for one in written["trials"]
    ]
    assert ran.out.splitlines()[-1].startswith(
        f"the best trial is {written['best_trial']}, chosen on the dev data"
    )
    (one,) = map(json.loads, run_here("finetune", "other.toml", "--json").out.splitlines())
    assert one["best_trial"] == written["best_trial"]
    assert [trial["values"] for trial in one["trials"]] == [trial["values"] for trial in written["trials"]]
    (tmp_path / "wrong.toml").write_text(lines + "[sweep]\nepoch = [1, 2]\n")
    assert_one_sentence(run_here("finetune", "wrong.toml"), "epoch to 1", "did you mean epochs?")


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"optimizer.lerning_rate": [1e-4]}, "sweep cannot set optimizer.lerning_rate .* did you mean learn"),
        ({"epochs": [1, "two"]}, "sweep cannot set epochs to 'two': epochs is 'two'; it must be a number"),
        ({"epochs": [1, -1]}, "sweep cannot set epochs to -1: epochs is -1.0; it must be above 0"),
        ({"data.train": ["x.tsv"]}, "sweep cannot set data.train to 'x.tsv': data.train .* must be a list"),
        ({"epochs": 2}, "sweep has 2 for epochs; give a list of values"),
        ({"epochs": []}, r"sweep has \[\] for epochs; give a list"),
        ({"epochs": [1, 1.0]}, r"sweep has a value of epochs twice"),
        ({"optimizer.betas": [[0.9, 0.99]]}, r"sweep has \[0.9, 0.99\] among the values of optimizer.betas"),
        ({"optimizer": {"eps": [1e-6]}, "optimizer.eps": [1e-8]}, "sweep has optimizer.eps twice"),
        ({"epochs.x": [1]}, "sweep cannot set epochs.x to 1: epochs is not a table"),
        ({"seed": [1, 2]}, "sweep cannot vary seed, because seeds are not chosen"),
        ({"log.every": [1, 2]}, "sweep cannot vary log.every, because it does not change what is learned"),
        ({"evaluation.metric": ["loss"]}, "sweep cannot vary evaluation.metric"),
        (
            {"schedule.warmup_steps": [1], "schedule.warmup_share": [0.1]},
            "both schedule.warmup_steps and schedule.warmup_share, which exclude",
        ),
        (
            {"frozen": [False, True], "optimizer.layer_decay": [0.5, 2.0]},
            "sweep cannot set optimizer.layer_decay to 2.0: .*at most 1",
        ),
        (
            {"adapter.kind": ["head"], "frozen": [False, True]},
            "adapter.kind to 'head' and frozen to True: fro",
        ),
        ({"epochs": list(range(1, 50)), "batch_size": list(range(1, 50))}, "sweep has 2,401 combinations"),
    ],
)
def test_a_grid_that_cannot_be(tmp_path, sweep, sentence):
    with pytest.raises(InvalidRequest, match=sentence) as error:
        settings_of_table(swept(tmp_path, sweep=sweep))
    assert "\n" not in str(error.value)


def test_a_sweep_needs_a_metric(tmp_path):
    with pytest.raises(InvalidRequest, match=r"sweep needs evaluation\.metric"):
        settings_of_table(swept(tmp_path, evaluation={}))


def test_checkpoints_are_looked_for_before_the_first_trial(place, tmp_path, monkeypatch):
    monkeypatch.setattr(FinetuneRun, "__init__", None)
    given = swept(tmp_path / "run", sweep={"model.start_from": ["tiny", "no-such/folder/at-all"]})
    with pytest.raises(InvalidRequest, match=r"sweep cannot set model\.start_from to 'no-such"):
        finetune(given, base=place)


def test_a_value_replaces_the_other_way_of_saying_it(tmp_path):
    settings = settings_of_table(swept(tmp_path, sweep={"schedule.warmup_steps": [5]}))
    schedule = with_values(settings, {"schedule.warmup_steps": 5}).schedule
    assert (schedule.warmup_steps, schedule.warmup_share) == (5, None)
    assert checked_grid(settings, settings.sweep, settings.evaluation.metric) == {
        "schedule.warmup_steps": (5,)
    }


def test_processes_that_do_not_write_have_the_same_trials(tmp_path):
    settings = settings_of_table(swept(tmp_path))
    record = tmp_path / "100%20 ?#" / "sweep.db"
    record.parent.mkdir()
    first, other = Trials(settings, record), Trials(settings, None)
    assert record.stat().st_size, "also where the path would mean something else in an address"
    assert [first.trial(number)[1] for number in range(4)] == [other.trial(number)[1] for number in range(4)]
