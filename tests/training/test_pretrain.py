"""A run from its file to a model: it learns, and its figures are told."""

import ctypes
import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from tests.training.runs import (
    EVERYTHING,
    Heard,
    ended,
    last_tensors,
    lines,
    same_tensors,
    write_run,
    write_texts,
)
from unmask.errors import InvalidRequest
from unmask.training.objectives.language_modeling import MaskedLanguageModel
from unmask.training.pretrain import pretrain, read_run
from unmask.training.run.checkpoint import steps_of
from unmask.training.run.flops import peak_flops
from unmask.training.run.loop import Loop, MetricAccumulator

pytestmark = pytest.mark.long

RUN_MODULE = importlib.import_module("unmask.training.run.run")


# --- it learns -----------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_model_that_loads(place):
    heard = Heard()
    path = write_run(place, steps=40, **EVERYTHING, log={"every": 4}, checkpoints={"every": 30})
    result = pretrain(path, callback=heard)
    out = place / "run"
    losses = [line["masked/loss"] for line in lines(out, kinds=("step",))]
    assert len(losses) == 10
    assert losses[0] > 3.5  # ln 60 is 4.1
    assert losses[-1] < losses[0] - 0.5  # words are drawn at random: ln 19 is 2.9
    assert result.folder == out / "model"
    assert result.steps == 40
    assert result.tokens == lines(out)[-1]["tokens"]
    assert result.fill_ratio > 0.95
    assert result.held_out == {
        name: value for name, value in lines(out, kinds=("held_out",))[-1].items() if "/" in name
    }
    assert result.held_out["masked/loss"] < losses[0] - 0.5
    # What is shipped is the average, rounded as the weights are.
    state = unmask.load(result.folder, dtype="bfloat16").trainable_encoder().state_dict()
    averages = last_tensors(out)
    for name, tensor in state.items():
        assert torch.equal(tensor, averages[f"averages.encoder.{name}"].to(torch.bfloat16)), name
    assert [place for _, place in steps_of(out / "checkpoints")][-1].name == "step-00000040"
    record = json.loads((result.folder / "training.json").read_text())
    assert (record["run"], record["steps"], record["tokens"]) == ("tiny", 40, result.tokens)
    assert heard.sentences[0].startswith("tiny: 12,")
    assert "40 steps of 256 to 512 tokens" in heard.sentences[0]
    assert heard.figures[-1]["step"] == 40
    assert heard.figures[-1]["seconds_left"] == 0
    assert heard.figures[-1]["memory_bytes"] > 1e6
    assert 0 < heard.figures[-1]["peak_share"] < 1


def test_expected_epochs_are_those_that_come(place, monkeypatch):
    heard, given = Heard(), [0, 0]
    prepare = MaskedLanguageModel.prepare

    def counting(self, chunks, draw, progress):
        for chunk in chunks:
            given[chunk.document >= 300] += len(chunk.ids)  # the first source has so many documents
        return prepare(self, chunks, draw, progress)

    monkeypatch.setattr(MaskedLanguageModel, "prepare", counting)
    path = write_run(place, steps=40, data={"held_out": []}, checkpoints={"every": 80})
    result = pretrain(path, callback=heard)
    for sentence, name, tokens, share in zip(
        heard.sentences[1:3], ("first", "second"), given, (67, 33), strict=True
    ):
        (manifest,) = (place / "data").glob(f"{name}-*/manifest.json")
        counts = json.loads(manifest.read_text())["counts"]
        lengths = np.load(manifest.parent / "lengths.npy")
        of_it = counts["tokens"]
        assert sentence.startswith(
            f"source {name}: {counts['documents']} documents in {len(lengths)} chunks of "
            f"{np.median(lengths):.0f} tokens (median) to {lengths.max()}, "
        )
        told = re.search(r"([\d,]+) in all; (\d+)% of the batch, ([\d.]+) epochs", sentence)
        assert told is not None
        assert int(told[1].replace(",", "")) == of_it
        assert int(told[2]) == share
        assert float(told[3]) == pytest.approx(tokens / of_it, rel=0.05)
    room = sum(read_run(path).batch.micro_batches(step, 40) for step in range(40)) * 256
    assert f"{room:,} in all" in heard.sentences[0]
    assert result.fill_ratio == pytest.approx(result.tokens / room)


def test_evaluation_leaves_no_trace(place, monkeypatch):
    """Torch's generator and every module's mode are as before, and a run without it is the same run."""
    with_it = last_tensors(place / "everything")
    pretrain(write_run(place, **EVERYTHING, evaluation={"every": 0}, out="other", data={"held_out": []}))
    same_tensors(with_it, last_tensors(place / "other"))

    seen = []
    evaluate = Loop.evaluate

    def checked(self, micro_batches):
        self.objective.encoder.embedding.eval()
        torch.manual_seed(5)
        before = torch.get_rng_state(), [part.training for part in self.objective.modules()]
        figures = evaluate(self, micro_batches)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert [part.training for part in self.objective.modules()] == before[1]
        assert evaluate(self, micro_batches) == figures
        seen.append(figures)
        return figures

    monkeypatch.setattr(Loop, "evaluate", checked)
    pretrain(write_run(place, **EVERYTHING))
    assert len(seen) == 3


