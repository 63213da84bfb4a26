"""``unmask bench``: fair timing, honest counts, every protocol from the command line to its picture."""

import itertools
import json
import math
import mmap

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.support.command import assert_one_sentence, run_here
from unmask.bench.benchmark_model import (
    benchmark_model,
    causal_model,
    find_architecture,
    invented_words,
    spearman,
)
from unmask.bench.memory import peak_extra_bytes
from unmask.bench.speed.accuracy import agreement
from unmask.bench.speed.kernels import _pairs, batches_of
from unmask.bench.speed.roofline import attention_cost
from unmask.bench.timing import Spread, interleaved, percentile, ratio
from unmask.errors import InvalidRequest
from unmask.kernels import Tile, allowed
from unmask.models.load import load
from unmask.spec import CausalAttention, FullAttention, SlidingWindow, SoftmaxAttention
from unmask.text import PackedBatch
from unmask.training.run.log import CurvePoint, TrainingCurve

pytestmark = pytest.mark.long

SHAPE = ("--architecture", "ettin-encoder-17m", "--layers", "1", "--threads", "1")


def ran(*arguments):
    """The report of a command as JSON; nothing went wrong."""
    done = run_here("bench", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class Clock:
    """Time that passes only while something works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_works_take_turns_and_warm_up_is_not_timed():
    clock, calls, costs = Clock(), [], itertools.count(1)

    def work(name):
        calls.append(name)
        clock.now += next(costs)

    times = interleaved({n: lambda n=n: work(n) for n in "abc"}, 2, warm_up=1, clock=clock)
    assert calls == list("abcabcabc")
    assert times == {"a": (4, 7), "b": (5, 8), "c": (6, 9)}


def test_a_budget_ends_after_whole_rounds():
    clock = Clock()
    works = {name: lambda: setattr(clock, "now", clock.now + 2) for name in "ab"}
    times = interleaved(works, 9, warm_up=0, clock=clock, budget_seconds=5)
    assert times == {"a": (2, 2), "b": (2, 2)}
    assert {n: len(t) for n, t in interleaved(works, 9, clock=clock, budget_seconds=0).items()} == {
        "a": 1,
        "b": 1,
    }
    with pytest.raises(InvalidRequest, match="at least 1"):
        interleaved(works, 0)


def test_ratios_are_taken_round_by_round():
    times = {"slow": (2.0, 40.0, 9.0), "fast": (1.0, 10.0, 3.0)}
    assert ratio(times, "slow", "fast") == Spread(3, 2, 4)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (0.985, 99), (1, 100), (0.001, 1)])
def test_percentile(share, expected):
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_agreement_of_what_is_turned_and_moved():
    reference = np.eye(2, dtype=np.float32)
    found = np.array([[1, 1], [0, 3]], dtype=np.float32)
    one = agreement(found, reference)
    assert one.cosine_min == pytest.approx(math.sqrt(0.5))
    assert one.cosine_mean == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert one.largest_difference == 2


def test_spearman_with_ties_is_scipys():
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 9, 60).astype(float), rng.normal(size=60)
    assert spearman(left, right) == pytest.approx(spearmanr(left, right).statistic, abs=1e-12)


def test_peak_memory_is_what_is_held_at_once():
    # Maps of the system, not tensors: an allocator may keep what was freed, and that is held too.
    def work():
        for _ in range(3):
            with mmap.mmap(-1, 16 << 20) as held:
                for at in range(0, len(held), mmap.PAGESIZE):
                    held[at] = 1

    found = peak_extra_bytes(work, torch.device("cpu"))
    # The system counts pages in lots, so a little may be missing.
    assert found is None or 15 << 20 <= found < 24 << 20


def test_pairs_in_a_pattern_are_counted():
    for pattern in (FullAttention(), SlidingWindow(3)):
        (batch, *_) = batches_of(40, "float32", 2, 4, device=torch.device("cpu"), seed=0, marks=False)
        seen = allowed(Tile.whole(40), pattern, torch.device("cpu"))
        assert _pairs(batch, pattern) == 2 * (1600 if seen is None else int(seen.sum()))


def test_operations_and_bytes_of_attention_are_those_counted_by_hand():
    full = SoftmaxAttention(heads=2, head_width=8)
    cost = attention_cost([full], 16, 4)
    # Two products of 2 heads, each 16 x 16 pairs by 8 columns, a multiplication and an addition.
    assert cost.operations == 2 * 2 * 2 * 16 * 16 * 8
    # Queries, keys, values and results: 4 arrays of 16 x 16 numbers of 4 bytes.
    assert cost.tiled_bytes == 4 * 16 * 16 * 4
    # Scores are 2 x 16 x 16 numbers, written, read, written and read.
    assert cost.stored_bytes == cost.tiled_bytes + 4 * 2 * 16 * 16 * 4
    # Each of 16 queries sees up to 2 keys on each side: 5 * 16 less 2 + 1 at either end.
    window = SoftmaxAttention(heads=2, head_width=8, pattern=SlidingWindow(2))
    assert attention_cost([window], 16, 4).operations == 2 * 2 * 2 * (5 * 16 - 6) * 8
    # A key-value head that two heads share is read once.
    shared = SoftmaxAttention(heads=2, head_width=8, key_value_heads=1)
    assert attention_cost([shared, full], 16, 4).tiled_bytes == (3 + 4) * 16 * 16 * 4


def test_ragged_and_rectangular_hold_equal_tokens():
    made = batches_of(512, "float32", 1, 4, device=torch.device("cpu"), seed=0, marks=False)
    by_name = {batch.name: batch.layout for batch in made}
    assert {layout.token_count for layout in by_name.values()} == {512}
    assert len(set(by_name["rectangular"].lengths.tolist())) == 1
    assert len(set(by_name["ragged"].lengths.tolist())) == len(by_name["ragged"].lengths)


def test_invented_words_are_distinct_and_padding_stands_where_it_belongs():
    words = invented_words(20_000, 3)
    assert len(set(words)) == 20_000
    assert words[3] == "[PAD]"


def test_shapes_are_found_in_any_case():
    assert find_architecture("MODERNBERT-Base")[1].name == "answerdotai/ModernBERT-base"


def test_a_random_shape_is_the_same_every_time(tmp_path):
    contents = []
    for _ in range(2):
        with benchmark_model(None, "ettin-encoder-17m", layers=1, seed=3) as chosen:
            contents.append((chosen.folder / "model.safetensors").read_bytes())
            assert chosen.record.random_weights
            assert chosen.record.layers == 1
        assert not chosen.folder.exists()
    assert contents[0] == contents[1]


def check_picture(path):
    """Not blank: bars of the color of ours, and text."""
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    blue = np.abs(pixels - np.array([0, 0x72, 0xB2]) / 255).max(-1) < 0.02
    assert blue.mean() > 0.005
    assert (pixels.max(-1) < 0.4).mean() > 0.002


def test_speed(tmp_path):
    picture = tmp_path / "speed.png"
    found = ran("speed", *SHAPE, "--size", "short", "--samples", "2", "--rounds", "2", "--picture", picture)
    assert [row["setting"] for row in found["rows"]] == ["fixed", "variable", "even"]
    fixed, variable, even = found["rows"]
    assert fixed["tokens"] == 1024
    assert variable["tokens"] == even["tokens"]
    for row in found["rows"]:
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"]["median"])
        assert row["seconds"]["lowest"] <= row["seconds"]["median"] <= row["seconds"]["highest"]
    assert variable["time_per_token_to_even"]["median"] > 0
    assert (found["measured"]["layers"], found["machine"]["threads"]) == (1, 1)
    check_picture(picture)


SMALL_BERT = ("--architecture", "all-minilm-l6-v2", "--layers", "1", "--threads", "1")


def test_speed_of_a_decoder_of_equal_size(tmp_path):
    picture = tmp_path / "speed.png"
    options = ("--size", "short", "--samples", "2", "--rounds", "2", "--causal", "--picture", picture)
    found = ran("speed", *SMALL_BERT, *options)
    kinds = [(row["attention"], row["setting"]) for row in found["rows"]]
    assert kinds == [(a, s) for a in ("bidirectional", "causal") for s in ("fixed", "variable", "even")]
    for both, causal in zip(found["rows"][:3], found["rows"][3:], strict=True):
        assert both["tokens"] == causal["tokens"]
        assert both["time_to_bidirectional"] is None
        times = causal["time_to_bidirectional"]
        assert 0 < times["lowest"] <= times["median"] <= times["highest"]
    assert found["causal"]["name"].startswith("causal form of ")
    for size in ("layers", "width", "heads", "max_tokens"):
        assert found["causal"][size] == found["measured"][size]
    # The pooler, which speed does not run.
    assert found["measured"]["parameter_count"] - found["causal"]["parameter_count"] in (0, 384 * 384 + 384)
    done = run_here("bench", "speed", *SMALL_BERT, *options)
    assert "causal" in done.out
    assert "time to bidirectional" in " ".join(done.out.split())


def test_the_causal_form_sees_no_later_token():
    with benchmark_model(None, "all-minilm-l6-v2", layers=2, seed=0) as both, causal_model(both, 0) as causal:
        encoder = load(causal.folder).encoder
        patterns = {layer.mixer.pattern for layer in load(causal.folder).spec.layers}
        with torch.inference_mode():
            first, other = (encoder.encode(PackedBatch.of_ids([[5, 6, 7, last]])) for last in (8, 9))
    assert patterns == {CausalAttention()}
    torch.testing.assert_close(first[:3], other[:3])
    assert (first[3] - other[3]).abs().max() > 1e-2


def log_of(folder, events):
    """A run's folder with these events in its log."""
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def step_event(step, tokens, speed, loss):
    figures = {"tokens": tokens, "tokens_per_second": speed, "masked/loss": loss}
    return {"event": "step", "step": step, **figures}


def held_out_event(step, tokens, loss, accuracy):
    return {
        "event": "held_out",
        "step": step,
        "tokens": tokens,
        "masked/loss": loss,
        "masked/accuracy": accuracy,
    }


@pytest.fixture
def logs(tmp_path):
    """Two runs: 1,000 tokens in 10 seconds and 1,000 in 5, and one that is four times as fast."""
    slow = [
        held_out_event(0, 0, 9.0, 0.0),
        step_event(10, 1000, 100.0, 6.0),
        held_out_event(15, 1500, 5.0, 0.2),
        step_event(20, 2000, 200.0, 4.0),
        held_out_event(20, 2000, 3.0, 0.4),
    ]
    fast = [
        held_out_event(0, 0, 9.0, 0.0),
        step_event(20, 2000, 400.0, 5.0),
        held_out_event(20, 2000, 6.0, 0.1),
    ]
    return log_of(tmp_path / "slow", slow), log_of(tmp_path / "fast", fast)


def test_times_at_which_runs_reach_a_value(logs, tmp_path):
    picture = tmp_path / "runs.png"
    found = ran("runs", *logs, "--metric", "masked/loss", "--reaches", "6,4.5", "--picture", picture)
    slow, fast = found
    assert [point["seconds"] for point in slow["points"]] == [0.0, 12.5, 15.0]
    assert slow["reached"]["6.0"] == {"step": 15, "seconds": 12.5, "tokens": 1500, "value": 5.0}
    assert slow["reached"]["4.5"]["seconds"] == 15.0
    assert fast["reached"]["6.0"]["seconds"] == 5.0
    assert fast["reached"]["4.5"] is None
    assert picture.stat().st_size > 5000
    rising = ran("runs", logs[0], "--metric", "masked/accuracy", "--reaches", "0.2")
    assert rising[0]["reached"]["0.2"]["step"] == 15
    trained = ran("runs", logs[0], "--metric", "masked/loss", "--of", "step", "--reaches", "6")
    assert trained[0]["reached"]["6.0"] == {"step": 10, "seconds": 10.0, "tokens": 1000, "value": 6.0}
    shown = run_here("bench", "runs", *logs, "--metric", "masked/loss", "--reaches", "4.5")
    assert shown.code == 0, shown.err
    assert "not reached" in shown.out


@pytest.mark.parametrize(("metric", "best"), [("mean_squared_error", 0.4), ("loss", 0.4), ("pearson", 0.9)])
def test_the_best_figure_of_a_run_is_the_lowest_where_lower_is_better(metric, best):
    points = tuple(CurvePoint(step, float(step), step, value) for step, value in ((1, 0.9), (2, 0.4)))
    curve = TrainingCurve("run", f"dev/{metric}", points)
    assert curve.best.value == best
    assert curve.reached(best) is curve.best
    assert curve.reached(2.0 if best == 0.9 else 0.1) is None


def test_runs_without_the_figure_are_one_sentence(logs, tmp_path):
    asked = ("bench", "runs", logs[0], "--metric")
    assert_one_sentence(
        run_here(*asked, "dev/f1"), "no figure 'dev/f1' of held_out", "masked/accuracy, masked/loss"
    )
    assert_one_sentence(run_here("bench", "runs", tmp_path, "--metric", "x"), "has no log.jsonl")


def test_kernels(tmp_path):
    picture, output = tmp_path / "kernels.png", tmp_path / "kernels.json"
    options = (
        "--lengths",
        "64",
        "--heads",
        "2",
        "--head-width",
        "8",
        "--pattern",
        "sliding-window",
        "--radius",
        "4",
    )
    found = ran("kernels", *options, "--rounds", "1", "--threads", "1", "--picture", picture, "-o", output)
    assert json.loads(output.read_text()) == found
    by_kernel = {(row["kernel"], row["batch"]): row for row in found["rows"]}
    assert ("tiled", "ragged") in by_kernel
    for row in found["rows"]:
        assert row["largest_error"] <= 1e-5
        assert (row["times_as_fast_as_masked"] is None) == (row["batch"] != "one")
        assert (row["time_per_token_to_rectangular"] is None) == (row["batch"] != "ragged")
    assert found["peaks"][0]["gflop_per_second"] > 0
    assert "has no SlidingWindow attention" in {
        left["reason"] for left in found["left_out"] if left["name"] == "sdpa"
    }
    check_picture(picture)


def test_accuracy(tiny_folder, tmp_path):
    picture, texts = tmp_path / "accuracy.png", tmp_path / "texts.txt"
    texts.write_text("the river bank\nanother text was muddy\n")
    found = ran("accuracy", "-m", tiny_folder, "--dtype", "bfloat16", "--texts", texts, "--picture", picture)
    exact, narrow = found["rows"]
    assert (exact["dtype"], exact["agreement"]["largest_difference"]) == ("float32", 0)
    assert 0.99 < narrow["agreement"]["cosine_min"] < 1
    assert found["texts"] == 2
    check_picture(picture)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ("speed", "--architecture", "gpt-7"),
            ("no architecture 'gpt-7'", "modernbert-base", "bert-large-uncased"),
        ),
        (("speed", "--architecture", "modernbert-base", "--layers", "99"), ("--layers is 99", "1 to 22")),
        (("speed", "--architecture", "modernbert-base", "--model", "x"), ("not both",)),
        (("speed", *SHAPE[:2], "--layers", "2", "--causal"), ("has no causal form", "layer 1")),
        (("kernels", "--lengths", "12,many"), ("--lengths is '12,many'",)),
        (("kernels", "--picture", "x.gif"), (".png or .svg",)),
        (("kernels", "-o", "/no/such/folder/x.json"), ("/no/such/folder is not a folder",)),
        (("kernels", "--threads", "0"), ("--threads is 0",)),
    ],
)
def test_errors_are_one_sentence(arguments, parts, default_model):
    assert_one_sentence(run_here("bench", *arguments), *parts)


def test_a_picture_without_matplotlib_is_refused_before_the_work(monkeypatch):
    monkeypatch.setattr("unmask.base.optional._found", lambda module: False)
    done = run_here("bench", "kernels", "--picture", "x.png")
    assert_one_sentence(done, "pip install 'unmask[figures]'", "leave --picture out")
