"""ELMo computed again in numpy from the paper's formulas, and both of its forms on disk."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.encoder.elmo import Elmo, character_ids
from unmask.errors import (
    CheckpointError,
    CorruptCheckpoint,
    InvalidRequest,
    InvalidText,
    TensorMismatch,
    UnknownArchitecture,
)
from unmask.spec.elmo import ElmoSpec
from unmask.text import SequenceLayout
from unmask.weights.elmo_files import load_elmo, read_published_elmo, save_elmo

SMALL = ElmoSpec(
    character_width=3,
    word_characters=9,
    filters=((1, 4), (2, 3), (5, 6)),
    width=7,
    cell_width=11,
    cell_clip=0.4,
    state_clip=0.3,
)
SPECS = {
    "two layers": SMALL,
    "three layers, no highway, tanh": replace(SMALL, layers=3, highways=0, activation="tanh", state_clip=9.0),
    "one layer": replace(SMALL, layers=1, highways=1, filters=((3, 2),), cell_clip=9.0),
}
SENTENCES = [["The", "river", "bank"], ["Muddy"], ["extraordinarily", "ünïcode", "a", "b", "a", "!"]]


def random_elmo(spec, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        elmo = Elmo(spec).double().eval()
        with torch.no_grad():
            for parameter in elmo.parameters():
                parameter.copy_(
                    0.8 * torch.randn_like(parameter) / max(1, parameter.shape[-1:].numel()) ** 0.25
                )
    return elmo


def run(elmo, sentences):
    words = [word for sentence in sentences for word in sentence]
    characters = torch.from_numpy(character_ids(words, elmo.spec.word_characters))
    layout = SequenceLayout.of_lengths([len(sentence) for sentence in sentences])
    with torch.inference_mode():
        layers, mixed = elmo(characters, layout)
    return [(layers[:, layout.rows(s)].numpy(), mixed[layout.rows(s)].numpy()) for s in range(len(sentences))]


# --- the formulas, one sentence at a time ------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_word(spec, weights, characters):
    """Peters et al. 2018, 3.2 and Kim et al. 2016: one word's characters to its vector."""
    table = weights["words.characters.weight"]
    x = [table[c] for c in [*characters, *[260] * (spec.word_characters - len(characters))]]
    features = []
    for number, (width, count) in enumerate(spec.filters):
        kernel, bias = (weights[f"words.filters.{number}.{part}"] for part in ("weight", "bias"))
        for one in range(count):
            places = range(len(x) - width + 1)
            sums = [sum(kernel[one, :, i] @ x[place + i] for i in range(width)) for place in places]
            value = bias[one] + max(sums)
            features.append(max(value, 0.0) if spec.activation == "relu" else np.tanh(value))
    y = np.array(features)
    for number in range(spec.highways):
        at = f"words.highways.{number}"
        gate = sigmoid(weights[at + ".gate.weight"] @ y + weights[at + ".gate.bias"])
        new = np.maximum(weights[at + ".transform.weight"] @ y + weights[at + ".transform.bias"], 0)
        y = gate * new + (1 - gate) * y
    return weights["words.projection.weight"] @ y + weights["words.projection.bias"]


def plain_lstm(spec, weights, at, inputs):
    """Sak et al. 2014 with clipping, from zeros, in the order given."""
    state, cell, made = np.zeros(spec.width), np.zeros(spec.cell_width), []
    for x in inputs:
        gates = weights[at + ".inputs.weight"] @ x + weights[at + ".state.weight"] @ state
        i, f, g, o = (gates + weights[at + ".state.bias"]).reshape(4, spec.cell_width)
        cell = np.clip(sigmoid(i) * np.tanh(g) + sigmoid(f) * cell, -spec.cell_clip, spec.cell_clip)
        state = weights[at + ".projection.weight"] @ (sigmoid(o) * np.tanh(cell))
        state = np.clip(state, -spec.state_clip, spec.state_clip)
        made.append(state)
    return made


def plain_elmo(spec, weights, sentence):
    """Every layer, (layers + 1, N, 2 D), and the mix, (N, 2 D)."""
    cut = spec.word_characters - 2
    rows = [[258, 256, 259], *([258, *word.encode()[:cut], 259] for word in sentence), [258, 257, 259]]
    words = [plain_word(spec, weights, row) for row in rows]
    layers = [[np.concatenate([x, x]) for x in words]]
    ahead, back = words, words
    for layer in range(spec.layers):
        new_ahead = plain_lstm(spec, weights, f"recurrent.ahead.{layer}", ahead)
        new_back = plain_lstm(spec, weights, f"recurrent.back.{layer}", back[::-1])[::-1]
        if layer:
            new_ahead = [new + old for new, old in zip(new_ahead, ahead, strict=True)]
            new_back = [new + old for new, old in zip(new_back, back, strict=True)]
        ahead, back = new_ahead, new_back
        layers.append([np.concatenate(pair) for pair in zip(ahead, back, strict=True)])
    stacked = np.array(layers)[:, 1:-1]
    shares = np.exp(weights["mix.weights"]) / np.exp(weights["mix.weights"]).sum()
    return stacked, weights["mix.gamma"] * sum(s * layer for s, layer in zip(shares, stacked, strict=True))


