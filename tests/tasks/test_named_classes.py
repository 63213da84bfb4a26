"""Classes that are named with the text, by checkpoints of GLiClass.

`EXPECTED` was computed by the package gliclass 0.1.21 in float64, one text a call, on the folders that
`write_gliclass` writes.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tokenizers_built import write_word_tokenizer
from unmask.base.json_settings import JsonSettings
from unmask.bulk import BatchClassifier, BatchPredictor
from unmask.errors import (
    CheckpointError,
    CorruptCheckpoint,
    EmptyText,
    InvalidRequest,
    InvalidText,
    TensorMismatch,
    TextTooLong,
    UnknownArchitecture,
)
from unmask.families import family_of
from unmask.spec import ClassHead
from unmask.spec.shapes import tensor_shapes
from unmask.tasks import zero_shot
from unmask.tasks.label_network import pooled
from unmask.text.windows import windows
from unmask.weights.heads.label_files import (
    CLASS_ENCODER,
    OF_CLASSES,
    POOLINGS,
    class_shapes,
    read_class_config,
    with_segments,
)
from unmask.weights.tensor_report import moves

PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<<LABEL>>",
    "<<SEP>>",
    "the",
    "bank",
    "closed",
    "at",
    "five",
)
PIECES += (".", "money", "sport", "a", "film", "##s", "##b", ",", "-", "was", "dull", "big", "day")
TEXTS = ["The bank closed at five.", "a dull, dull film - big", "films"]
LABELS = ["money", "a big sport", "film day"]
BERT = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "vocab_size": len(PIECES),
    "pad_token_id": 0,
}
SHARED = {key: BERT[key] for key in BERT if key not in ("model_type", "type_vocab_size")}
DEBERTA = SHARED | {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
MODERN = SHARED | {"model_type": "modernbert", "local_attention": 4, "num_hidden_layers": 3}
CASES = {
    "bert": {},
    "text first": {"prompt_first": False, "pooling_strategy": "avg", "class_token_pooling": "average"},
    "names": {"embed_class_token": False, "hidden_size": 6, "projector_hidden_act": "relu"},
    "segments": {
        "encoder_config": DEBERTA,
        "use_segment_embeddings": True,
        "class_token_pooling": "average",
        "normalize_features": True,
    },
    "segments, text first": {
        "encoder_config": MODERN,
        "use_segment_embeddings": True,
        "prompt_first": False,
        "extract_text_features": True,
        "class_token_pooling": "average",
        "embed_class_token": False,
    },
    "deberta": {"encoder_config": DEBERTA, "scorer_type": "weighted-dot", "pooling_strategy": "last"},
    "modernbert": {"encoder_config": MODERN, "scorer_type": "mlp", "extract_text_features": True},
    "lstm": {
        "encoder_config": MODERN,
        "use_lstm": True,
        "extract_text_features": True,
        "pooling_strategy": "last",
    },
    **{f"{name} of all": {"pooling_strategy": name} for name in POOLINGS},
    **{
        f"{name} of the text": {"pooling_strategy": name, "extract_text_features": True}
        for name in POOLINGS
        if name != "last"
    },
}


EXPECTED = {
    "bert": [[-22.7157, -24.1879, -23.1684], [-21.5275, -23.3697, -22.1023], [-21.3216, -23.069, -21.9841]],
    "text first": [
        [-21.7489, -18.3839, -19.8993],
        [-19.4375, -19.0454, -19.7677],
        [-23.1226, -19.5885, -19.3299],
    ],
    "names": [[-6.41101, -6.39396, -6.40864], [-5.92856, -5.9151, -5.92808], [-6.24095, -6.21702, -6.23968]],
    "segments": [[-3.7927, -3.73976, -3.74379], [-3.821, -3.76427, -3.7606], [-3.80834, -3.75368, -3.72658]],
    "segments, text first": [
        [5.91664, 5.93046, 5.90586],
        [5.99285, 6.05323, 5.98061],
        [5.81704, 5.96632, 6.11706],
    ],
    "deberta": [
        [-55.9831, -55.0787, -56.2986],
        [-56.1936, -55.1093, -55.6801],
        [-55.678, -54.4402, -55.4206],
    ],
    "modernbert": [
        [-175.043, -176.71, -177.518],
        [-173.679, -176.943, -176.871],
        [-170.391, -168.325, -169.454],
    ],
    "lstm": [[2.77532, 2.951, 2.98416], [2.8587, 3.04866, 3.04379], [3.11768, 3.0482, 3.0985]],
    "first of all": [
        [-22.7157, -24.1879, -23.1684],
        [-21.5275, -23.3697, -22.1023],
        [-21.3216, -23.069, -21.9841],
    ],
    "last of all": [
        [-23.0183, -24.4746, -23.4665],
        [-21.6066, -23.4201, -22.1732],
        [-21.4304, -23.1432, -22.0807],
    ],
    "avg of all": [
        [-22.9415, -24.4051, -23.3918],
        [-21.5711, -23.3935, -22.1403],
        [-21.2823, -23.0014, -21.9346],
    ],
    "max of all": [
        [-21.0375, -22.3597, -21.4443],
        [-20.2119, -21.8944, -20.7379],
        [-20.0518, -21.641, -20.6555],
    ],
    "sum of all": [
        [-344.015, -363.34, -349.971],
        [-338.379, -363.608, -346.292],
        [-242.959, -259.59, -249.319],
    ],
    "rms of all": [[8.67441, 9.62675, 8.96617], [8.35846, 9.53698, 8.71329], [8.65739, 9.89844, 9.1105]],
    "abs_max of all": [[12.3974, 13.5481, 12.7504], [11.8801, 13.3016, 12.3101], [12.1427, 13.6384, 12.6903]],
    "abs_avg of all": [[7.95344, 8.86977, 8.23401], [7.85638, 9.00154, 8.20081], [8.24399, 9.45615, 8.68634]],
    "first of the text": [
        [-23.0294, -24.4823, -23.4767],
        [-21.7368, -23.5554, -22.3052],
        [-21.4311, -23.1442, -22.0815],
    ],
    "avg of the text": [
        [-11.9976, -12.8219, -12.2511],
        [-11.8864, -12.9598, -12.2207],
        [-8.67337, -9.51195, -8.98873],
    ],
    "max of the text": [
        [-6.62697, -6.9727, -6.73014],
        [-6.42096, -6.86217, -6.55808],
        [-6.45809, -6.89782, -6.6258],
    ],
    "sum of the text": [
        [-157.798, -166.542, -160.495],
        [-162.935, -175.092, -166.749],
        [-72.0629, -77.1528, -74.0071],
    ],
    "rms of the text": [
        [3.27161, 3.69169, 3.40042],
        [3.68181, 4.26096, 3.85444],
        [1.10339, 1.35808, 1.19319],
    ],
    "abs_max of the text": [
        [9.24603, 10.2172, 9.54366],
        [11.6073, 13.0119, 12.032],
        [9.54184, 10.8433, 10.0172],
    ],
    "abs_avg of the text": [
        [-0.180703, -0.116355, -0.16063],
        [0.210764, 0.343165, 0.247664],
        [-2.68331, -2.95061, -2.78586],
    ],
}


def write_gliclass(folder, **changes):
    """A folder as gliclass writes it, with weights of a fixed seed; returns it."""
    config = {"model_type": "GLiClass", "architecture_type": "uni-encoder", "encoder_config": BERT}
    config |= {"encoder_model_name": "none", "hidden_size": 8, "class_token_index": 5, "text_token_index": 6}
    config |= {"prompt_first": True, "vocab_size": len(PIECES), "scorer_type": "simple"} | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_word_tokenizer(folder, PIECES, special=7)
    save_file(_weights(config), folder / "model.safetensors")
    return folder


def _weights(config):
    settings, head = read_class_config(JsonSettings("config.json", config))
    family = family_of(settings.values)
    family, spec = with_segments(family, family.read(settings, "published"), head)
    shapes, named = tensor_shapes(spec), {}
    for move in moves(family.tensor_map_of(spec), shapes):
        first, *rest = shapes[move.ours]
        for name, share in zip(move.theirs, move.rows_of(first, spec), strict=True):
            prefix = OF_CLASSES if name.startswith("segment_embeddings") else CLASS_ENCODER
            named[prefix + name] = (share, *rest)
    named |= {OF_CLASSES + name: shape for name, shape in class_shapes(head, spec.width).items()}
    if config["encoder_config"] is BERT:
        named |= {f"{CLASS_ENCODER}pooler.dense.weight": (8, 8), f"{CLASS_ENCODER}pooler.dense.bias": (8,)}
    rng = np.random.default_rng(7)
    shapes = {name: named[name] for name in sorted(named) if named[name]}
    weights = {name: (rng.normal(size=shape) * 0.7).astype(np.float32) for name, shape in shapes.items()}
    return weights | {f"{OF_CLASSES}logit_scale": np.asarray(9, dtype=np.float32)}


def logits_of(model, texts, labels):
    ready = zero_shot.prepare(model.reader, texts, labels)
    return ready.run(model.engine, encodings=ready.encodings, name=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_gliclass(tmp_path_factory.mktemp("gliclass") / "model", pooling_strategy="avg")


@pytest.fixture
def model(folder):
    return unmask.load(folder)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_gliclass(tmp_path, case):
    model = unmask.load(write_gliclass(tmp_path / "model", **CASES[case]), dtype="float64")
    assert np.array(logits_of(model, TEXTS, LABELS)) == pytest.approx(np.array(EXPECTED[case]), rel=1e-5)
    found = model.classify(TEXTS, labels=LABELS, multi_label=True, threshold=0)
    for result, row in zip(found, EXPECTED[case], strict=True):
        assert list(result.scores) == LABELS
        assert [*result.scores.values()] == pytest.approx(1 / (1 + np.exp(-np.array(row))), rel=1e-4)
        assert result.labels == tuple(LABELS)
        assert result.label == LABELS[int(np.argmax(row))]
    single = model.classify(TEXTS[0], labels=LABELS)
    shares = np.exp(np.array(EXPECTED[case][0]) - max(EXPECTED[case][0]))
    assert [*single.scores.values()] == pytest.approx(shares / shares.sum(), rel=2e-3)
    assert single.labels == (single.label,)


@pytest.mark.parametrize("case", ["bert", "segments", "lstm", "segments, text first"])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_both_backends_give_the_same_in_float32(tmp_path, case, backend):
    model = unmask.load(write_gliclass(tmp_path / "model", **CASES[case]), backend=backend)
    assert np.array(logits_of(model, TEXTS, LABELS)) == pytest.approx(np.array(EXPECTED[case]), rel=1e-4)


def test_an_array_is_pooled_by_its_numbers():
    states = np.array([[1.0, -4.0], [3.0, 2.0]])
    expected = {
        "first": ([1, -4], [1, -4]),
        "last": ([3, 2], [3, 2]),
        "mean": ([2, -1], [1, -0.5]),
        "max": ([3, 2], [3, 2]),
        "sum": ([4, -2], [4, -2]),
        "root_mean_square": ([5**0.5, 10**0.5], [2.5**0.5, 5**0.5]),
        "max_size": ([3, 4], [3, 4]),
        "mean_size": ([2, 3], [1, 1.5]),
    }
    assert set(expected) == set(POOLINGS.values())
    for pooling, (full, half) in expected.items():
        assert pooled(states, pooling) == pytest.approx(full)
        assert pooled(states, pooling, 2) == pytest.approx(half)
    assert pooled(-states, "max", 1).tolist() == [0, 4]


def test_the_method_for_entailment_reads_such_a_head_too(model):
    assert model.zero_shot(TEXTS, LABELS) == model.classify(TEXTS, labels=LABELS)
    with pytest.raises(InvalidRequest, match="hypothesis_template is given"):
        model.zero_shot(TEXTS, LABELS, hypothesis_template="About {}.")


def test_a_text_and_its_labels_do_not_depend_on_the_others(model):
    alone = [model.classify(text, labels=LABELS) for text in TEXTS]
    together = model.classify(TEXTS * 5, labels=LABELS)
    for one, other in zip(alone * 5, together, strict=True):
        assert [*one.scores.values()] == pytest.approx([*other.scores.values()], rel=1e-4)


@pytest.mark.parametrize("first", [True, False])
def test_a_long_text_is_read_in_windows(tmp_path, first):
    model = unmask.load(write_gliclass(tmp_path / "model", prompt_first=first))
    long = " ".join(TEXTS * 5)
    found = model.classify(long, labels=LABELS, multi_label=True)
    assert found.windows > 1
    assert found.truncated_tokens == 0
    ready = zero_shot.prepare(model.reader, long, LABELS, multi_label=True)
    assert all(len(it) <= 40 for it in ready.encodings)
    names = ready.encodings[0].names
    for window in ready.encodings:
        ids = window.encoding.ids
        assert ids[: len(names.before)].tolist() == names.before.tolist()
        assert ids[len(ids) - len(names.after) :].tolist() == names.after.tolist()
        assert ids[names.markers].tolist() == [5] * len(LABELS)
    rows = ready.run(model.engine, encodings=ready.encodings, name=str)
    p = 1 / (1 + np.exp(-np.array(rows, dtype=np.float64)))
    scores = np.array([*found.scores.values()])
    read = windows(ready.texts[0], 40)
    owned = [(window.owned & ~window.encoding.special).sum() for window in read]
    assert len(set(owned)) > 1
    assert sum(owned) == len(ready.texts[0]) - len(names)
    assert scores == pytest.approx(np.array(owned) / sum(owned) @ p, rel=1e-5)
    with pytest.raises(
        TextTooLong, match=r"the text has .* tokens and the model reads at most 40; read it in"
    ):
        model.classify(long, labels=LABELS, truncation="error")
    cut = model.classify(long, labels=LABELS, truncation="end")
    assert cut.windows == 1
    assert cut.truncated_tokens == found.tokens_read - 40
    tokens = model.tokenizer.encode(long)
    kept = long[: tokens.offsets[40 - len(names)][1]]
    assert cut.scores == pytest.approx(model.classify(kept, labels=LABELS).scores, rel=1e-5)


@pytest.mark.parametrize("first", [True, False])
def test_signs_typed_in_a_text_do_not_move_the_labels(tmp_path, first):
    folder = write_gliclass(tmp_path / "model", prompt_first=first)
    text = "the <<LABEL>> bank <<SEP>> closed"
    parsed, plain = unmask.load(folder), unmask.load(folder, special_tokens="text")
    for model, ids in ((parsed, [7, 5, 8, 6, 9]), (plain, None)):
        (window,) = zero_shot.prepare(model.reader, text, LABELS).encodings
        between = window.encoding.ids[len(window.names.before) : -len(window.names.after)].tolist()
        assert between == ids if ids else {5, 6}.isdisjoint(between)
        assert window.encoding.ids[window.names.markers].tolist() == [5] * 3
    assert plain.classify(TEXTS, labels=LABELS) == parsed.classify(TEXTS, labels=LABELS)
    everything = " ".join(PIECES[:7])
    with pytest.raises(InvalidText, match="the text holds every special token"):
        plain.classify(everything, labels=LABELS)


def test_a_mean_over_the_last_name_ends_at_a_typed_sign(tmp_path):
    """As gliclass counts; 0.1.21 gives these logits."""
    folder = write_gliclass(tmp_path / "model", class_token_pooling="average")
    model = unmask.load(folder, dtype="float64")
    expected = [-20.1866, -20.5738, -20.0714]
    text = "the <<LABEL>> bank closed"
    assert logits_of(model, [text], LABELS)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([], "labels is empty; give at least one label"),
        (["money", "money"], "labels has 'money' twice"),
        (["money", " "], "labels has ' '; give each label as a text"),
        ([3], "labels has 3; give each label as a text"),
        ("money", "labels"),
        (["money", "\x00"], "has no token"),
        (["\x00", "money"], "has no token"),
        (
            ["money", "a<<LABEL>>b"],
            "the label 'a<<LABEL>>b' contains <<LABEL>>, which the model reads as a sign",
        ),
        (["money", "[SEP]"], "the label '\\[SEP\\]' contains \\[SEP\\]"),
        (["<<SEP>>", "money"], "contains <<SEP>>"),
        (
            [f"sport {number}" for number in range(10_000)],
            "10,000 labels and special tokens take .* of the 40",
        ),
    ],
)
def test_labels_that_cannot_be_read_are_refused(model, labels, match):
    with pytest.raises(InvalidRequest, match=match):
        model.classify(TEXTS, labels=labels)


def test_labels_that_leave_no_place_are_refused(model):
    assert model.classify("money", labels=["a " * 35]).windows == 1
    with pytest.raises(InvalidRequest, match="1 label and special tokens take 40 of the 40 tokens"):
        model.classify("money", labels=["a " * 36])


def test_keys_that_are_missing_have_gliclass_defaults():
    config = {"model_type": "GLiClass", "encoder_config": BERT}
    _, head = read_class_config(JsonSettings("config.json", config))
    assert head == ClassHead(8)


def test_a_head_whose_file_has_changed_is_not_saved(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    model = unmask.load(copy)
    model.trainable_encoder()
    with (copy / "model.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(CheckpointError, match="changed"):
        model.save(tmp_path / "saved")


def test_thousands_of_labels_are_read_where_there_is_room(tmp_path):
    path = (
        write_gliclass(tmp_path / "model", encoder_config=MODERN | {"num_hidden_layers": 1})
        / "tokenizer_config.json"
    )
    model = unmask.load(path.parent)
    labels = [f"{'a ' * (number % 3)}{number}" for number in range(3_000)]
    found = model.classify("money", labels=labels)
    assert list(found.scores) == labels
    assert sum(found.scores.values()) == pytest.approx(1)


def test_other_bad_input_is_refused(model):
    with pytest.raises(EmptyText, match="text 2 has no words"):
        model.classify(["money", " "], labels=LABELS)
    with pytest.raises(EmptyText, match="the text has no words"):
        model.classify("", labels=LABELS)
    with pytest.raises(InvalidText, match="lone surrogate"):
        model.classify("money", labels=["a\ud800"])
    with pytest.raises(InvalidText, match="text 1 is of type int"):
        model.classify([3], labels=LABELS)
    with pytest.raises(InvalidRequest, match="classifies by labels that are named with the text; give"):
        model.classify("money")
    with pytest.raises(InvalidRequest, match="pairs and labels are both given"):
        model.classify("money", "sport", labels=LABELS)
    with pytest.raises(InvalidRequest, match="threshold"):
        model.classify("money", labels=LABELS, threshold=2)
    with pytest.raises(InvalidRequest, match="overlap_tokens is 30"):
        model.classify(" ".join(TEXTS * 5), labels=LABELS, overlap_tokens=30)
    assert model.classify([], labels=LABELS) == []


def test_labels_are_for_heads_that_read_them():
    default = unmask.load("default")
    with pytest.raises(InvalidRequest, match="has no sequence head"):
        default.classify("money", labels=LABELS)
    with pytest.raises(InvalidRequest, match="multi_label is for labels that you name; give labels"):
        default.classify("money", multi_label=True)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"architecture_type": "bi-encoder"},
            "architecture_type is 'bi-encoder'; only GLiClass models of type",
        ),
        ({"architecture_type": "decoder-kv"}, "architecture_type is 'decoder-kv'"),
        ({"scorer_type": "hopfield"}, "scorer_type is 'hopfield'; only"),
        ({"pooling_strategy": "pass"}, "pooling_strategy is 'pass'; only"),
        ({"squeeze_layers": True}, "squeeze_layers is True; only False is built"),
        ({"use_calibrator": True}, "use_calibrator is True; only False is built"),
        ({"encoder_layer_id": 3}, "encoder_layer_id is 3; only -1 is built"),
        ({"use_segment_embeddings": True}, "its encoder has token types already"),
        ({"pooling_strategy": "last", "extract_text_features": True}, "holds nothing"),
        ({"encoder_config": {"model_type": "llama"}}, "model_type is 'llama', which is not built"),
    ],
)
def test_what_is_not_built_is_refused_by_name(folder, tmp_path, changes, match):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnknownArchitecture, match=match):
        unmask.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"hidden_size": 6}, TensorMismatch, r"linear_1.weight of .* has shape"),
        ({"hidden_size": 0}, CorruptCheckpoint, "hidden_size"),
        ({"hidden_size": 6, "use_lstm": True}, UnknownArchitecture, "they must be equal"),
        ({"use_lstm": True}, TensorMismatch, "lacks the tensor lstm"),
        (
            {"class_token_index": 4},
            CorruptCheckpoint,
            "index is 4, and its tokenizer gives <<LABEL>> the id 5",
        ),
        ({"text_token_index": 4, "extract_text_features": True}, CorruptCheckpoint, "text_token_index is 4"),
        ({"prompt_first": "yes"}, CorruptCheckpoint, "prompt_first"),
    ],
)
def test_files_that_do_not_fit_are_refused(folder, tmp_path, changes, error, match):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(error, match=match):
        unmask.load(tmp_path).classify("money", labels=LABELS)


def test_a_tokenizer_without_the_signs_is_refused(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"<<LABEL>>", b"<<OTHER>>"))
    with pytest.raises(CorruptCheckpoint, match="has no token <<LABEL>>, which stands beside labels"):
        unmask.load(tmp_path).classify("money", labels=LABELS)


@pytest.mark.parametrize(
    "case", ["bert", "segments", "segments, text first", "deberta", "modernbert", "lstm"]
)
def test_a_saved_copy_gives_the_same_scores(tmp_path, case):
    loaded = unmask.load(write_gliclass(tmp_path / "model", max_num_classes=7, **CASES[case]))
    loaded.save(tmp_path / "copy")
    again = unmask.load(tmp_path / "copy")
    assert again.classify(TEXTS, labels=LABELS) == loaded.classify(TEXTS, labels=LABELS)
    written = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert (written["model_type"], written["max_num_classes"]) == ("GLiClass", 7)
    kept = {"class_token_index": 5, "text_token_index": 6, "vocab_size": len(PIECES), **CASES[case]}
    for key, value in kept.items():
        if key != "encoder_config":
            assert written[key] == value, key
    assert written["encoder_config"].get("type_vocab_size", 0) == (2 if case == "bert" else 0)
    assert written["encoder_config"]["model_type"] == kept.get("encoder_config", BERT)["model_type"]


def test_the_command_classifies_by_named_labels(folder, model, tmp_path):
    ran = run_here("classify", "-m", folder, "--labels", "money, big sport", "--json", TEXTS[0])
    assert ran.code == 0, ran.err
    expected = model.classify(TEXTS[0], labels=["money", "big sport"])
    assert json.loads(ran.out)["scores"] == pytest.approx(dict(expected.scores), rel=1e-5)
    older = run_here("classify", "-m", folder, "--candidate-labels", "money, big sport", "--json", TEXTS[0])
    assert older.out == ran.out
    several = run_here(
        "classify", "-m", folder, "--labels", "money,sport", "--multi-label", "--threshold", "0", TEXTS[0]
    )
    assert several.out.startswith("money, sport\t")
    quoted = run_here("classify", "-m", folder, "--labels", '"money, wealth",sport', "--json", TEXTS[0])
    assert [*json.loads(quoted.out)["scores"]] == ["money, wealth", "sport"]
    assert_one_sentence(run_here("classify", "-m", folder, TEXTS[0]), "give labels")
    assert_one_sentence(run_here("classify", "-m", folder, "--labels", "a,a", TEXTS[0]), "'a' twice")
    assert_one_sentence(run_here("classify", "-m", folder, "--multi-label", TEXTS[0]), "without --labels")


def test_a_batch_is_classified_by_named_labels(folder, model):
    task = BatchClassifier(model=str(folder), candidate_labels=("money", "sport"))
    rows = task({"text": TEXTS})
    assert [*rows["label"]] == [found.label for found in model.classify(TEXTS, labels=["money", "sport"])]
    predictor = BatchPredictor(model=str(folder), method="classify", options={"labels": ("money", "sport")})
    assert [*predictor({"text": TEXTS})["label"]] == [*rows["label"]]
    assert predictor.map_keys() == task.map_keys() == {"scores": ("money", "sport")}


def test_a_server_classifies_by_named_labels(model):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    from starlette.testclient import TestClient

    from unmask.serve import make_app

    app = make_app({"zero": model})
    options = {"labels": LABELS, "threshold": 0.4, "multi_label": True}
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        answer = client.post("/v1/classify", json={"texts": TEXTS, **options})
        refused = client.post("/v1/classify", json={"texts": TEXTS})
        wrong = client.post("/v1/classify", json={"texts": TEXTS, "labels": ["money", "money"]})
    app.state.service.close()
    expected = model.classify(TEXTS, **options)
    assert [row["scores"] for row in answer.json()["results"]] == [
        pytest.approx(dict(found.scores), rel=1e-4) for found in expected
    ]
    assert [tuple(row["labels"]) for row in answer.json()["results"]] == [found.labels for found in expected]
    assert (refused.status_code, wrong.status_code) == (400, 400)
    assert "give labels" in refused.text
    assert "'money' twice" in wrong.text
