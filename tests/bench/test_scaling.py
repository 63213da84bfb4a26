"""Length scaling: curves from synthetic timers, plans that keep to a budget, reports and pictures."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from tests.support.tiny import change_json
from unmask.bench.memory import parse_bytes
from unmask.bench.scaling.curves import curves_of, expected_seconds, probed
from unmask.bench.scaling.fit import LEAST_LENGTHS, Curve, at, fit, reach
from unmask.bench.scaling.picture import draw, svg
from unmask.bench.scaling.report import (
    ScalingPoint,
    compare,
    duration,
    findings,
    from_plain,
    read_report,
    size,
    write_report,
)
from unmask.bench.scaling.run import Journal, journal_of, run_scaling
from unmask.bench.scaling.settings import PROBE_SHARE, ScalingSettings, lengths_of, ways_of
from unmask.errors import InvalidRequest
from unmask.families import FAMILIES, find_architecture
from unmask.kernels import Tile, allowed
from unmask.spec import FullAttention, SlidingWindow
from unmask.spec.attention import LinearAttention

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
MIB = 2**20


def noisy(curve, share, seed, lengths=LENGTHS, repeats=5):
    """What a timer says of a curve: each call off by up to ``share``."""
    random = np.random.default_rng(seed)
    return [(n, curve(n) * (1 + share * random.uniform(-1, 1, repeats))) for n in lengths]


@pytest.mark.parametrize(
    "true", [Curve(0.01, 2e-4, 3e-8), Curve(0.0, 1e-4, 1e-7), Curve(0.3, 0.0, 2e-7), Curve(0.02, 1e-3, 0.0)]
)
def test_coefficients_are_recovered_exactly_from_exact_timers(true):
    found = fit(noisy(true, 0, 0)).shown
    for name in ("constant", "line", "square"):
        value, known = getattr(found, name), getattr(true, name)
        assert value.value == pytest.approx(known, rel=1e-6, abs=1e-12)
        assert value.low <= value.value <= value.high
    assert found.largest_residual < 1e-9


def test_a_pure_line_has_no_square_at_all():
    for line in (1e-3, 1e-4, 3e-5, 7e-6):  # rounding differs
        assert fit(noisy(Curve(0.02, line, 0.0), 0, 0)).shown.square.value == 0
    found = fit(noisy(Curve(0.02, 1e-3, 0.0), 0, 0)).shown
    assert found.square_over_line is None
    assert found.square_over_rest is None
    assert not found.square_is_seen


@pytest.mark.parametrize(("reach", "square"), [(SlidingWindow(16), False), (FullAttention(), True)])
def test_a_window_grows_linearly_and_full_attention_quadratically(reach, square):
    """The timer counts the keys that the definition of attention lets each query see, and a call's own cost.

    Without that cost the first and last tokens, whose windows are cut, would ask for a negative constant.
    """

    def keys(n):
        seen = allowed(Tile(0, n, 0, n), reach, torch.device("cpu"))
        return 500.0 + float(n * n if seen is None else seen.sum())

    found = fit([(n, (keys(n),)) for n in (64, 128, 256, 512, 1024)]).shown
    assert (found.square.value > 0) is square
    if square:
        assert found.square.value == pytest.approx(1)
        assert found.line.value == pytest.approx(0, abs=1e-6)
    else:
        assert found.line.value == pytest.approx(2 * 16 + 1)
        assert found.square_over_line is None


def test_a_noisy_line_shows_no_certain_square_and_a_noisy_square_does():
    lines = [fit(noisy(Curve(0.02, 1e-3, 0.0), 0.05, seed)).shown for seed in range(10)]
    assert sum(one.square_is_seen for one in lines) <= 2
    squares = [fit(noisy(Curve(0.02, 1e-3, 5e-7), 0.05, seed)).shown for seed in range(10)]
    assert all(one.square_is_seen for one in squares)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """One call at each of many lengths: neither fewer nor more of the 95 % intervals hold what is true."""
    true, held = Curve(0.01, 2e-4, 1e-7), []
    lengths = [64 * 2 ** (step / 3) for step in range(19)]
    for seed in range(200):
        found = fit(noisy(true, 0.06, seed, lengths, repeats=1), seed=seed)
        shown = found.shown
        pairs = [(shown.constant, true.constant), (shown.line, true.line), (shown.square, true.square)]
        pairs += [(at(found, tokens), true(tokens)) for tokens in (500, 8192)]
        held += [estimate.low <= value <= estimate.high for estimate, value in pairs]
        assert shown.square.value == pytest.approx(true.square, rel=0.25)
    assert 0.93 < np.mean(held) < 0.965


def test_the_fit_is_that_of_another_solver():
    random = np.random.default_rng(3)
    for _ in range(30):
        y_P = random.uniform(0.1, 1, 7) * random.choice([0.01, 1, 50], 7)
        n_P = np.array(LENGTHS, dtype=float)
        terms = np.stack([np.ones(7), n_P / 4096, (n_P / 4096) ** 2], 1) / y_P[:, None]
        solved, _ = nnls(terms, np.ones(7))
        curve = fit([(n, (y,)) for n, y in zip(LENGTHS, y_P, strict=True)]).shown.curve
        mine = np.array([curve.constant, curve.line * 4096, curve.square * 4096**2])
        np.testing.assert_allclose(mine, solved, rtol=1e-6, atol=1e-9)


def test_crossings_and_reaches_are_where_the_terms_are_equal():
    curve = Curve(0.5, 2e-3, 4e-6)
    n = curve.square_over_line
    assert curve.square * n**2 == pytest.approx(curve.line * n)
    n = curve.square_over_rest
    assert curve.square * n**2 == pytest.approx(curve.constant + curve.line * n)
    for each in (curve, Curve(0.5, 2e-3, 0.0), Curve(0.0, 0.0, 4e-6)):
        assert each(each.reaches(7.0)) == pytest.approx(7.0)
    assert curve.reaches(0.4) == 0
    assert math.isinf(Curve(0.5, 0, 0).reaches(7))
    found = fit(noisy(curve, 0, 0))
    assert found.shown.square_over_line.value == pytest.approx(500, rel=1e-5)
    assert at(found, 10_000).value == pytest.approx(curve(10_000), rel=1e-6)
    assert reach(found, curve(9000)).value == pytest.approx(9000, rel=1e-6)


def test_too_few_or_impossible_points_are_no_curve():
    with pytest.raises(ValueError, match="a curve needs 4"):
        fit([(n, (1.0,)) for n in LENGTHS[: LEAST_LENGTHS - 1]])
    with pytest.raises(ValueError, match="not negative"):
        fit([(n, (-1.0,)) for n in LENGTHS])
    with pytest.raises(ValueError, match="finite"):
        fit([(n, (math.nan,)) for n in LENGTHS])


@pytest.mark.parametrize(
    ("text", "value"), [("8GiB", 8 * 2**30), ("500M", 500 * MIB), ("1.5 gb", 3 * 2**29), ("4096", 4096)]
)
def test_memory_is_read_in_powers_of_1024(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "0", "8 parsecs", "-1G", "nan"])
def test_what_is_no_memory_is_said(text):
    with pytest.raises(InvalidRequest, match="not an amount of memory"):
        parse_bytes(text)


def test_lengths_double_to_the_end_of_the_position_table():
    assert lengths_of(ScalingSettings(), None) == (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    assert lengths_of(ScalingSettings(), 512) == (32, 64, 128, 256, 512)
    assert lengths_of(ScalingSettings(), 700) == (32, 64, 128, 256, 512, 700)
    assert len(lengths_of(ScalingSettings(), 23)) >= LEAST_LENGTHS
    assert lengths_of(ScalingSettings(longest=1000), None)[-2:] == (512, 1000)
    assert lengths_of(ScalingSettings(lengths=(900, 3, 3)), 512) == (3,)
    with pytest.raises(InvalidRequest, match="ends at 512"):
        lengths_of(ScalingSettings(lengths=(900,)), 512)


def test_ways_are_those_that_can_run_every_layer():
    windows, whole = (find_architecture(name)[1].spec for name in ("modernbert-base", "bert-base-uncased"))
    assert ways_of(ScalingSettings(), windows, 4096) == ("chosen", "sdpa-masked", "rows", "reference")
    assert ways_of(ScalingSettings(), whole, 512) == ("chosen", "sdpa", "rows", "reference")
    assert ways_of(ScalingSettings(ways=("rows", "rows")), whole, 512) == ("rows",)


def test_every_published_encoder_has_its_ways():
    for family in FAMILIES:
        for published in family.published:
            ways = ways_of(ScalingSettings(), published.spec, 512)
            assert ways[0] == "chosen"
            assert "reference" in ways  # the definition can do everything that a family asks of softmax
    linear = replace_mixers(find_architecture("bert-base-uncased")[1].spec)
    assert ways_of(ScalingSettings(), linear, 512) == ("chosen",)


def replace_mixers(spec):
    """The encoder with linear attention in every layer."""
    mixer = LinearAttention(heads=12, head_width=64, feature_map="elu+1")
    layers = tuple(dataclasses.replace(layer, mixer=mixer) for layer in spec.layers)
    return dataclasses.replace(spec, layers=layers)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"seconds": math.nan}, "seconds is nan"),
        ({"lengths": (4, 0)}, "a length is 0"),
        ({"ways": ("magic",)}, "no attention implementation 'magic'; there are chosen,"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, words):
    with pytest.raises(InvalidRequest, match=words):
        ScalingSettings(**changes)


class Machine:
    """A machine of known curves on which time passes only while it measures."""

    TIME = {"chosen": Curve(0.01, 1e-3, 2e-8), "rows": Curve(0.01, 1e-3, 1e-6)}  # noqa: RUF012
    SIZE = {"chosen": Curve(MIB, 20_000, 0.0), "rows": Curve(MIB, 1000, 48.0)}  # noqa: RUF012

    def __init__(self, loading=1.0, resting=100 * MIB):
        self.now, self.asked, self.loading, self.resting = 0.0, [], loading, resting

    def clock(self):
        return self.now

    def measure(self, request, deadline, tick):
        tick()
        self.asked.append((request.way, request.length))
        size = round(self.SIZE[request.way](request.length))
        fits = request.memory_bytes is None or self.resting + size <= request.memory_bytes
        seconds = self.TIME[request.way](request.length) if fits else 0.0
        process = self.loading + seconds * (request.repeats + 1)
        self.now += process
        late = self.now > deadline
        outcome = "did not fit" if not fits else "no time" if late else "measured"
        repeats = (seconds,) * request.repeats if outcome == "measured" else ()
        return ScalingPoint(
            request.way,
            request.length,
            outcome,
            "" if repeats else "as it happens",
            ("tiled",),
            repeats,
            size if repeats else None,
            self.resting,
            process,
        )


def scaling(tiny_folder, machine, **changes):
    given = {
        "model": str(tiny_folder),
        "ways": ("chosen", "rows"),
        "lengths": (1, 2, 4, 8, 16),
        "seconds": 1000.0,
        "memory_bytes": 2**34,
    }
    extra = {key: changes.pop(key) for key in ("watch", "journal", "restart") if key in changes}
    settings = ScalingSettings(**{**given, **changes})
    return run_scaling(settings, measure=machine.measure, clock=machine.clock, **extra)


def test_a_run_finds_the_machines_own_curves(tiny_folder):
    machine = Machine()
    report = scaling(tiny_folder, machine)
    assert [(p.length, p.kernel) for p in report.points[:4]] == [
        (1, "chosen"),
        (1, "rows"),
        (2, "chosen"),
        (2, "rows"),
    ]
    for way in ("chosen", "rows"):
        found = report.curves_of(way)
        for curve, true in ((found.time.curve, machine.TIME[way]), (found.memory.curve, machine.SIZE[way])):
            assert curve(16) == pytest.approx(true(16), rel=1e-3)
        assert found.longest.ends_by == "positions"  # at 23, long before memory ends
        assert found.longest.tokens == 23
        assert abs(found.probe.seconds_error) < 0.01
        assert abs(found.probe.bytes_error) < 0.01
        assert found.probe.point.length not in {point.length for point in report.points}
    assert report.seconds_spent == machine.now
    assert not any("the machine was busy" in note for note in report.notes)


def test_a_machine_that_was_busy_is_said_to_have_been(tiny_folder):
    class Busy(Machine):
        def measure(self, request, deadline, tick):
            point = super().measure(request, deadline, tick)
            return dataclasses.replace(point, repeats=(*point.repeats, 2 * max(point.repeats)))

    notes = scaling(tiny_folder, Busy()).notes
    assert any("at 10 of 10 points" in note and "the machine was busy" in note for note in notes)


def test_the_longest_text_is_where_memory_ends_and_the_probe_goes_near_it(tmp_path):
    """A shape without a position table, with the machine's memory set to end at a known length."""
    machine = Machine()
    limit = machine.resting + round(machine.SIZE["rows"](3000))
    settings = ScalingSettings(
        architecture="ettin-encoder-17m",
        layers=1,
        ways=("rows",),
        longest=1024,
        seconds=1e6,
        memory_bytes=limit,
    )
    report = run_scaling(settings, measure=machine.measure, clock=machine.clock)
    (curves,) = report.curves
    assert curves.longest.ends_by == "memory"
    assert curves.longest.tokens == pytest.approx(3000, rel=0.01)
    assert curves.longest.low <= 3000 <= curves.longest.high + 30
    assert curves.probe.point.length == pytest.approx(PROBE_SHARE * 3000, rel=0.02)
    assert curves.probe.fits_as_predicted
    assert curves.probe.beyond_measured
    assert curves.time.square_over_line.value == pytest.approx(1000, rel=0.01)
    told = " ".join(findings(report))
    assert "the quadratic term exceeds the linear one at 1,000 tokens" in told
    assert "times the longest measured" in told


