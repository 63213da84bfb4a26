"""The training loop over items that are no text of a run file, and `train` from Python."""

import pkgutil
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

import unmask
from tests.support.specs import SPECS, random_encoder
from tests.training.runs import (
    RUN,
    Ended,
    Heard,
    changed,
    ended,
    last_tensors,
    lines,
    same_run,
    same_tensors,
    write_run,
)
from tests.training.toy import vocabulary
from unmask.encoder.layers.parts import balance_loss
from unmask.errors import InvalidRequest
from unmask.spec import ExpertFeedForward
from unmask.text.batch import PackedBatch
from unmask.training import train
from unmask.training.objectives.interface import Example, LossOutput, Objective
from unmask.training.optim import OptimizerSpec, build_optimizer
from unmask.training.pretrain import read_run
from unmask.training.run.callbacks import Callback, ProgressPrinter
from unmask.training.run.checkpoint import newest_for_all, steps_of
from unmask.training.run.loop import Loop, MetricAccumulator
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import (
    BatchSettings,
    CheckpointSettings,
    EvaluationSettings,
    FaultSettings,
    LogSettings,
    LoopSettings,
)
from unmask.training.run.trainer import Trainer

# --- any item ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LabeledExample(Example):
    labels_S: np.ndarray


class Labels(Objective):
    """Which of two classes a text is of, from the state of its first token; an item is (ids, label)."""

    def __init__(self):
        super().__init__()
        self.encoder = random_encoder(SPECS["post-norm"], seed=1)
        self.head = torch.nn.Linear(self.encoder.spec.width, 2)

    def prepare(self, items, draw, progress):
        batch = PackedBatch.of_ids([ids for ids, _ in items])
        labels = np.array([label for _, label in items])
        return LabeledExample({"labels": len(items)}, len(batch.ids_T), len(items), batch, labels)

    def forward(self, example, totals):
        x_TD = self.encoder.encode(example.batch)[torch.from_numpy(example.batch.layout.offsets[:-1])]
        loss = functional.cross_entropy(self.head(x_TD), torch.from_numpy(example.labels_S), reduction="sum")
        return LossOutput(loss / totals["labels"], {"labels/loss": loss.detach()})

    def encoders(self):
        return {"": self.encoder}


class Shuffled:
    """Texts with labels, in an order that one number says."""

    fill_ratio, tokens, epochs = 1.0, 0, {}

    def __init__(self):
        self.at = 0

    def next(self, count, *, rank=0, world=1):
        numbers = range(self.at, self.at + count)
        self.at += count
        return [self.micro_batch(number) for number in numbers[rank::world]]

    @staticmethod
    def micro_batch(number):
        draw = np.random.default_rng(number)
        return [(draw.integers(5, 20, 4 + label), label) for label in (0, 1, 1)]

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


