"""``unmask kernels`` with a need: which kernel would run, and every sentence of refusal."""

import json

import pytest

from tests.support.command import run_here
from unmask.kernels import KERNELS, AttentionRequest, choose
from unmask.spec import FullAttention, NoPosition, SlidingWindow


def verdicts(*arguments):
    ran = run_here("kernels", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_the_need_is_what_was_asked_and_the_choice_is_the_dispatchers():
    found = verdicts("--dtype", "float64", "--pattern", "sliding-window", "--longest", "3000")
    request = AttentionRequest("cpu", "float64", SlidingWindow(64), NoPosition(), head_width=64, longest=3000)
    assert found["request"]["dtype"] == "float64"
    assert found["request"]["pattern"] == {"kind": "SlidingWindow", "radius": 64, "dilation": 1}
    assert found["chosen"] == choose(request).capability.name
    assert list(found["verdicts"]) == [kernel.capability.name for kernel in KERNELS]
    assert found["verdicts"][found["chosen"]] == "runs"
    for kernel in KERNELS:
        refusal = kernel.capability.refusal(request)
        if refusal is not None:
            assert found["verdicts"][kernel.capability.name] == refusal


GPU = ("--device", "cuda", "--dtype", "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (("--longest", "512"), "varlen"),
        (("--longest", "8192", "--pattern", "sliding-window", "--gradients"), "varlen"),
        (("--longest", "128"), "triton"),
        (("--position", "alibi"), "triton"),
        (("--log-sum-exp",), "triton"),
        (("--dtype", "float32"), "triton"),
        (("--position", "disentangled", "--gradients"), "triton-disentangled"),
        (("--pattern", "sliding-window-global", "--gradients"), "flex"),
    ],
)
def test_what_a_gpu_runs(arguments, chosen, monkeypatch):
    monkeypatch.setattr("unmask.kernels.interface._importable", lambda module: True)
    choose.cache_clear()
    asked = arguments if "--dtype" in arguments else (*GPU[2:], *arguments)
    assert verdicts(*GPU[:2], *asked)["chosen"] == chosen
    choose.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        (
            ("--device", "cuda", "--dtype", "float64"),
            ("varlen", "takes bfloat16, float16, not float64"),
        ),
        ((*GPU, "--dropout"), ("varlen", "gives no dropout")),
        ((*GPU, "--pattern", "dilated"), ("varlen", "has no windows with gaps")),
        ((*GPU, "--pattern", "block-sparse"), ("flex", "has no BlockSparse attention")),
        ((*GPU, "--position", "alibi"), ("varlen", "has no Alibi term in its scores")),
        (("--position", "relative-bias"), ("tiled", "has no RelativePositionBias term in its scores")),
        ((*GPU, "--head-width", "48"), ("flex", "takes heads of width 16, 32, 64, 128, 256, not 48")),
        ((*GPU, "--longest", "100"), ("varlen", "supported; preferred from 129 tokens")),
        (("--longest", "100"), ("varlen", "runs on cuda, not on cpu")),
    ],
)
def test_why_others_do_not(arguments, sentences, monkeypatch):
    monkeypatch.setattr("unmask.kernels.interface._importable", lambda module: True)
    choose.cache_clear()
    kernel, sentence = sentences
    assert verdicts(*arguments)["verdicts"][kernel] == sentence
    choose.cache_clear()


def test_a_need_that_nothing_serves_ends_in_every_reason():
    ran = run_here("kernels", "--device", "abacus")
    assert ran.code == 1
    for kernel in KERNELS:
        assert f"{kernel.capability.name} " in ran.err
    assert "not on abacus" in ran.err
    assert "at least 1" in run_here("kernels", "--longest", "0").err


def test_a_missing_module_is_named(monkeypatch):
    monkeypatch.setattr("unmask.kernels.interface._importable", lambda module: module != "triton")
    records = {record["name"]: record for record in json.loads(run_here("kernels", "--json").out)["kernels"]}
    assert records["flex"]["why_not_here"] == "needs triton, which is not installed"
    assert records["sdpa"]["why_not_here"] is None
    shown = run_here("kernels").out
    assert "nothing: needs triton, which is not installed" in shown
    assert "multiples of 8 to 256" in shown
    assert "from 129 tokens" in shown


def test_the_text_says_which_runs():
    request = AttentionRequest(
        "cpu", "float32", FullAttention(), NoPosition(), head_width=64, longest=512, gradients=True
    )
    ran = run_here("kernels", "--gradients")
    (line,) = [line for line in ran.out.splitlines() if line.rstrip().endswith(" runs")]
    assert line.split()[0] == choose(request).capability.name