def test_a_prediction_that_is_wrong_is_shown_to_be(tmp_path):
    """Beyond what was measured this machine needs ten times the memory: the probe does not fit."""
    machine = Machine()
    small = machine.SIZE["rows"]
    machine.SIZE = {"rows": lambda n: small(n) * (10 if n > 1024 else 1)}
    limit = machine.resting + round(small(3000))
    settings = ScalingSettings(
        architecture="ettin-encoder-17m",
        layers=1,
        ways=("rows",),
        longest=1024,
        seconds=1e6,
        memory_bytes=limit,
    )
    report = run_scaling(settings, measure=machine.measure, clock=machine.clock)
    assert report.curves[0].probe.fits_as_predicted is False
    assert "did not fit, contrary to the prediction" in " ".join(findings(report))


def test_a_budget_leaves_out_what_would_go_beyond_it_and_says_so(tiny_folder):
    machine = Machine(loading=10.0)
    report = scaling(tiny_folder, machine, seconds=70.0)
    assert machine.now <= 70.0
    assert {point.outcome for point in report.points} == {"measured", "no time"}
    assert len(report.points) == 10  # nothing is missing in silence
    assert any("give more --seconds" in note for note in report.notes)
    assert report.curves_of("rows").time is None
    assert "a curve needs 4" in report.curves_of("rows").why_not


