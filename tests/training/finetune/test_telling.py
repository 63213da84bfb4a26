"""What a run tells while it trains: printed, to callbacks, to trackers, and about one-sided predictions."""

import json
import re
import sys

import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.training.finetune.test_finetune import place, table
from unmask.errors import InvalidRequest, MissingExtra, OutputError
from unmask.training.finetune.tested import one_sided
from unmask.training.run.callbacks import ARGUMENTS, listener
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

__all__ = ["place"]


def short(out, **changes):
    return table(out, **{"epochs": 1, "log": {"every": 4}} | changes)


def toml(folder, out, more=""):
    path = folder / f"{out.name}.toml"
    path.write_text(
        f'name = "tiny-task"\ntask = "classification"\nepochs = 1\nbatch_size = 8\nout = "{out}"\n'
        f'[model]\nstart_from = "tiny"\n[data]\ntrain = ["train.tsv"]\ndev = ["dev.tsv"]\n{more}'
    )
    return path


def test_python_prints_what_the_command_line_prints(place, tmp_path, capsys):
    unmask.finetune(toml(place, tmp_path / "python"))
    said = capsys.readouterr().err
    ran = run_here("finetune", toml(place, tmp_path / "program"))
    numbers = re.compile(r"[\d,.]+( (tokens/s|GiB|min|s)|% of peak)|python|program")
    assert numbers.sub("", said) == numbers.sub("", ran.err)
    assert "train: 60 texts" in said
    assert "held out: dev/accuracy" in said
    unmask.finetune(short(tmp_path / "silent"), base=place, callback=unmask.Callback())
    assert capsys.readouterr() == ("", "")


def test_a_function_hears_steps_evaluations_and_the_end(place, tmp_path, capsys):
    events = []
    result = unmask.finetune(short(tmp_path / "run"), base=place, callback=events.append)
    assert [(one["event"], one.get("step")) for one in events] == [
        ("step", 4), ("step", 8), ("evaluation", 8), ("end", None),
    ]  # fmt: skip
    assert events[2]["dev/accuracy"] == result.dev["dev/accuracy"]
    assert events[3]["result"] == result
    assert "train: 60 texts" in capsys.readouterr().err, "a function replaces no sentence"


def test_an_object_has_the_methods_that_it_needs(place, tmp_path, capsys):
    class Mine:
        def __init__(self):
            self.seen = []

        def evaluation(self, figures):
            self.seen.append(figures)

        def end(self, result):
            self.seen.append(result)

    mine = Mine()
    result = unmask.finetune(short(tmp_path / "run", seeds=[1, 2]), base=place, callback=mine)
    assert [type(one).__name__ for one in mine.seen] == ["dict", "FinetuneResult"] * 2
    assert mine.seen[3] == result.runs[2]
    assert "seed 2, 2 of 2" in capsys.readouterr().err

    class Sayer(unmask.Callback):
        said = ""

        def say(self, sentence):
            self.said += sentence

    sayer = Sayer()
    unmask.finetune(short(tmp_path / "other"), base=place, callback=sayer)
    assert "train: 60 texts" in sayer.said
    assert capsys.readouterr().err == "", "an object with say hears what would be printed"