@pytest.mark.parametrize("name", SPECS)
def test_every_layer_and_the_mix_equal_the_formulas(name):
    elmo = random_elmo(SPECS[name])
    weights = {key: value.numpy() for key, value in elmo.state_dict().items()}
    for (layers, mixed), sentence in zip(run(elmo, SENTENCES), SENTENCES, strict=True):
        assert layers.shape == (elmo.spec.layers + 1, len(sentence), 2 * elmo.spec.width)
        expected_layers, expected_mix = plain_elmo(elmo.spec, weights, sentence)
        np.testing.assert_allclose(layers, expected_layers, rtol=0, atol=1e-12)
        np.testing.assert_allclose(mixed, expected_mix, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_single_precision(name):
    elmo = random_elmo(SPECS[name])
    exact = run(elmo, SENTENCES)
    for (layers, mixed), (exact_layers, exact_mix) in zip(run(elmo.float(), SENTENCES), exact, strict=True):
        np.testing.assert_allclose(layers, exact_layers, rtol=0, atol=2e-5)
        np.testing.assert_allclose(mixed, exact_mix, rtol=0, atol=2e-5)


def test_both_clips_matter_in_these_tests():
    """Or the comparison with the formulas would not see them."""
    for field in ("cell_clip", "state_clip"):
        loose = random_elmo(replace(SMALL, **{field: 9.0}))
        loose.load_state_dict(random_elmo(SMALL).state_dict())
        clipped, free = (run(elmo, SENTENCES)[2][0] for elmo in (random_elmo(SMALL), loose))
        assert np.abs(clipped - free).max() > 1e-3


# --- packing -----------------------------------------------------------------------------------------


def test_a_sentence_does_not_know_its_neighbors():
    elmo = random_elmo(SMALL)
    together = run(elmo, SENTENCES)
    for order in ([2, 0, 1], [1, 2, 0], [0], [1], [2], [1, 1, 2, 2]):
        for (layers, mixed), original in zip(run(elmo, [SENTENCES[i] for i in order]), order, strict=True):
            np.testing.assert_allclose(layers, together[original][0], rtol=0, atol=1e-12)
            np.testing.assert_allclose(mixed, together[original][1], rtol=0, atol=1e-12)


def test_what_ran_before_changes_nothing():
    elmo = random_elmo(SMALL)
    first = run(elmo, SENTENCES[:1])[0][0]
    run(elmo, SENTENCES[1:])
    np.testing.assert_array_equal(run(elmo, SENTENCES[:1])[0][0], first)


def test_each_direction_knows_its_side_of_the_sentence_alone():
    elmo = random_elmo(replace(SMALL, cell_clip=9.0, state_clip=9.0))
    one, other = (run(elmo, [["a", word, "b"]])[0][0][1:] for word in ("cat", "dog"))
    ahead, back = (np.abs(one - other)[..., half].max((0, 2)) for half in (slice(0, 7), slice(7, 14)))
    assert ahead[0] == 0
    assert (ahead[1:] > 1e-6).all()
    assert (back[:2] > 1e-6).all()
    assert back[2] == 0


def test_gradients_reach_every_parameter():
    elmo = random_elmo(replace(SMALL, cell_clip=9.0, state_clip=9.0)).train()
    words = [word for sentence in SENTENCES for word in sentence]
    layout = SequenceLayout.of_lengths([len(sentence) for sentence in SENTENCES])
    mixed = elmo(torch.from_numpy(character_ids(words, 9)), layout).mixed_TD
    (mixed * torch.randn_like(mixed)).sum().backward()
    for name, parameter in elmo.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


# --- words -------------------------------------------------------------------------------------------


def test_character_ids():
    ids = character_ids(["ab", "", "ü", "abcdefghij"], 6)
    assert ids.tolist() == [
        [258, 97, 98, 259, 260, 260],
        [258, 259, 260, 260, 260, 260],
        [258, 195, 188, 259, 260, 260],
        [258, 97, 98, 99, 100, 259],
    ]
    with pytest.raises(InvalidText, match="word 1"):
        character_ids(["a", "\ud800"])


def test_characters_must_fit():
    elmo = random_elmo(SMALL)
    with pytest.raises(InvalidRequest, match=r"\(2, 8\), not \(2, 9\)"):
        elmo(torch.from_numpy(character_ids(["a", "b"], 8)), SequenceLayout.of_lengths([2]))
    for wrong in (
        {"filters": ()},
        {"filters": ((0, 3),)},
        {"word_characters": 4},
        {"layers": 0},
        {"cell_clip": 0.0},
    ):
        with pytest.raises(InvalidRequest):
            replace(SMALL, **wrong)


def test_the_published_size():
    """93.6 million parameters, as its authors give for the original model; the mix is a task's own."""
    with torch.device("meta"):
        elmo = Elmo(ElmoSpec())
    count = sum(parameter.numel() for name, parameter in elmo.named_parameters() if "mix" not in name)
    assert round(count / 1e6, 1) == 93.6


# --- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_our_folder_both_ways(name, tmp_path):
    elmo = random_elmo(SPECS[name])
    save_elmo(elmo, tmp_path / "one")
    back = load_elmo(tmp_path / "one")
    assert back.spec == elmo.spec
    assert not back.training
    save_elmo(back, tmp_path / "two")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    for (layers, mixed), (again, mixed_again) in zip(run(elmo, SENTENCES), run(back, SENTENCES), strict=True):
        np.testing.assert_allclose(layers, again, rtol=0, atol=1e-12)
        np.testing.assert_allclose(mixed, mixed_again, rtol=0, atol=1e-12)


def test_a_broken_folder_is_one_sentence(tmp_path):
    save_elmo(random_elmo(SMALL), tmp_path / "elmo")
    (tmp_path / "elmo" / "unmask_checksums.json").unlink()  # the changes are intended
    weights, config = tmp_path / "elmo" / "model.safetensors", tmp_path / "elmo" / "config.json"
    tensors, values = load_file(weights), json.loads(config.read_text())
    for change, error, match in (
        ({"mix.gamma": None}, TensorMismatch, "lacks mix.gamma"),
        ({"more": torch.ones(2)}, TensorMismatch, "holds more"),
        ({"mix.weights": torch.ones(9)}, TensorMismatch, r"shape \(9,\), not \(3,\)"),
        ({"mix.gamma": torch.tensor(float("nan"))}, CorruptCheckpoint, "not finite"),
    ):
        save_file({k: v for k, v in {**tensors, **change}.items() if v is not None}, weights)
        with pytest.raises(error, match=match):
            load_elmo(tmp_path / "elmo")
    save_file(tensors, weights)
    for change, match in (
        ({"twist": 1}, "says twist, which is not built"),
        ({"activation": "gelu"}, "activation is 'gelu'"),
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"filters": [[1, "2"]]}, "filters"),
    ):
        config.write_text(json.dumps({**values, **change}))
        with pytest.raises(CheckpointError, match=match):
            load_elmo(tmp_path / "elmo")
    weights.write_bytes(b"nothing")
    config.write_text(json.dumps(values))
    with pytest.raises(CorruptCheckpoint, match="damaged"):
        load_elmo(tmp_path / "elmo")