def test_after_a_length_that_did_not_fit_no_longer_one_is_tried(tiny_folder):
    machine = Machine()
    limit = machine.resting + round(machine.SIZE["rows"](8)) + 1  # `chosen` takes more than that at 8
    report = scaling(tiny_folder, machine, memory_bytes=limit)
    chosen = [point for point in report.points if point.kernel == "chosen"]
    assert [point.outcome for point in chosen] == [
        "measured" if machine.SIZE["chosen"](n) + machine.resting <= limit else "did not fit"
        for n in (1, 2, 4, 8, 16)
    ]
    lost = [point for point in chosen if not point.measured]
    assert len(lost) > 1
    assert [pair for pair in machine.asked if pair[0] == "chosen" and pair[1] > lost[0].length] == []
    assert lost[1].note == f"not tried: see {lost[0].length} tokens"
    assert all(point.measured for point in report.points if point.kernel == "rows" and point.length <= 8)


def test_the_next_length_is_expected_to_take_what_the_last_two_say():
    points = [
        ScalingPoint("rows", n, "measured", repeats=(c, c), process_seconds=5 + 3 * c)
        for n, c in ((100, 1.0), (200, 4.0))
    ]
    assert expected_seconds(points, 400) == pytest.approx(5 + 2 * 16)
    assert expected_seconds(points[:1], 200) == pytest.approx(5 + 2 * 4)
    assert expected_seconds([], 200) == 0