# --- what is told --------------------------------------------------------------------------------------


def test_memory_that_evaluations_freed_is_given_back(place, monkeypatch):
    calls = []
    monkeypatch.setattr("unmask.training.run.trainer.return_freed_memory", lambda: calls.append(None))
    pretrain(write_run(place, steps=4, evaluation={"every": 2}), callback=Heard())
    evaluations = len(lines(place / "run", kinds=("held_out",)))
    assert len(calls) == evaluations >= 2


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library gives nothing back")
def test_freed_memory_is_given_back():
    script = (
        "import ctypes; from unmask.base.system import return_freed_memory as back;"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p;"
        "libc.free.argtypes = [ctypes.c_void_p];"
        "resident = lambda: int(open('/proc/self/statm').read().split()[1]);"
        "blocks = [libc.malloc(50_000) for _ in range(2_000)];"
        "[ctypes.memset(block, 1, 50_000) for block in blocks];"
        "[libc.free(block) for block in blocks[:-1]];"
        "full = resident(); back(); print(full - resident())"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(ran.stdout) > 10_000, "pages of 4 KiB, of about 24,000"


def test_the_command_tells_its_result(place, monkeypatch):
    path = write_run(place, steps=3)
    monkeypatch.setattr("unmask.training.run.flops.peak_flops", peak_flops)
    ran = run_here("pretrain", path, "--json")
    told = json.loads(ran.out)
    assert told["folder"] == str(place / "run/model")
    assert (told["name"], told["steps"]) == ("tiny", 3)
    assert told["held_out"].keys() == {"masked/loss", "masked/accuracy"}
    assert "step 3 of 3: masked/loss" in ran.err
    assert "% of peak" in ran.err
    human = run_here("pretrain", path).out
    assert human.startswith(f"{place}/run/model: 3 steps, {told['tokens']:,} tokens, micro-batches 9")
    assert f"held out masked/loss: {told['held_out']['masked/loss']:.4f}" in human


def test_tensorboard_hears_the_same_figures(place, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = write_run(place, log={"tensorboard": True})
    ended(path, monkeypatch, 7)
    pretrain(path)
    board = EventAccumulator(str(place / "run/tensorboard"))
    board.Reload()
    for kind, before in (("step", ""), ("held_out", "held_out/")):
        wanted = [(one["step"], one["masked/loss"]) for one in lines(place / "run", kinds=(kind,))]
        found = [(one.step, one.value) for one in board.Scalars(f"{before}masked/loss")]
        assert [step for step, _ in found] == [step for step, _ in wanted]
        np.testing.assert_allclose([v for _, v in found], [v for _, v in wanted], rtol=1e-6)


def test_tensorboard_that_is_not_installed(place, monkeypatch):
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda name: None)
    ran = run_here("pretrain", write_run(place, log={"tensorboard": True}))
    assert ran.code == 1
    assert "pip install 'unmask[tensorboard]'" in ran.err.splitlines()[-1]


def test_a_tally_that_counted_nothing_for_a_term_leaves_it_out():
    metrics = MetricAccumulator()
    metrics.add({"masked/loss": 3.0, "other/loss": 0.0}, {"masked": 2.0, "other": 0.0, "tokens": 5.0})
    assert metrics.means() == {"masked/loss": 1.5}


def test_tokenizing_is_told_and_a_finished_cache_is_not_made_again(tmp_path):
    write_texts(tmp_path)
    heard = Heard()
    pretrain(write_run(tmp_path, steps=1, evaluation={"every": 0}), callback=heard)
    assert [name for name, *_ in heard.tokenized] == ["first", "second", "held"]
    assert all(documents > 30 and tokens > 300 for _, documents, tokens in heard.tokenized)
    heard.tokenized.clear()
    pretrain(write_run(tmp_path, steps=2, out="other", evaluation={"every": 0}), callback=heard)
    assert not heard.tokenized


def test_records_without_text_are_counted_before_the_run(place):
    (place / "some.jsonl").write_text('{"text": "the river bank"}\n{"text": null}\n' * 3)
    heard = Heard()
    some = {"name": "some", "files": ["some.jsonl"], "skip_null": True}
    pretrain(write_run(place, steps=1, data={"sources": [some], "held_out": []}), callback=heard)
    assert any("source some: 3 documents" in one and "; 3 records without" in one for one in heard.sentences)


def test_a_changed_text_is_refused_by_the_name_of_its_file(tmp_path):
    write_texts(tmp_path)
    pretrain(write_run(tmp_path, steps=1, evaluation={"every": 0}))
    (tmp_path / "second.txt").write_text("The river bank was muddy.\n\n" * 90)
    says = "the text of second.txt of source second has changed"
    with pytest.raises(InvalidRequest, match=says):
        pretrain(write_run(tmp_path, steps=2, evaluation={"every": 0}))
