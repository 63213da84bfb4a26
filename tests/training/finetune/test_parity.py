"""benchmarks/parity.py: what it makes of finished runs."""

import argparse
import importlib.util
import json

import pytest
from scipy import stats

from tests.support.places import REPOSITORY


def program():
    spec = importlib.util.spec_from_file_location("parity", REPOSITORY / "benchmarks" / "parity.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_finished_runs_are_read_and_compared(tmp_path):
    parity = program()
    lines = [
        json.dumps({
            "task": "rte", "seed": seed, "side": side, "model": "default", "steps": steps,
            "figures": {"accuracy": value}, "seconds_per_step": 0.1 * seed, "precision": precision,
        })
        for side, values in (("ours", [0.6, 0.7]), ("theirs", [0.5, 0.6, 0.7]))
        for seed, value in enumerate(values, start=1)
        for steps, precision in ((None, "float32"), (None, "autocast"), (3, "float32"))
    ]  # fmt: skip
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(lines) + '\n{"task": "rte", "se')
    options = argparse.Namespace(model="default", steps=None, precision="float32")
    runs = parity.done_runs(path, options)
    assert len(runs) == 5, "other lengths, precisions and a line that was cut off are left out"
    (row,) = parity.compared(runs)
    assert row["metric"] == "RTE accuracy"
    half = stats.t.interval(0.95, 2, loc=0.6, scale=0.1 / 3**0.5)
    assert row["theirs"]["interval"] == pytest.approx(half)
    assert row["ours"]["mean"] == pytest.approx(0.65)
    assert row["ours_within_theirs"]
    far = [run | {"figures": {"accuracy": 0.99}} if run["side"] == "ours" else run for run in runs]
    assert not parity.compared(far)[0]["ours_within_theirs"]
    assert parity.done_runs(tmp_path / "none", options) == []
