"""Runs that train an adapter: the encoder stays as it is, and the small file holds all that was learned."""

import os
import signal

import pytest
import torch

import unmask
from tests.training.finetune.test_finetune import Heard, place, table  # noqa: F401 - a fixture
from unmask.encoder.layers.lora import updates
from unmask.errors import InvalidRequest, OutputError
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

TEXTS = ["river bank", "the text was muddy", "a"]


def adapter(out, **changes):
    return (
        table(out, epochs=8, optimizer={"learning_rate": 2e-2}, adapter={"r": 4, "lora_alpha": 8}) | changes
    )


@pytest.mark.parametrize("kind", ["lora", "head"])
def test_an_adapter_learns_and_is_all_that_is_needed(place, tmp_path, kind):  # noqa: F811
    slower = {"learning_rate": 5e-3}
    given = adapter(tmp_path / "run", epochs=12, optimizer=slower, adapter={"kind": kind, "r": 4})
    result = finetune(given, base=place)
    assert result.adapter == tmp_path / "run" / "adapter"
    small = unmask.load(place / "tiny", adapter=result.adapter)
    whole = unmask.load(result.folder)
    assert small.checkpoint.adapter.name == "tiny-task"
    assert bool(small.checkpoint.adapter.updates) == (kind == "lora")
    for one, other in zip(small.classify(TEXTS), whole.classify(TEXTS), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-6)
    if kind == "lora":
        assert result.dev["dev/accuracy"] > 0.9
        assert (result.adapter / "adapter_model.safetensors").stat().st_size < result.folder.joinpath(
            "model.safetensors"
        ).stat().st_size / 3


@pytest.mark.parametrize("task", ["tagging", "answering"])
def test_every_role_has_adapters(place, tmp_path, task):  # noqa: F811
    end, keys = (".conll", {"text": "0", "label": "-1"}) if task == "tagging" else (".json", {})
    data = {"train": [f"train{end}"], "dev": [f"dev{end}"], **keys}
    given = adapter(tmp_path / "run", task=task, data=data, evaluation={}, epochs=2)
    result = finetune(given, base=place)
    small, whole = unmask.load(place / "tiny", adapter=result.adapter), unmask.load(result.folder)
    if task == "tagging":
        for one, other in zip(small.tag(TEXTS), whole.tag(TEXTS), strict=True):
            assert [word.label for word in one.words] == [word.label for word in other.words]
    else:
        assert (
            small.answer("the bank", TEXTS).answers[0].text == whole.answer("the bank", TEXTS).answers[0].text
        )


def test_only_updates_and_the_head_are_trained(place, tmp_path):  # noqa: F811
    settings = settings_of_table(adapter(tmp_path / "run", epochs=1))
    (tmp_path / "run").mkdir()
    from unmask.training.run.ranks import Ranks

    run = FinetuneRun(settings, place, tmp_path / "run", Ranks(), Heard())
    encoder = run.objective.encoder
    before = {name: one.clone() for name, one in encoder.state_dict().items()}
    trained = {name for name, one in encoder.named_parameters() if one.requires_grad}
    assert {name.split(".")[0] for name in trained if ".lora." not in name} == {"heads", "pooler"}
    assert len(updates(encoder)) == 4 * len(encoder.layers)
    run.train()
    changed = {name for name, one in encoder.state_dict().items() if not torch.equal(one, before[name])}
    assert changed == trained


@pytest.mark.parametrize("metric", ["accuracy", pytest.param(None, marks=pytest.mark.slow)])
def test_a_stopped_run_writes_the_same_adapter(place, tmp_path, monkeypatch, metric):  # noqa: F811
    given = {"evaluation": {"every": 5} | ({"metric": metric} if metric else {}), "epochs": 2}
    given["adapter"] = {"r": 2, "lora_dropout": 0.2}
    whole = finetune(adapter(tmp_path / "whole", **given), base=place)
    steps, step = [], Trainer._step

    def stop_once(self, reporter):
        step(self, reporter)
        steps.append(self.loop.step)
        if self.loop.step == 7 and steps.count(7) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", stop_once)
    with pytest.raises(Stopped):
        finetune(adapter(tmp_path / "broken", **given), base=place)
    again = finetune(adapter(tmp_path / "broken", **given), base=place)
    assert (again.steps, again.best_step, again.dev) == (whole.steps, whole.best_step, whole.dev)
    for name in ("adapter_model.safetensors", "adapter_config.json", "unmask_adapter.json"):
        assert (whole.adapter / name).read_bytes() == (again.adapter / name).read_bytes(), name


def test_the_best_adapter_is_the_one_that_is_written(place, tmp_path, monkeypatch):  # noqa: F811
    values = iter([0.5, 0.9, 0.6, 0.7, 0.9])
    monkeypatch.setattr(
        "unmask.training.finetune.evaluate.Predicted.figures", lambda _: {"accuracy": next(values)}
    )
    given = {"evaluation": {"every": 3, "metric": "accuracy", "patience": 2}}
    result = finetune(adapter(tmp_path / "best", **given), base=place)
    assert (result.steps, result.best_step) == (12, 6)
    small, whole = unmask.load(place / "tiny", adapter=result.adapter), unmask.load(result.folder)
    for one, other in zip(small.classify(TEXTS), whole.classify(TEXTS), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-6)


def test_an_adapter_that_its_dtype_cannot_hold_is_refused_when_it_is_written(place, tmp_path, monkeypatch):  # noqa: F811
    write = FinetuneRun._write_adapter

    def write_large(run, *some):
        with torch.no_grad():
            run.objective.encoder.heads["sequence"].out.weight[0, 0] = 70_000
        write(run, *some)

    monkeypatch.setattr(FinetuneRun, "_write_adapter", write_large)
    given = {"epochs": 1, "evaluation": {}}
    narrow = adapter(tmp_path / "run", adapter={"dtype": "float16"}, **given)
    with pytest.raises(OutputError, match=r"classifier\.weight holds 70,000.* 65,504.*adapter\.dtype"):
        finetune(narrow, base=place)
    assert not (tmp_path / "run" / "adapter").exists()
    wide = finetune(adapter(tmp_path / "run", adapter={"dtype": "bfloat16"}, **given), base=place)
    unmask.load(place / "tiny", adapter=wide.adapter).classify("river bank")


def test_an_adapter_stays_until_the_next_is_complete(place, tmp_path, monkeypatch):  # noqa: F811
    given = adapter(tmp_path / "run", epochs=1)
    before = _contents(finetune(given, base=place).adapter)

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("unmask.weights.write.adapter_export.save_file", fails)
        with pytest.raises(OutputError, match="No space left"):
            finetune(given, base=place)
    assert _contents(tmp_path / "run" / "adapter") == before
    (tmp_path / "run" / "adapter" / "stray").write_text("of a user")
    assert _contents(finetune(given, base=place).adapter) == before
    assert [one.name for one in (tmp_path / "run").iterdir() if "adapter" in one.name] == ["adapter"]


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"adapter": {"r": 0}}, "r is 0"),
        ({"adapter": {"lora_alpha": 0.0}}, "lora_alpha is 0"),
        ({"adapter": {"lora_dropout": 1.0}}, "lora_dropout is 1"),
        ({"adapter": {"kind": "dora"}}, "kind"),
        ({"frozen": True}, "frozen and .adapter. exclude each other"),
    ],
)
def test_wrong_settings_are_named(place, tmp_path, changes, says):  # noqa: F811
    with pytest.raises(InvalidRequest, match=says):
        finetune(adapter(tmp_path / "run", **changes), base=place)