def published(spec, seed=3):
    """Random tensors in the layout of the authors' file, and options.json."""
    rng = np.random.default_rng(seed)
    features = sum(count for _, count in spec.filters)
    shapes = {
        "char_embed": (261, spec.character_width),
        "CNN_proj/W_proj": (features, spec.width),
        "CNN_proj/b_proj": (spec.width,),
    }
    for number, (width, count) in enumerate(spec.filters):
        shapes[f"CNN/W_cnn_{number}"] = (1, width, spec.character_width, count)
        shapes[f"CNN/b_cnn_{number}"] = (count,)
    for number in range(spec.highways):
        for part in ("transform", "carry"):
            shapes[f"CNN_high_{number}/W_{part}"] = (features, features)
            shapes[f"CNN_high_{number}/b_{part}"] = (features,)
    for direction in (0, 1):
        for layer in range(spec.layers):
            at = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
            shapes[at + "W_0"] = (2 * spec.width, 4 * spec.cell_width)
            shapes[at + "B"] = (4 * spec.cell_width,)
            shapes[at + "W_P_0"] = (spec.cell_width, spec.width)
    tensors = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    options = {
        "bidirectional": True,
        "batch_size": 128,
        "char_cnn": {
            "activation": spec.activation,
            "embedding": {"dim": spec.character_width},
            "filters": spec.filters,
            "max_characters_per_token": spec.word_characters,
            "n_characters": 262,
            "n_highway": spec.highways,
        },
        "lstm": {
            "cell_clip": spec.cell_clip,
            "dim": spec.cell_width,
            "n_layers": spec.layers,
            "proj_clip": spec.state_clip,
            "projection_dim": spec.width,
            "use_skip_connections": True,
        },
    }
    return tensors, options