@pytest.mark.parametrize(("last", "power"), [(8.0, 2.2), (1.0, 1.0)])
def test_the_next_length_is_never_expected_to_grow_faster_or_slower_than_texts_do(last, power):
    points = [
        ScalingPoint("rows", n, "measured", repeats=(c, c), process_seconds=3 * c)
        for n, c in ((100, 1.0), (200, last))
    ]
    assert expected_seconds(points, 400) == pytest.approx(2 * last * 2**power)


def test_the_longest_text_that_fits_is_expected_to_fit():
    points = [
        ScalingPoint("rows", n, "measured", repeats=(1e-3 * n,), peak_bytes=n * MIB, resting_bytes=0)
        for n in LENGTHS
    ]
    found = curves_of("rows", points, 8192 * MIB, None, 0)
    longest = found.shown.longest.tokens
    for length, outcome, expected in (
        (longest, "measured", True),
        (longest, "did not fit", False),
        (longest + 1, "did not fit", True),
        (longest + 1, "failed", None),
    ):
        probe = probed(found, ScalingPoint("rows", length, outcome), "").probe
        assert probe.fits_as_predicted is expected


def test_a_stopped_run_goes_on_and_measures_nothing_twice(tiny_folder, tmp_path):
    path = journal_of(tmp_path / "scaling.json")
    machine = Machine()

    class Stop(Exception):
        pass

    def watch(what, done, total):
        if done == 5:
            raise Stop

    with pytest.raises(Stop):
        scaling(tiny_folder, machine, watch=watch, journal=path)
    with path.open("a") as file:
        file.write('{"kernel": "rows", "length"')  # as a killed process leaves it
    first, machine.asked = set(machine.asked), []
    assert len(first) == 5
    report = scaling(tiny_folder, machine, journal=path)
    again = machine.asked[: 10 - 5]
    assert not first & set(again)
    assert [point.outcome for point in report.points] == ["measured"] * 10
    assert not path.exists()