class Drawing(Labels):
    """Remembers what each micro-batch drew, as dropout does."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def forward(self, example, totals):
        self.drawn.append(torch.rand(()).item())
        return super().forward(example, totals)


def test_dropout_is_drawn_by_the_seed_of_the_run_and_the_micro_batch():
    drawn = {}
    for seed, batch in ((1, BatchSettings(20, 10)), (1, BatchSettings(10, 10)), (2, BatchSettings(20, 10))):
        settings = LoopSettings(steps=2, batch=batch, optimizer=OptimizerSpec(), seed=seed)
        objective = Drawing().train()
        loop = Loop(
            settings, objective, Shuffled(), optimizer=build_optimizer(objective, settings.optimizer),
            averages=None, ranks=Ranks(),
        )  # fmt: skip
        for _ in range(2):
            loop.one_step(MetricAccumulator())
        drawn[seed, batch.micro_batches(0, 2)] = objective.drawn
    assert drawn[1, 2][:2] == drawn[1, 1]
    assert len({*drawn[1, 2], *drawn[2, 2]}) == 8


class Routed(Labels):
    """The same with a mixture of experts in every layer."""

    def __init__(self, balance):
        super().__init__()
        spec = SPECS["post-norm"]
        network = ExpertFeedForward(20, "gelu", experts=3, chosen=2, balance=balance)
        layers = tuple(replace(layer, feedforward=network) for layer in spec.layers)
        self.encoder = random_encoder(replace(spec, layers=layers), seed=1)
        torch.manual_seed(2)
        self.head = torch.nn.Linear(spec.width, 2)


def test_experts_are_balanced_in_proportion_to_the_tokens_of_each_micro_batch(monkeypatch):
    """The gradient of a step with the loss of balance, minus that without, is that of the balance alone."""
    found = {}
    for balance in (0.0, 0.5):
        settings = LoopSettings(steps=1, batch=BatchSettings(20, 10), optimizer=OptimizerSpec(clip=0))
        objective = Routed(balance).train()
        optimizer = build_optimizer(objective, settings.optimizer)
        monkeypatch.setattr(optimizer, "step", lambda: None)
        monkeypatch.setattr(optimizer, "zero_grad", lambda *_, **__: None)
        loop = Loop(settings, objective, Shuffled(), optimizer=optimizer, averages=None, ranks=Ranks())
        loop.one_step(MetricAccumulator())
        found[balance] = {name: part.grad for name, part in objective.named_parameters()}
    objective = Routed(0.5).train()
    examples = [objective.prepare(Shuffled.micro_batch(number), None, 0.0) for number in (0, 1)]
    tokens = sum(example.tokens for example in examples)
    for example in examples:
        objective.encoder.encode(example.batch)
        (example.tokens / tokens * balance_loss(objective)).backward()
    routers = [name for name in found[0.5] if "router" in name]
    assert routers
    for name in routers:
        expected = dict(objective.named_parameters())[name].grad
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(found[0.5][name] - found[0.0][name], expected, rtol=1e-3, atol=1e-6)


def trainer(out, write=lambda folder: None):
    settings = LoopSettings(steps=6, batch=BatchSettings(20, 10), optimizer=OptimizerSpec(learning_rate=1e-2))
    torch.manual_seed(0)
    objective = Labels().train()
    loop = Loop(
        settings,
        objective,
        Shuffled(),
        optimizer=build_optimizer(objective, settings.optimizer),
        averages=None,
        ranks=Ranks(),
    )
    made = Trainer(
        loop,
        lambda: loop.evaluate([Shuffled.micro_batch(99)]),
        settings=settings,
        evaluation=EvaluationSettings(every=3),
        checkpoints=CheckpointSettings(every=2, minutes=0),
        log=LogSettings(every=1),
        out=out,
        write=write,
        callback=Callback(),
    )
    found = newest_for_all(out / "checkpoints", Ranks(), lambda _: None)
    if found is not None:
        made.restore(found)
    return made


def test_labeled_items_are_trained_on_and_resumed_bit_by_bit(tmp_path, monkeypatch):
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    figures = trainer(tmp_path / "whole").train()
    assert figures.keys() == {"labels/loss"}
    assert 0 < lines(tmp_path / "whole")[-1]["labels/loss"] < 1.5
    one_step = Loop.one_step

    def ending(self, metrics):
        if self.step == 5:
            raise Ended
        return one_step(self, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "one_step", ending)
        with pytest.raises(Ended):
            trainer(tmp_path / "broken").train()
    trainer(tmp_path / "broken").train()
    same_run(tmp_path / "whole", tmp_path / "broken")


@dataclass(frozen=True)
class Unlucky(Ranks):
    """Another process has a loss that is not finite, at one step."""

    def sums(self, values):
        return {name: float("nan") if "loss" in name else value for name, value in values.items()}


def test_a_step_that_is_not_finite_in_another_process_is_skipped_here_too(tmp_path):
    loop = trainer(tmp_path).loop
    loop.settings = replace(loop.settings, faults=FaultSettings(skip_non_finite=1))
    before = {name: one.clone() for name, one in loop.objective.state_dict().items()}
    loop.ranks = Unlucky()
    assert np.isnan(loop.one_step(MetricAccumulator()))
    assert (loop.step, loop.skipped, loop.micro_batches) == (1, 1, 2)
    same_tensors(loop.objective.state_dict(), before)
    assert all(one.grad is None for one in loop.objective.parameters())
    assert loop.loss is None  # the running average, by which a run has diverged, stays finite
    loop.ranks = Ranks()
    assert loop.one_step(MetricAccumulator()) > 0
    assert any(not torch.equal(one, before[name]) for name, one in loop.objective.state_dict().items())


def test_random_numbers_depend_on_the_micro_batch_and_not_on_evaluations(tmp_path):
    loop = trainer(tmp_path).loop
    prepare, seen = loop.objective.prepare, []

    def noting(items, draw, progress):
        seen.append((draw.random(), progress))
        return prepare(items, draw, progress)

    loop.objective.prepare = noting
    held_out = [Shuffled.micro_batch(number) for number in (98, 99)]
    loop.evaluate(held_out)
    for _ in range(2):
        loop.one_step(MetricAccumulator())
    loop.evaluate(held_out)
    draws, progress = zip(*seen, strict=True)
    assert progress == (1.0, 1.0, 0.0, 0.0, 1 / 6, 1 / 6, 1.0, 1.0)
    assert draws[:2] == draws[-2:]
    assert len(set(draws)) == 6


@pytest.mark.parametrize(("minutes", "kept"), [(1, [3, 6]), (0, [6])])
def test_a_checkpoint_is_due_after_some_minutes_since_the_last(minutes, kept, tmp_path, monkeypatch):
    clock = SimpleNamespace(monotonic=count(0, 25).__next__, perf_counter=time.perf_counter)
    monkeypatch.setattr("unmask.training.run.trainer.time", clock)
    made = trainer(tmp_path)
    made.checkpointing = CheckpointSettings(every=100, minutes=minutes, keep=9)
    made.train()
    assert [step for step, _ in steps_of(tmp_path / "checkpoints")] == kept


def test_the_log_is_on_disk_before_a_checkpoint_after_which_it_would_be_resumed(tmp_path, monkeypatch):
    seen = []
    for place in ("trainer.save_snapshot", "log.EventLog.sync"):
        whole = f"unmask.training.run.{place}"
        call = pkgutil.resolve_name(whole)
        monkeypatch.setattr(
            whole, lambda *a, call=call, place=place, **o: (seen.append(place), call(*a, **o))[1]
        )
    trainer(tmp_path).train()
    assert seen == ["log.EventLog.sync", "trainer.save_snapshot"] * 3


# --- from Python ---------------------------------------------------------------------------------------


def test_a_file_a_table_and_settings_are_the_same_run(place):
    few = {"steps": 3}
    path = write_run(place, **few)
    by_path = train(str(path))
    by_table = train(changed(RUN, **few, out="by-table"), base=place)
    by_settings = train(replace(read_run(path), out="by-settings"), base=str(place))
    for result, out in ((by_path, "run"), (by_table, "by-table"), (by_settings, "by-settings")):
        assert result.folder == place / out / "model"
        same_run(place / out, place / "run")


def test_paths_of_a_table_begin_at_the_current_folder(place, monkeypatch):
    monkeypatch.chdir(place)
    assert train(changed(RUN, steps=1)).folder == Path("run/model")


def test_a_table_is_checked_as_a_file_is(place):
    with pytest.raises(InvalidRequest, match=r"it has no key 'stpes'; did you mean steps"):
        train(changed(RUN, stpes=3), base=place)


# --- before the first step -----------------------------------------------------------------------------


def test_held_out_figures_come_before_the_first_step_unless_told(place):
    heard = Heard()
    train(write_run(place, steps=2), callback=heard)
    first = lines(place / "run", kinds=("held_out",))[0]
    assert (first["step"], first["tokens"]) == (0, 0)
    assert first["masked/loss"] == pytest.approx(np.log(64), abs=0.2)
    assert any(sentence.startswith("step 0, held out: masked/loss") for sentence in heard.sentences)
    train(write_run(place, steps=2, evaluation={"at_start": False}, out="other"))
    assert [one["step"] for one in lines(place / "other", kinds=("held_out",))] == [2]
    same_tensors(last_tensors(place / "run"), last_tensors(place / "other"))


def test_averages_are_evaluated_unless_the_run_says_otherwise(place):
    def figures(out, **changes):
        return train(write_run(place, steps=2, out=out, **changes)).held_out

    averaging = {"decay": 0.5, "warm_up": False}
    plain = figures("none")
    assert figures("raw", averaging=averaging, evaluation={"averaged": False}) == plain
    assert figures("means", averaging=averaging) != plain


def test_a_run_started_twice_without_a_checkpoint_logs_its_start_once(place, monkeypatch):
    path = write_run(place)
    for _ in range(2):
        ended(path, monkeypatch, 0)
    assert [one["step"] for one in lines(place / "run")] == [0]


# --- memory for time -----------------------------------------------------------------------------------


def kept_bytes(objective, example):
    """Bytes of all tensors that the backward pass needs, and the gradients."""
    sizes = {}

    def pack(tensor):
        sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective(example, example.counts).loss
    loss.backward()
    found = {name: one.grad.clone() for name, one in objective.named_parameters() if one.grad is not None}
    objective.zero_grad(set_to_none=True)
    return sum(sizes.values()), found


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "alibi-shared", "disentangled", "gated"])
def test_layers_that_are_computed_again_have_the_same_gradients_for_less_memory(name):
    from tests.training.toy import chunks, with_heads
    from unmask.training.objectives.language_modeling import MaskedLanguageModel
    from unmask.training.objectives.masking import MaskingSpec
    from unmask.training.pretrain.run import recompute_layers

    encoder = random_encoder(with_heads(SPECS[name]), seed=0)
    objective = MaskedLanguageModel(encoder, vocabulary(), MaskingSpec()).train()
    for module in objective.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    example = objective.prepare(chunks([12, 9, 14], range(3)), np.random.default_rng(0), 0.0)
    whole, wanted = kept_bytes(objective, example)
    names = list(objective.state_dict())
    recompute_layers(objective)
    less, found = kept_bytes(objective, example)
    assert list(objective.state_dict()) == names
    same_tensors(wanted, found)
    assert less < 0.6 * whole


def test_layers_that_are_computed_again_still_tell_a_hook_their_states():
    from unmask.training.pretrain.run import recompute_layers

    encoder = random_encoder(SPECS["post-norm"], seed=0).train()
    batch = PackedBatch.of_ids([[5, 9, 20, 6], [8, 4]])
    places = []
    for _ in range(2):
        heard = []
        encoder.encode(batch, hook=lambda place, layer, tensor, heard=heard: heard.append((place, layer)))
        places.append(heard)
        recompute_layers(encoder)
    assert places[0] == places[1]
    assert {layer for _, layer in places[0]} >= set(range(len(encoder.spec.layers)))


@pytest.mark.parametrize("where", ["run", "config"])
def test_a_run_that_computes_layers_again_is_the_same_run(where, place, monkeypatch):
    seen = []
    monkeypatch.setattr("unmask.training.pretrain.run.recompute_layers", seen.append)
    path = write_run(place, steps=1, out="counted", **recomputing(where))
    train(path)
    assert len(seen) == 1
    monkeypatch.undo()
    result = train(write_run(place, **recomputing(where)))
    same_run(place / "run", place / "plain")
    assert "gradient_checkpointing" not in (result.folder / "config.json").read_text()
    assert unmask.load(result.folder).max_tokens == 64


def recomputing(where):
    on = {"gradient_checkpointing": True}
    return on if where == "run" else {"model": {"config": on}}


def test_a_line_of_progress_says_what_is_left(capsys):
    figures = {"tokens_per_second": 1234.0, "peak_share": 0.25, "memory_bytes": 3 * 2**30, "labels/loss": 0.5}
    for seconds, left in ((2 * 3600 + 3 * 60 + 4, "2 h 03 min"), (9 * 60 + 8, "9 min 08 s")):
        ProgressPrinter().step({"step": 1, "steps": 2000, "seconds_left": seconds, **figures})
        assert capsys.readouterr().err == (
            f"step 1 of 2,000: labels/loss 0.500, 1,234 tokens/s, 25% of peak, 3.0 GiB, {left} left\n"
        )
