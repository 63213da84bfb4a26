"""Probes beyond linear ones: what each must and cannot find, controls, baselines, and files of labels."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.explorable import CONFIG, folder_of
from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.probes import classifiers, probing
from unmask.evaluate.probes import words as labeled
from unmask.evaluate.probes.classifiers import fit_linear, fit_mlp
from unmask.evaluate.probes.probing import control_labels, measure_probes
from unmask.evaluate.probes.words import PARTS, TaggedSentence, read_labeled
from unmask.interpret.geometry.reading import random_baseline

pytestmark = pytest.mark.long

FORMS = ("the", "river", "bank", "was", "muddy", "text", "another", "xy", "abc", ".")


def xor(count, seed):
    x_MD = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    return x_MD, ((x_MD[:, 0] > 0) ^ (x_MD[:, 1] > 0)).long()


def test_an_mlp_finds_what_no_linear_probe_can():
    train, dev, test = xor(800, 0), xor(200, 1), xor(400, 2)
    probe = fit_mlp(*train, *dev, class_count=2, hidden=32)
    assert float(probe.right(*test).double().mean()) > 0.9
    linear = fit_linear(train[0].clone(), train[1], *dev, class_count=2)
    assert 0.4 < linear.accuracy(*test) < 0.62


@pytest.fixture
def hasty(monkeypatch):
    """Few steps, where what is learned does not matter."""
    monkeypatch.setattr(classifiers, "ROUNDS", 2)
    monkeypatch.setattr(classifiers, "STEPS_OF_ROUND", 5)


@pytest.mark.usefixtures("hasty")
def test_an_mlp_is_the_same_for_the_same_seed_and_leaves_the_generator_alone():
    train, dev = xor(300, 0), xor(100, 1)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one, same, other = (fit_mlp(*train, *dev, class_count=2, hidden=8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    values = [torch.cat([p.flatten() for p in probe.network.parameters()]) for probe in (one, same, other)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_the_pass_that_is_best_on_dev_is_kept():
    """Labels of dev are noise, so the first passes are as good as later ones, and training ends early."""
    train, dev = xor(300, 0), (xor(100, 1)[0], torch.randint(0, 2, (100,), generator=torch.Generator()))
    probe = fit_mlp(*train, *dev, class_count=2, hidden=8)
    again = probe.right(*dev).double().mean()
    later = fit_mlp(*train, *dev, class_count=2, hidden=8)
    assert again == later.right(*dev).double().mean()
    assert probe.rounds < 30


def test_control_labels_are_of_the_form_and_drawn_as_often_as_the_labels():
    counts = Counter(NOUN=50, VERB=30, DET=20)
    words = [f"w{number % 2000}" for number in range(4000)]
    found = control_labels(words, counts)
    assert found[:2000] == found[2000:]
    shares = {label: found.count(label) / len(found) for label in counts}
    assert shares == pytest.approx({"NOUN": 0.5, "VERB": 0.3, "DET": 0.2}, abs=0.04)
    assert control_labels(words, counts, seed=1) != found
    assert control_labels(["x"], Counter(A=1)) == ["A"]


@pytest.fixture(scope="module")
def folder():
    return folder_of("probed", 0, json.dumps(CONFIG))


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder)


def sentences(count, seed, label):
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = tuple(draw.choice(FORMS, draw.integers(2, 7)).tolist())
        found.append(TaggedSentence(words, tuple(label(words, place) for place in range(len(words)))))
    return found


def parts(label):
    sizes = (("train", 160, 0), ("dev", 30, 1), ("test", 60, 2))
    return {part: sentences(count, seed, label) for part, count, seed in sizes}


def of_form(words, place):
    return "ABC"[FORMS.index(words[place]) % 3]


def test_a_label_of_the_form_is_found_and_is_not_selective(model):
    found = measure_probes(model, parts(of_form), layer=0, hidden=16, random=False)
    (one,) = found.layers
    assert min(one.linear.value, one.mlp.value, one.mlp_control.value) > 0.97
    assert abs(one.mlp_selectivity.value) < 0.03
    assert found.by_form == 1
    assert found.majority == pytest.approx(0.4, abs=0.08)
    assert found.labels == ("A", "B", "C")


def test_figures_are_those_of_the_answers(model, monkeypatch):
    """Answers made by hand: shares, differences, and intervals that hold them."""
    data = parts(of_form)
    words = sum(len(one.words) for one in data["test"])
    draw = np.random.default_rng(0)
    made = {}

    def right(self, engine, layers, *, control):
        own = engine is self.model.engine
        names = ("linear", "mlp", *(("linear_control", "mlp_control") if control else ()))
        found = {}
        for layer in layers:
            answers = {name: torch.from_numpy(draw.random(words) < 0.5) for name in names}
            made.update({(name if own else f"random_{name}", layer): one for name, one in answers.items()})
            found[layer] = answers
        return found

    monkeypatch.setattr(probing._Task, "right", right)
    found = measure_probes(model, data)
    assert [one.layer for one in found.layers] == [0, 1, 2, 3]
    for one in found.layers:
        share = {name: float(a.double().mean()) for (name, layer), a in made.items() if layer == one.layer}
        wanted = share | {
            "gap": share["mlp"] - share["linear"],
            "linear_selectivity": share["linear"] - share["linear_control"],
            "mlp_selectivity": share["mlp"] - share["mlp_control"],
            "random_gap": share["random_mlp"] - share["random_linear"],
        }
        for name, value in wanted.items():
            accuracy = getattr(one, name)
            assert accuracy.value == pytest.approx(value), name
            assert accuracy.interval.low < value < accuracy.interval.high
            assert accuracy.interval.high - accuracy.interval.low < 0.25


@pytest.mark.usefixtures("hasty")
def test_probes_read_the_first_token_standardized_by_train(model, monkeypatch):
    seen = []
    real = probing.fit_mlp
    monkeypatch.setattr(
        probing, "fit_mlp", lambda *at, **k: seen.append([x.clone() for x in at]) or real(*at, **k)
    )
    data = {part: some[:30] for part, some in parts(of_form).items()}
    measure_probes(model, data, layer=2, hidden=4, control=False)
    own, random = seen
    for found, encoder in ((own, model.encoder), (random, random_baseline(model.encoder, 0))):
        train = [one.words for one in data["train"]]
        encodings = [model.tokenizer.encode_words(words) for words in train]
        firsts = [
            [list(e.words).index(w) for w in range(len(words))]
            for e, words in zip(encodings, train, strict=True)
        ]
        caches = [unmask.interpret.ActivationCache.of(encoder, one) for one in encodings]
        x = torch.cat([cache.states[2][first] for cache, first in zip(caches, firsts, strict=True)]).double()
        wanted = (x - x.mean(0)) / x.std(0, correction=0)
        torch.testing.assert_close(found[0].double(), wanted, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("hasty")
def test_the_encoder_runs_once_for_all_layers_that_fit(model, monkeypatch):
    data = {part: some[:20] for part, some in parts(of_form).items()}
    runs = []
    real = probing.word_states
    monkeypatch.setattr(probing, "word_states", lambda *at, **k: runs.append(at[2]) or real(*at, **k))
    together = measure_probes(model, data, hidden=4, control=False)
    assert runs == [[0, 1, 2, 3]] * 3 * 2, "once for each part and encoder"
    runs.clear()
    words = sum(len(one.words) for some in data.values() for one in some)
    monkeypatch.setattr(labeled, "STATES_BYTES", 3 * 4 * words * model.width)
    apart = measure_probes(model, data, hidden=4, control=False)
    assert runs == [[0, 1, 2]] * 3 + [[3]] * 3 + [[0, 1, 2]] * 3 + [[3]] * 3
    assert apart.layers == together.layers


@pytest.mark.usefixtures("hasty")
def test_controls_and_random_weights_can_be_left_out(model):
    told = []
    found = measure_probes(
        model,
        parts(of_form),
        layer=1,
        hidden=4,
        control=False,
        random=False,
        progress=lambda *at: told.append(at),
    )
    (one,) = found.layers
    assert (one.mlp_control, one.mlp_selectivity, one.random_mlp, one.random_gap) == (None,) * 4
    assert told[-1] == (2, 2)


CONLLU = "1\tthe\tthe\tDET\tDT\t_\t2\tdet:x\t_\t_\n2\tbank\tbank\tNOUN\tNN\t_\t0\troot\t_\t_\n"


def test_files_of_labels(tmp_path):
    for part in PARTS:
        (tmp_path / f"a-{part}.conllu").write_text(CONLLU)
    found = read_labeled(tmp_path, "deprel")
    assert found == {part: [TaggedSentence(("the", "bank"), ("det", "root"))] for part in PARTS}
    blocks = [f"the B-X\nword{number} O\n" for number in range(60)]
    (tmp_path / "one.conll").write_text("\n".join(blocks))
    rows = [{"words": ["the", f"word{number}"], "labels": ["B-X", "O"]} for number in range(60)]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    by_columns, by_json = (read_labeled(tmp_path / f"one.{ending}") for ending in ("conll", "jsonl"))
    assert by_columns == by_json
    assert sum(map(len, by_json.values())) == 60
    assert len(by_json["train"]) > 30
    assert all(one.tags == ("B-X", "O") for some in by_json.values() for one in some)
    assert [len(some) for some in read_labeled(tmp_path / "one.jsonl", limit=2).values()] == [2, 2, 2]


def test_equal_sentences_are_in_one_part(tmp_path):
    rows = [{"words": ["the", f"word{number % 30}"], "labels": ["A", "B"]} for number in range(90)]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_labeled(tmp_path / "one.jsonl")
    sets = [set(one.words[1] for one in some) for some in found.values()]
    assert sum(map(len, sets)) == 30


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("a.jsonl", '{"words": ["a"], "labels": []}\n', InvalidText, "equally long"),
        ("a.jsonl", '{"words": ["a"], "labels": [3]}\n', InvalidText, "equally long"),
        ("a.conllu", CONLLU.replace("DET", "_"), InvalidText, "'the' without a label"),
        ("a.conllu", CONLLU, InvalidRequest, "part of .* has no sentence"),
    ],
)
def test_broken_files_are_named(tmp_path, name, content, error, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(error, match=says):
        read_labeled(tmp_path / name)


@pytest.mark.usefixtures("hasty")
def test_the_command(folder, tmp_path):
    some = parts(of_form)
    for part in PARTS:
        lines = [json.dumps({"words": one.words, "labels": one.tags}) for one in some[part][:40]]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    ran = run_here(
        "evaluate", "probes", "-m", folder, "--data", tmp_path, "--layer", 0, "--hidden", 8, "--json"
    )
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["probe"] == "probes"
    assert said["layers"][0]["linear"]["value"] > 0.9
    shown = run_here(
        "evaluate",
        "probes",
        "-m",
        folder,
        "--data",
        tmp_path,
        "--layer",
        0,
        "--hidden",
        8,
        "--no-control",
        "--no-random",
    ).out
    assert "gap" in shown
    assert "random, MLP" not in shown.split("gap  ")[0]
    for option, says in ((("--layer", 9), "layer is 9"), (("--hidden", 0), "hidden is 0")):
        assert_one_sentence(run_here("evaluate", "probes", "-m", folder, "--data", tmp_path, *option), says)