def test_points_of_other_settings_are_not_gone_on_with(tiny_folder, tmp_path):
    path = tmp_path / "points"
    scaling(tiny_folder, Machine(loading=10), journal=path, seconds=70.0)  # some had no time
    assert path.exists()
    with pytest.raises(InvalidRequest, match="another model, machine or setting"):
        scaling(tiny_folder, Machine(), journal=path, dtype="float64")
    other = Path(shutil.copytree(tiny_folder, tmp_path / Path(tiny_folder).name))
    change_json(other / "config.json", layer_norm_eps=1e-3)
    with pytest.raises(InvalidRequest, match="another model, machine or setting"):
        scaling(other, Machine(), journal=path)  # of the same name, with other contents
    machine = Machine()
    scaling(tiny_folder, machine, journal=path, dtype="float64", restart=True)
    assert len(machine.asked) == 12
    path.write_text("a poem\n{}\n")
    with pytest.raises(InvalidRequest, match="another model, machine or setting"):
        Journal(path, {})


def test_a_report_is_what_was_written(tiny_folder, tmp_path):
    report = scaling(tiny_folder, Machine())
    path = tmp_path / "scaling.json"
    write_report(report, path)
    assert read_report(path) == report
    value = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert value["points"][0]["seconds"]["median"] == report.points[0].seconds.median
    for damage in ({"points": 3}, {"dtype": None}, {"protocol": "speed"}):
        with pytest.raises(InvalidRequest, match="unmask scaling wrote"):
            from_plain({**value, **damage})
    del value["machine"]
    with pytest.raises(InvalidRequest, match="has no machine"):
        from_plain(value)
    path.write_text("{")
    with pytest.raises(InvalidRequest, match="not JSON"):
        read_report(path)
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_report(tmp_path / "none")


def test_two_reports_stand_side_by_side(tiny_folder):
    one, slow = scaling(tiny_folder, Machine()), Machine()
    slow.TIME = {way: Curve(2 * c.constant, 2 * c.line, 2 * c.square) for way, c in Machine.TIME.items()}
    made = compare(one, scaling(tiny_folder, slow))
    assert len(made.rows) == 10
    assert all(row.times.median == pytest.approx(0.5) for row in made.rows)
    assert ("number format", "float32", "float32") in made.cards
    assert {one.kernel for one in made.crossings} == {"chosen", "rows"}
    other = dataclasses.replace(one, measured=dataclasses.replace(one.measured, layers=9))
    with pytest.raises(InvalidRequest, match="of the same encoder"):
        compare(one, other)
    with pytest.raises(InvalidRequest, match="share no attention implementation"):
        compare(one, dataclasses.replace(one, points=()))


def test_the_picture_has_every_point_where_it_belongs(tiny_folder, tmp_path):
    report = scaling(tiny_folder, Machine())
    path = tmp_path / "scaling.svg"
    draw(report, path)
    tree = ElementTree.parse(path)
    kinds = [node.tag.rpartition("}")[2] for node in tree.iter()]
    titles = [node.text for node in tree.iter() if node.tag.endswith("title")]
    assert sum("probe" in text for text in titles) == 4  # two ways, time and memory
    assert sum("tokens: " in text for text in titles) == 2 * (10 + 2)
    assert kinds.count("polyline") == 8  # measured and beyond, two ways, two panels
    assert "style" not in kinds
    assert "script" not in kinds
    assert svg(report, "dark") != svg(report)
    with pytest.raises(InvalidRequest, match=r"ends in \.svg"):
        draw(report, tmp_path / "scaling.png")
    with pytest.raises(InvalidRequest, match="nothing to draw"):
        svg(dataclasses.replace(report, points=()))


def test_numbers_are_said_in_units_that_people_read():
    assert [duration(value) for value in (2e-9, 3e-6, 0.0125, 7.0, 90.0, 7200.0, 200_000.0)] == [
        "2 ns",
        "3 µs",
        "12.5 ms",
        "7 s",
        "1.5 min",
        "2 h",
        "2.31 days",
    ]
    assert [size(value) for value in (12, 2048, 3 * MIB, 1.5 * 2**30)] == [
        "12 bytes",
        "2 KiB",
        "3 MiB",
        "1.5 GiB",
    ]