class _Odd:
    def step(self):
        pass


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            "wandb",
            "callback is 'wandb'; give a function of one mapping, or an object with some of the methods",
        ),
        (unmask.Callback, r"callback is the class Callback; give an object of it, Callback\(\)"),
        ([print], r"callback is \[.*such as a subclass of unmask.Callback"),
        (lambda: None, "callback is .*must be a function that can be called with 1 argument"),
        (_Odd(), "the method step of callback is .* called with 1 argument, see unmask.Callback"),
    ],
)
def test_what_cannot_be_called_is_refused_in_a_sentence(place, tmp_path, wrong, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        unmask.finetune(short(tmp_path / "run"), base=place, callback=wrong)
    with pytest.raises(InvalidRequest, match=sentence), listener(wrong):
        pass
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_each_method_takes_as_many_arguments_as_it_is_called_with():
    calls = {"say": 1, "tokenizing": 3, "step": 1, "evaluation": 1, "end": 1}
    assert calls == ARGUMENTS
    assert all(hasattr(unmask.Callback, name) for name in ARGUMENTS)


WANDB = """
import json, pathlib
class Run:
    def __init__(self, given):
        self.given, self.logged, self.id = given, [], given["id"] or "new-id"
    def log(self, figures, step):
        self.logged.append([step, figures])
    def finish(self, exit_code):
        place = pathlib.Path(self.given.pop("dir"), f"wandb-{exit_code}.json")
        place.write_text(json.dumps([self.given, self.logged], default=str))
def init(**given):
    return Run(given)
"""
MLFLOW = """
import json, os, pathlib
from types import SimpleNamespace as Some
PLACE = pathlib.Path(os.environ["FAKE_MLFLOW"])
class MlflowClient:
    made = []
    def get_experiment_by_name(self, name):
        return None
    def create_experiment(self, name):
        self.experiment = name
        return "7"
    def create_run(self, number, run_name):
        return Some(info=Some(run_id=f"{number}-{run_name}"))
    def update_run(self, run_id, status):
        self.made.append([run_id, status])
    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100
        if os.environ.get("FAKE_MLFLOW_DOWN") and metrics:
            raise ConnectionError("no route to the server")
        self.made += [[run_id, *one] for one in (*metrics, *params)]
    def set_terminated(self, run_id, status):
        PLACE.write_text(json.dumps([*self.made, [run_id, status]]))
        self.made.clear()
"""


@pytest.fixture
def trackers(tmp_path, monkeypatch):
    """Modules with the part of both packages that a run uses."""
    (tmp_path / "site" / "mlflow").mkdir(parents=True)
    (tmp_path / "site" / "wandb.py").write_text(WANDB)
    (tmp_path / "site" / "mlflow" / "__init__.py").write_text(MLFLOW)
    entities = "def Metric(*values):\n    return list(values)\ndef Param(*values):\n    return list(values)\n"
    (tmp_path / "site" / "mlflow" / "entities.py").write_text(entities)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("FAKE_MLFLOW", str(tmp_path / "mlflow.json"))
    yield tmp_path
    for name in ("wandb", "mlflow", "mlflow.entities"):
        sys.modules.pop(name, None)


def test_trackers_receive_the_figures_of_the_log(place, trackers, monkeypatch):
    out = trackers / "run"
    log = {"every": 4, "wandb": "films", "mlflow": "films"}
    step = Trainer._step

    def stopping(self, reporter):
        step(self, reporter)
        if self.loop.step == 5:
            raise Stopped("after 5")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopping)
        patch.setattr(Trainer, "_due", lambda self, _: self.loop.step == 4)
        with pytest.raises(Stopped):
            unmask.finetune(short(out, log=log), base=place)
    first = json.loads((out / "wandb-1.json").read_text())
    assert first[0]["project"] == "films"
    assert first[0]["name"] == "tiny-task"
    assert first[0]["id"] is None
    assert first[0]["config"]["batch_size"] == 8
    assert json.loads((trackers / "mlflow.json").read_text())[-1] == ["7-tiny-task", "KILLED"]
    unmask.finetune(short(out, log=log), base=place)
    given, logged = json.loads((out / "wandb-0.json").read_text())
    assert (given["id"], given["resume"]) == ("new-id", "allow")
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    (evaluated,) = [one for one in events if one["event"] == "held_out"]
    assert [one[0] for one in logged] == [8, 8]
    assert logged[1][1]["held_out/dev/accuracy"] == evaluated["dev/accuracy"]
    sent = json.loads((trackers / "mlflow.json").read_text())
    assert (sent[0], sent[-1]) == (["7-tiny-task", "RUNNING"], ["7-tiny-task", "FINISHED"])
    names = {one[1] for one in sent[1:-1]}
    assert "held_out/dev/f1_wet_" in names, "a name in the characters that MLflow accepts"