def write_published(folder, tensors, options):
    h5py = pytest.importorskip("h5py")
    (folder / "options.json").write_text(json.dumps(options))
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in tensors.items():
            file[name] = array
    return folder / "options.json", folder / "weights.hdf5"


def authors_lstm_step(tensors, at, x, state, cell, spec):
    """Their code's own form: one matrix from the right, gates in the order i, j, f, o, 1 added to f."""
    i, j, f, o = np.split(np.concatenate([x, state]) @ tensors[at + "W_0"] + tensors[at + "B"], 4)
    cell = np.clip(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j), -spec.cell_clip, spec.cell_clip)
    state = (sigmoid(o) * np.tanh(cell)) @ tensors[at + "W_P_0"]
    return np.clip(state, -spec.state_clip, spec.state_clip), cell


def authors_word(tensors, spec, characters):
    """Their character network on one word, from their tensors in their layout."""
    x = tensors["char_embed"][[*characters, *[260] * (spec.word_characters - len(characters))]]
    features = []
    for number, (width, _) in enumerate(spec.filters):
        kernel = tensors[f"CNN/W_cnn_{number}"][0]
        places = [np.einsum("wi,wio->o", x[p : p + width], kernel) for p in range(len(x) - width + 1)]
        features.append(np.maximum(np.max(places, 0) + tensors[f"CNN/b_cnn_{number}"], 0))
    y = np.concatenate(features)
    for number in range(spec.highways):
        carry, transform = (
            y @ tensors[f"CNN_high_{number}/W_{part}"] + tensors[f"CNN_high_{number}/b_{part}"]
            for part in ("carry", "transform")
        )
        y = sigmoid(carry) * np.maximum(transform, 0) + (1 - sigmoid(carry)) * y
    return y @ tensors["CNN_proj/W_proj"] + tensors["CNN_proj/b_proj"]


def test_the_authors_files_give_the_authors_outputs(tmp_path):
    spec = SMALL
    tensors, options = published(spec)
    elmo = read_published_elmo(*write_published(tmp_path, tensors, options))
    assert elmo.spec == spec
    layers, mixed = run(elmo.double(), [["The", "cat"]])[0]
    wide = {name: array.astype(np.float64) for name, array in tensors.items()}
    rows = [[258, 256, 259], [258, *b"The", 259], [258, *b"cat", 259], [258, 257, 259]]
    words = [authors_word(wide, spec, row) for row in rows]
    np.testing.assert_allclose(layers[0], [[*x, *x] for x in words[1:-1]], rtol=0, atol=1e-10)
    for direction, half in ((0, slice(0, spec.width)), (1, slice(spec.width, None))):
        below = words if direction == 0 else words[::-1]
        for layer in range(spec.layers):
            at = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
            state, cell, made = np.zeros(spec.width), np.zeros(spec.cell_width), []
            for x in below:
                state, cell = authors_lstm_step(wide, at, x, state, cell, spec)
                made.append(state + x if layer else state)
            below = made
            expected = made[1:-1] if direction == 0 else made[::-1][1:-1]
            np.testing.assert_allclose(layers[layer + 1][:, half], expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mixed, layers.mean(0), rtol=0, atol=1e-6)


def test_authors_files_that_do_not_fit_are_refused(tmp_path):
    tensors, options = published(SMALL)
    for change, match in (
        ({"CNN/b_cnn_1": None}, "has no CNN/b_cnn_1"),
        ({"CNN/b_cnn_3": np.zeros(2)}, "CNN/b_cnn_3, which has no place"),
        ({"CNN_proj/W_proj": np.zeros(5)}, "CNN_proj/W_proj"),
        ({"char_embed": np.zeros((260, 3))}, r"\(260, 3\), not \(261, 3\)"),
    ):
        changed = {name: array for name, array in {**tensors, **change}.items() if array is not None}
        with pytest.raises(TensorMismatch, match=match):
            read_published_elmo(*write_published(tmp_path, changed, options))
    for section, key, value in (
        ("lstm", "use_skip_connections", False),
        ("lstm", "peepholes", True),
        ("char_cnn", "activation", "gelu"),
    ):
        changed = {**options, section: {**options[section], key: value}}
        with pytest.raises(UnknownArchitecture, match=key):
            read_published_elmo(*write_published(tmp_path, tensors, changed))
    paths = write_published(tmp_path, tensors, options)
    paths[1].write_bytes(b"no such format")
    with pytest.raises(CorruptCheckpoint, match="HDF5"):
        read_published_elmo(*paths)
