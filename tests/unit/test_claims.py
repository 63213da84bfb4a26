"""The experiments of docs/claims.md: their tasks, the runner, and the page that is computed from results."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch

from benchmarks.claims import __main__ as runner
from benchmarks.claims import recall, report, states, text, variants
from benchmarks.claims.experiments import CLAIMS, EXPERIMENTS, Comparison, Experiment
from benchmarks.claims.results import RESULTS, Result, read_all, read_result, write_result
from unmask.encoder.encoder import Encoder
from unmask.interpret.attention.view import AttentionView
from unmask.spec import Rotary
from unmask.text import Encoding, PackedBatch


def test_the_page_is_computed_from_the_results():
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.filled(page, RESULTS) == page
    assert {found["name"] for found in report.BLOCK.finditer(page)} == {"summary", *(c.name for c in CLAIMS)}


def test_another_result_gives_another_page(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results")
    path = tmp_path / "results" / "recall" / "softmax-1" / "result.json"
    found = json.loads(path.read_text())
    found["figures"]["accuracy@256"] -= 0.5
    path.write_text(json.dumps(found))
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.filled(page, tmp_path / "results") != page


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_budgets_of_the_results_are_equal(name):
    every = [one for runs in read_all(RESULTS, name).values() for one in runs.values()]
    assert {one.tokens for one in every} <= {0, EXPERIMENTS[name].tokens}


def test_every_picture_of_the_page_is_there():
    for claim in CLAIMS:
        if f"pictures/claims-{claim.name}.svg" in report.PAGE.read_text(encoding="utf-8"):
            assert (report.DOCS / "pictures" / f"claims-{claim.name}.svg").is_file()


def runs_of(**figures):
    """Three runs per variant, with these values of the figure x."""
    return {
        name: {seed: Result("e", name, seed, 1, 0.0, {"x": value}) for seed, value in enumerate(values)}
        for name, values in figures.items()
    }


@pytest.mark.parametrize(
    ("said", "ours", "expected"),
    [
        ("lower", [0.9, 1.9, 2.9], "holds"),
        ("lower", [1.1, 2.1, 3.1], "does not hold"),
        ("lower", [0.5, 2.5, 3.0], "undecided"),
        ("higher", [1.1, 2.1, 3.1], "holds"),
        ("higher", [0.9, 1.9, 2.9], "does not hold"),
        ("not higher", [1.01, 2.01, 3.01], "holds"),
        ("not higher", [1.1, 2.1, 3.1], "does not hold"),
        ("not higher", [1.01, 2.01, 3.2], "undecided"),
        ("lower", [0.9, 1.9], "undecided"),
    ],
)
def test_verdicts(said, ours, expected):
    comparison = Comparison("", ("ours", "x"), ("theirs", "x"), said)
    assert report.verdict(comparison, runs_of(ours=ours, theirs=[1.0, 2.0, 3.0])) == expected


def test_a_claim_holds_in_part_if_only_some_comparisons_hold():
    def overall(*said):
        comparisons = tuple(Comparison("", ("ours", "x"), ("theirs", "x"), one) for one in said)
        claim = dataclasses.replace(CLAIMS[0], comparisons=comparisons)
        return report.overall(claim, runs_of(ours=[0.9, 1.9, 2.9], theirs=[1.0, 2.0, 3.0]))

    assert overall("lower", None) == "holds"
    assert overall("lower", "higher") == "holds in part"
    assert overall("higher", None) == "does not hold"
    assert report.overall(CLAIMS[0], {}) == "not run yet"


def test_finished_runs_are_skipped_and_other_budgets_refused(tmp_path, monkeypatch, capsys):
    trained = []

    def train(variant, seed, tokens, data, work):
        trained.append((variant, seed, tokens))
        return 1.0, {"accuracy@4": 0.5}

    monkeypatch.setitem(EXPERIMENTS, "recall", Experiment(train, 1000))
    given = ["--only", "linear-attention", "--seeds", "2", "--results", str(tmp_path)]
    runner.main(given)
    assert trained[:4] == [
        ("softmax", 1, 1000),
        ("linear", 1, 1000),
        ("performer", 1, 1000),
        ("softmax", 1, 0),
    ]
    count = len(trained)
    runner.main(given)
    assert len(trained) == count == 8
    shutil.rmtree(tmp_path / "recall" / "linear-2")
    runner.main(given)
    assert trained[count:] == [("linear", 2, 1000)]
    with pytest.raises(SystemExit):
        runner.main([*given, "--tokens", "20000"])
    assert "1,000 tokens, not of 20,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--seeds", "0"], "--seeds is 0; give at least 1"),
        (["--tokens", "5"], "--tokens is 5; give at least 20,000"),
        (["--variants", "rotten"], "invalid choice: 'rotten'"),
        (["--only", "extrapolation", "--data", "nowhere"], "does not exist; name the folder"),
    ],
)
def test_bad_input_is_one_sentence(given, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit):
        runner.main([*given, "--results", str(tmp_path), "--work", str(tmp_path / "work")])
    assert sentence in capsys.readouterr().err


def test_a_result_is_read_as_it_was_written(tmp_path):
    result = Result("text", "rotary", 2, 5, 1.5, {"loss@1": 3.25})
    write_result(result, tmp_path / "a" / "result.json")
    assert read_result(tmp_path / "a" / "result.json") == result
    assert read_result(tmp_path / "b" / "result.json") is None


def test_each_question_has_its_answer_among_the_facts():
    texts = recall.Texts.drawn(np.random.default_rng(1), 32, 20)
    keys_SF, asked_SQ = np.split(texts.keys_SN, [32], axis=1)
    for keys_F, asked_Q, values_N, answers_Q in zip(
        keys_SF, asked_SQ, texts.values_SN, texts.answers_SQ, strict=True
    ):
        value_of = dict(zip(keys_F.tolist(), values_N[:32].tolist(), strict=True))
        assert len(value_of) == 32
        assert [value_of[key] for key in asked_Q.tolist()] == answers_Q.tolist()
        assert set(values_N[32:].tolist()) == {recall.VALUES}
        assert answers_Q.max() < recall.VALUES


@pytest.mark.parametrize("variant", recall.MIXERS)
def test_weights_on_facts_are_those_of_the_attention_view(variant):
    torch.manual_seed(1)
    encoder = Encoder(recall.spec_of(variant)).eval()
    texts = recall.Texts.drawn(np.random.default_rng(2), 8, 1)
    with torch.inference_mode():
        found_LH = recall.weights_on_facts(encoder, texts)
    view = AttentionView(encoder, encoding_of(texts))
    questions_Q = 8 + np.arange(recall.QUESTIONS)
    expected_LH = [
        [
            view.probabilities(layer, head)[questions_Q, texts.places_SQ[0]].mean()
            for head in range(recall.HEADS)
        ]
        for layer in range(2)
    ]
    np.testing.assert_allclose(found_LH.numpy(), expected_LH, atol=1e-6)


def encoding_of(texts):
    """The first text, as `AttentionView` reads it."""
    count = texts.keys_SN.shape[1]
    return Encoding.of_arrays(
        "",
        ids=texts.keys_SN[0],
        token_type_ids=texts.values_SN[0],
        offsets=np.zeros((count, 2), np.int64),
        special=np.zeros(count, np.bool_),
        sequence_ids=np.zeros(count, np.int64),
        pieces=["?"] * count,
    )


def test_training_lowers_the_loss_of_a_few_facts(monkeypatch):
    monkeypatch.setattr(recall, "FACTS", (2,))
    monkeypatch.setattr(recall, "TOKENS", 512)
    encoder = recall.train("softmax", 1, 512 * 20)
    texts = recall.Texts.drawn(np.random.default_rng(3), 2, 64)
    with torch.inference_mode():
        right = texts.logits(encoder).argmax(-1).numpy() == texts.answers_SQ.reshape(-1)
    assert right.mean() > 2 / recall.VALUES


def test_one_window_gives_the_loss_of_its_masked_tokens():
    encoder = Encoder(variants.rotary()).eval()
    draw = np.random.default_rng(1)
    ids_BN = draw.integers(5, 300, size=(2, text.LONGEST))
    held_out = text.HeldOut(ids_BN, draw.random(ids_BN.shape) < 0.15, cls_id=2, sep_id=3, mask_id=4)
    size = text.TRAINED * 16
    total = 0.0
    with torch.inference_mode():
        for ids_N, masked_N in zip(ids_BN, held_out.masked_BN, strict=True):
            read_N = np.concatenate([[2], np.where(masked_N, 4, ids_N), [3]])
            batch = PackedBatch.of_ids([read_N])
            p_NV = encoder.logits("masked", encoder.encode(batch), batch.layout).log_softmax(-1)[1:-1]
            total -= float(p_NV[np.flatnonzero(masked_N), ids_N[masked_N]].sum())
    assert size == text.LONGEST
    assert held_out.loss(encoder, 16) == pytest.approx(total / held_out.masked_BN.sum(), rel=1e-5)


def test_windows_hide_what_is_outside_of_them():
    """A change of the last tokens of a block changes its loss as a whole, and not that of other windows."""
    encoder = Encoder(dataclasses.replace(variants.rotary(), init_std=0.3)).eval()
    draw = np.random.default_rng(1)
    ids_BN = draw.integers(5, 300, size=(1, text.LONGEST))
    masked_BN = np.zeros(ids_BN.shape, bool)
    masked_BN[0, 3:9] = True
    changed_BN = ids_BN.copy()
    changed_BN[0, text.TRAINED :] = 7
    one, other = (text.HeldOut(ids, masked_BN, 2, 3, 4) for ids in (ids_BN, changed_BN))
    assert one.loss(encoder, 1) == other.loss(encoder, 1)
    assert one.loss(encoder, 16) != other.loss(encoder, 16)


def test_ntk_slows_the_slowest_angle_by_the_factor_and_keeps_the_fastest():
    spec = variants.rotary()
    old = spec.layers[0].mixer.position
    new = variants.rescaled(spec, 4)["ntk"].layers[0].mixer.position
    assert isinstance(new, Rotary)
    width = spec.layers[0].mixer.head_width
    slowest = (width - 2) / width
    assert new.theta**-slowest == pytest.approx(old.theta**-slowest / 4)
    assert variants.rescaled(spec, 4)["interpolated"].layers[0].mixer.position.scale == 4.0
    assert variants.rescaled(variants.learned(), 4) == {}


@pytest.mark.parametrize("name", ["geglu", "pre-norm", "local-global", "alibi"])
def test_variants_have_about_as_many_parameters(name):
    count = {one: text.body_parameters(variants.VARIANTS[one].encoder) for one in (name, "rotary")}
    assert math.isclose(count[name], count["rotary"], rel_tol=0.01)


def test_a_text_run_trains_measures_and_leaves_nothing(tmp_path, monkeypatch):
    make_data(tmp_path / "data")
    monkeypatch.setattr(text, "BLOCKS", 2)
    seconds, figures = text.run("dynamic", 1, 10 * text.BATCH, tmp_path / "data", tmp_path / "work")
    assert 0 < seconds < 60
    assert figures["loss@1"] < math.log(variants.SIZES.vocabulary)
    assert not (tmp_path / "work" / "text" / "dynamic-1").exists()


def make_data(folder):
    """Textbooks of random words in the layout of the real ones."""
    import lzma

    (folder / "openstax").mkdir(parents=True)
    draw = np.random.default_rng(1)
    words = ["".join(draw.choice(list("abcdefgh"), 4)) for _ in range(900)]
    with lzma.open(folder / "openstax" / "openstax_ccby.jsonl.xz", "wt") as file:
        for split in ("train", "train", "dev", "dev"):
            prose = ". ".join(" ".join(draw.choice(words, 12)) for _ in range(150))
            file.write(json.dumps({"split": split, "text": prose}) + "\n")
    (folder / "ud_ewt").mkdir()
    for part in ("train", "dev", "test"):
        text = ""
        for _ in range(20):
            rows = enumerate(
                zip(draw.choice(words, 5), draw.choice(["NOUN", "VERB"], 5), strict=True), start=1
            )
            text += "".join(f"{i}\t{word}\t_\t{tag}" + "\t_" * 6 + "\n" for i, (word, tag) in rows) + "\n"
        (folder / "ud_ewt" / f"x-{part}.conllu").write_text(text)


def test_states_are_those_of_the_model_at_different_words():
    encoder = Encoder(dataclasses.replace(variants.rotary(), init_std=0.3)).eval()
    draw = np.random.default_rng(1)
    ids_BN = draw.integers(5, 300, size=(2, text.LONGEST))
    held_out = text.HeldOut(ids_BN, draw.random(ids_BN.shape) < 0.15, cls_id=2, sep_id=3, mask_id=4)
    found = held_out.states(encoder)
    assert [x_MD.shape for x_MD in found] == [(len(np.unique(ids_BN)), variants.SIZES.width)] * 3
    last_TD = []
    with torch.inference_mode():
        for ids_N in ids_BN.reshape(-1, text.TRAINED):
            last_TD.append(encoder.encode(PackedBatch.of_ids([np.array([2, *ids_N, 3])]))[1:-1].numpy())
    every_TD = np.concatenate(last_TD)
    for word, x_D in zip(np.unique(ids_BN), found[-1], strict=True):
        of_word_SD = every_TD[ids_BN.reshape(-1) == word]
        assert np.abs(of_word_SD - x_D).max(1).min() < 1e-4


def test_figures_of_states():
    draw = np.random.default_rng(1)
    square_MD = np.zeros((1500, 8), np.float32)
    square_MD[:, :2] = draw.uniform(-1, 1, (1500, 2))
    turned_MD = square_MD @ np.linalg.qr(draw.normal(size=(8, 8)))[0].astype(np.float32)
    noise_MD = draw.normal(size=(1500, 8)).astype(np.float32) + 9
    found = states.figures([square_MD, turned_MD, noise_MD])
    assert found["dimension@0"] == pytest.approx(2, rel=0.1)
    assert found["dimension@1"] == pytest.approx(found["dimension@0"], rel=1e-3)
    assert found["dimension@2"] > 5
    assert found["cka@1"] == pytest.approx(1, abs=1e-3)
    assert abs(found["cka@2"]) < 0.05
    assert abs(found["cosine@0"]) < 0.01
    assert found["cosine@2"] > 0.95
    expected = torch.cosine_similarity(torch.tensor(turned_MD), torch.tensor(square_MD)).mean()
    assert found["same@1"] == pytest.approx(float(expected), abs=1e-5)


def test_the_two_nearest_points_leave_out_equal_ones():
    x_MD = np.array([[0.0, 0], [0, 0], [3, 0], [0, 4]])
    np.testing.assert_allclose(states.two_nearest(x_MD), [[3, 3], [4, 4]])