def test_a_tracker_that_fails_later_ends_no_run(place, trackers, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_MLFLOW_DOWN", "yes")
    unmask.finetune(short(trackers / "run", log={"every": 4, "mlflow": "films"}), base=place)
    said = capsys.readouterr().err
    assert said.count("mlflow did not accept figures (ConnectionError: no route to the server)") == 1
    monkeypatch.setattr(sys.modules["mlflow"], "MlflowClient", lambda: 1 / 0)
    with pytest.raises(OutputError, match=r"mlflow cannot start .ZeroDivisionError.*leave log.mlflow out"):
        unmask.finetune(short(trackers / "other", log={"mlflow": "films"}), base=place)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed(place, tmp_path, monkeypatch, name):
    monkeypatch.setattr("unmask.base.optional._found", lambda module: module != name)
    with pytest.raises(MissingExtra, match=rf"{name} is needed for .*pip install 'unmask\[{name}\]'"):
        unmask.finetune(short(tmp_path / "run", log={name: "films"}), base=place)


@pytest.mark.parametrize(
    ("task", "predictions", "labels", "says"),
    [
        ("multi_label", [(), ()], [("a",), ()], "dev: the model predicts no label for any of 2 texts; train"),
        ("multi_label", [(), ("a",)], [("a",), ()], None),
        ("multi_label", [(), ()], [(), ()], None),
        ("tagging", [["O"], ["O", "O"]], [["O"], ["B-X", "O"]], "predicts no entity in any of 2 texts"),
        ("tagging", [["N"], ["N", "N"]], [["N"], ["V", "N"]], "predicts 'N' for every word of 2 texts"),
        ("classification", ["a", "a"], ["a", "b"], "predicts 'a' for each of 2 texts"),
        ("classification", ["a", "a"], ["a", "a"], None),
        ("classification", ["a", "b"], ["a", "a"], None),
        ("answering", ["", ""], [("x",), ()], "gives no answer to any of 2 questions"),
        ("answering", ["", ""], [(), ()], None),
        ("answering", ["x", ""], [("x",), ()], None),
        ("multiple_choice", [0, 0], [0, 1], "predicts 0 for each of 2 questions"),
        ("regression", [1.0, 1.0], [0.0, 2.0], None),
    ],
)
def test_one_sided_predictions_are_said(task, predictions, labels, says):
    found = one_sided(task, predictions, labels)
    assert (found is None) if says is None else (says in found)


def test_a_run_that_predicts_no_label_says_so(place, tmp_path, capsys):
    rows = ["the river", "a bank", "another text", "muddy"]
    lines = [json.dumps({"text": text, "label": ["wet"] if text == "muddy" else []}) for text in rows]
    (tmp_path / "few.jsonl").write_text(
        "\n".join([*lines, json.dumps({"text": "a", "label": ["dry"]})]) + "\n"
    )
    names = [str(tmp_path / "few.jsonl")]
    given = {"task": "multi_label", "data": {"train": names, "dev": names}, "evaluation": {}}
    unmask.finetune(
        short(tmp_path / "run", **given, optimizer={"learning_rate": 1e-2}, epochs=12), base=place
    )
    sentence = "dev: the model predicts no label for any of 5 texts"
    assert sentence in capsys.readouterr().err
    assert sentence in (tmp_path / "run" / "model" / "README.md").read_text()


def test_the_program_names_a_missing_tracker(place, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.base.optional._found", lambda module: module != "wandb")
    ran = run_here("finetune", toml(place, tmp_path / "run", '[log]\nwandb = "films"\n'))
    assert ran.code == 1
    assert "pip install 'unmask[wandb]'" in ran.err.splitlines()[-1]
    assert_one_sentence(run_here("finetune", "no.toml", "--num-train-epochs=3"), "set epochs", code=2)
