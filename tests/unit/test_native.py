"""Any spec as a config.json: read back equal, saved and loaded with equal outputs, strict about the rest."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unmask
from tests.support.examples import examples
from tests.support.specs import SPECS, VOCABULARY, random_encoder
from tests.support.tiny import change_tensors
from unmask import spec as s
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch, UnknownArchitecture
from unmask.families import FAMILIES, family_of
from unmask.families.native import NATIVE, to_config
from unmask.spec.plain import from_plain, to_plain
from unmask.text import PackedBatch, Tokenizer
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder, with_tokenizer
from unmask.weights.write.save import save

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCABULARY - 5))]
FILES = {"vocab.txt": ("\n".join(WORDS) + "\n").encode()}
PUBLISHED = [
    pytest.param(spec, id=f"{one.name} {label}")
    for family in FAMILIES
    for one in family.published
    for label, spec in (("alone", one.spec), ("pretraining", one.pretraining))
    if spec is not None
]


def through_json(spec):
    config = json.loads(json.dumps(to_config(spec), allow_nan=False))
    assert family_of(config) is NATIVE
    reader = JsonSettings("config.json", config)
    again = NATIVE.read(reader, "published")
    assert reader.unread() <= {"architectures", "model_type"}
    return again


@pytest.mark.parametrize("spec", [*SPECS.values(), *PUBLISHED])
def test_a_spec_is_read_back_equal(spec):
    again = through_json(spec)
    assert again == spec
    assert repr(again) == repr(spec)  # 1 and 1.0 are equal, and not the same


# --- drawn specs -------------------------------------------------------------------------------------

SHARE = st.floats(0, 0.9)
POSITIVE = st.floats(1e-12, 1e6)
SIZE = st.integers(1, 40)
ACTIVATION = st.sampled_from(["gelu", "gelu_tanh", "relu", "silu", "tanh"])
EPS = st.floats(1e-12, 1.0)
NORM = st.builds(s.LayerNorm, EPS, st.booleans()) | st.builds(s.RMSNorm, EPS)
WINDOW = st.builds(s.SlidingWindow, st.integers(0, 99), st.integers(1, 9))
REACH = (
    st.just(s.FullAttention())
    | st.just(s.CausalAttention())
    | WINDOW
    | st.builds(s.SlidingWindowGlobal, WINDOW, st.booleans())
    | st.builds(s.BlockSparse, SIZE, st.integers(0, 4), st.none() | st.integers(0, 99), st.integers(64, 4096))
)
DISTANCES = st.builds(
    s.Disentangled,
    st.integers(9, 99),
    buckets=st.sampled_from([0, 4, 6]),
    content_to_position=st.booleans(),
    position_to_content=st.booleans(),
    table_norm=st.none() | NORM,
    table_dropout=SHARE,
    clamped=st.booleans(),
)
ROTARY = st.builds(s.Rotary, POSITIVE, st.none() | st.just(2), st.booleans(), POSITIVE)
FEEDFORWARD = st.builds(s.PlainFeedForward, SIZE, ACTIVATION, st.booleans()) | st.builds(
    s.GatedFeedForward, SIZE, ACTIVATION, st.booleans(), st.booleans()
)
SOFTMAX = st.builds(
    s.SoftmaxAttention,
    SIZE,
    SIZE.map(lambda n: 2 * n),
    REACH,
    st.just(s.NoPosition()) | st.just(s.Alibi()) | ROTARY,
    *(st.booleans(),) * 4,
    SHARE,
)
LINEAR = st.builds(
    s.LinearAttention, SIZE, SIZE, st.just("elu+1"), eps=SHARE, bias=st.booleans()
) | st.builds(s.LinearAttention, SIZE, SIZE, st.just("favor+"), SIZE, SHARE, st.booleans())
TRANSFORM = st.builds(s.Transform, SIZE, ACTIVATION, st.none() | NORM, st.booleans())
DOUBLE = st.builds(s.DoubleTransform, SIZE, SIZE, ACTIVATION, st.booleans())
CLASSIFIER = st.builds(
    s.Classifier,
    st.sampled_from(["next_sentence", "sentence_order", "replaced", "sequence", "tokens", "span"]),
    SIZE,
    st.sampled_from(["pooler", "first", "mean", "tokens", "tokens_and_first"]),
    st.none() | TRANSFORM | st.builds(s.ResidualTransform, SIZE, ACTIVATION, NORM),
    st.booleans(),
    st.none() | NORM,
    normalize=st.booleans(),
)
MASKED = st.builds(s.MaskedLM, st.none() | TRANSFORM | DOUBLE, st.just(False), st.booleans(), st.booleans())


@st.composite
def encoders(draw):
    first = st.booleans()
    layers = draw(
        st.lists(
            st.builds(s.Layer, SOFTMAX | LINEAR, FEEDFORWARD, NORM, first, dropout=SHARE),
            min_size=1,
            max_size=4,
        )
    )
    if draw(st.booleans()):
        distances = draw(DISTANCES)
        mixer = s.SoftmaxAttention(2, 4, position=distances)
        layers.append(s.Layer(mixer, s.PlainFeedForward(3, "relu"), s.RMSNorm(1e-6)))
    if draw(st.booleans()):
        layers += [layers[-1]] * draw(st.integers(1, 3))
    positions = st.none() | st.builds(
        s.LearnedPositions, st.integers(9, 99), st.integers(0, 8), st.booleans()
    )
    heads = draw(st.lists(MASKED | CLASSIFIER, max_size=3, unique_by=s.role_of))
    sharing = None
    if all(layer == layers[0] for layer in layers):
        sharing = draw(st.none() | st.just((0,) * len(layers)))
    return s.EncoderSpec(
        width=draw(SIZE),
        embedding=s.Embedding(
            draw(SIZE),
            draw(SIZE),
            draw(positions),
            draw(st.integers(0, 3)),
            draw(st.none() | NORM),
            s.Projection(draw(st.booleans()), draw(st.booleans())),
            draw(SHARE),
            draw(st.none() | SIZE),
        ),
        layers=tuple(layers),
        final_norm=draw(st.none() | NORM),
        sharing=sharing,
        convolution=draw(st.none() | st.builds(s.Convolution, st.just(3), NORM, ACTIVATION, dropout=SHARE)),
        pooler=draw(st.builds(s.Pooler, ACTIVATION)),
        heads=tuple(heads),
        trained_tokens=draw(st.none() | SIZE),
        init_std=draw(SHARE),
    )


@given(encoders())
@examples(100)
def test_a_drawn_spec_is_read_back_equal(spec):
    again = through_json(spec)
    assert again == spec
    assert repr(again) == repr(spec)


# --- a checkpoint of it ------------------------------------------------------------------------------

MIXED = s.EncoderSpec(
    width=12,
    embedding=s.Embedding(VOCABULARY, 12, segments=2, norm=s.RMSNorm(1e-6), padding_id=0),
    layers=tuple(
        s.Layer(mixer, feedforward, s.LayerNorm(1e-5), norm_first=True)
        for mixer, feedforward in (
            (s.SoftmaxAttention(3, 4, position=s.Alibi()), s.GatedFeedForward(10, "gelu")),
            (s.LinearAttention(2, 6, "favor+", random_features=5), s.PlainFeedForward(9, "relu")),
            (
                s.SoftmaxAttention(3, 4, pattern=s.SlidingWindow(2), position=s.Rotary(100.0)),
                s.GatedFeedForward(7, "silu"),
            ),
        )
    ),
    final_norm=s.LayerNorm(1e-5),
    pooler=s.Pooler("relu"),
    heads=(
        s.MaskedLM(s.Transform(12, "gelu", s.RMSNorm(1e-6))),
        s.Classifier("replaced", 1, "tokens", s.Transform(12, "gelu")),
        s.Classifier("sentence_order", 2, "pooler"),
    ),
)
"""What no published family has: three kinds of layer, and three heads at once."""


@pytest.mark.parametrize("spec", [*SPECS.values(), MIXED], ids=[*SPECS, "mixed"])
def test_a_saved_one_gives_equal_outputs(spec, tmp_path):
    checkpoint = new_checkpoint(to_config(spec), FILES)
    padded = replace(spec, embedding=replace(spec.embedding, padding_id=0))
    assert checkpoint.spec == padded
    encoder = random_encoder(checkpoint.spec, seed=3)
    save(encoder, checkpoint, tmp_path / "saved")

    again = read_checkpoint(Source(tmp_path / "saved", "saved"))
    assert again.spec == padded
    assert again.unread_config == ()
    loaded = build(again)
    batch = PackedBatch.of_ids([[2, 9, 40, 3], [2, 11, 60, 71, 33, 8, 3]])
    state, read = encoder.state_dict(), loaded.state_dict()
    assert set(again.tensors) == set(state) == set(read)
    assert all(torch.equal(read[name], state[name]) for name in state)
    near = {"rtol": 1e-5, "atol": 1e-6}  # where a file puts a matrix in memory may change last bits
    with torch.inference_mode():
        x_TD = encoder.encode(batch)
        torch.testing.assert_close(loaded.encode(batch), x_TD, **near)
        for head in spec.heads:
            ours, theirs = (one.logits(s.role_of(head), x_TD, batch.layout) for one in (encoder, loaded))
            torch.testing.assert_close(theirs, ours, **near)


def test_it_is_a_model_like_any_other(tmp_path):
    checkpoint = new_checkpoint(to_config(replace(MIXED, layers=MIXED.layers[::2])), FILES)
    save(new_encoder(checkpoint, seed=0), checkpoint, tmp_path / "saved")
    model = unmask.load(tmp_path / "saved")
    assert model.fill("w1 [MASK] w3", top_k=2)[0].predictions[0].piece in WORDS
    assert model.attention("w1 w2 w3").probabilities(layer=0, head=1).shape == (5, 5)
    assert model.embed("w1 w2", pooling="mean").shape == (12,)


def test_a_tensor_too_many_or_too_few_is_refused(tmp_path):
    checkpoint = new_checkpoint(to_config(MIXED), FILES)
    save(new_encoder(checkpoint), checkpoint, tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.update({"layers.3.attention.out.bias": torch.zeros(12)}))
    with pytest.raises(TensorMismatch, match=r"layers\.3\.attention\.out\.bias"):
        unmask.load(tmp_path)
    for name in ("layers.3.attention.out.bias", "layers.1.attention.projection"):
        change_tensors(tmp_path, lambda tensors, name=name: tensors.pop(name))
    with pytest.raises(TensorMismatch, match=r"missing, layers\.1\.attention\.projection"):
        unmask.load(tmp_path)


def test_its_vocabulary_is_fitted_to_a_tokenizer():
    small = Tokenizer.from_files({"vocab.txt": "\n".join(WORDS[:20]).encode()})
    config = with_tokenizer(to_config(MIXED), small, multiple=8)
    made = new_checkpoint(config, small.files)
    assert made.spec == replace(MIXED, embedding=replace(MIXED.embedding, vocabulary=24))


def test_what_is_equal_is_written_once():
    layers = to_plain(SPECS["alibi-shared"])["layers"]
    assert [one["times"] for one in layers] == [4]
    assert all("times" not in one for one in to_plain(MIXED)["layers"])


def test_a_file_from_before_a_second_kind_of_transform_is_read():
    head = s.MaskedLM(s.Transform(24, "gelu", s.LayerNorm(1e-12)))
    plain = to_plain(replace(SPECS["post-norm"], heads=(head,)))
    assert plain["heads"][0]["transform"].pop("kind") == "Transform"
    assert from_plain(s.EncoderSpec, plain, "it").heads == (head,)


def test_defaults_may_be_left_out():
    plain = {
        "width": 8,
        "embedding": {"vocabulary": 9, "width": 8},
        "layers": [
            {
                "times": 2,
                "mixer": {"kind": "SoftmaxAttention", "heads": 2, "head_width": 4},
                "feedforward": {"kind": "PlainFeedForward", "width": 5, "activation": "gelu"},
                "norm": {"kind": "RMSNorm", "eps": 1},
            }
        ],
    }
    layer = s.Layer(s.SoftmaxAttention(2, 4), s.PlainFeedForward(5, "gelu"), s.RMSNorm(1.0))
    wanted = s.EncoderSpec(8, s.Embedding(9, 8), (layer, layer))
    found = from_plain(s.EncoderSpec, plain, "encoder")
    assert repr(found) == repr(wanted)


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(plain):
        for key in path:
            plain = plain[key]
        plain[last] = value

    return change


def without(*path):
    def change(plain):
        *way, last = path
        for key in way:
            plain = plain[key]
        del plain[last]

    return change


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (put("depth", 3), UnknownArchitecture, r"encoder\.depth is not a field of EncoderSpec"),
        (put("width", "12"), CorruptCheckpoint, r"encoder\.width is '12'; it must be a whole number"),
        (put("width", True), CorruptCheckpoint, r"encoder\.width is True"),
        (put("width", 12.0), CorruptCheckpoint, r"encoder\.width is 12\.0; it must be a whole number"),
        (put("width", None), CorruptCheckpoint, r"encoder\.width is None"),
        (put("init_std", float("nan")), CorruptCheckpoint, r"encoder\.init_std is nan; it must be a number"),
        (put("init_std", float("inf")), CorruptCheckpoint, r"encoder\.init_std is inf"),
        (put("layers", {}), CorruptCheckpoint, r"encoder\.layers is \{\}; it must be a list"),
        (put("layers", [3]), CorruptCheckpoint, r"encoder\.layers\[0\] is 3; it must be an object"),
        (put("layers", []), CorruptCheckpoint, r"encoder: number of layers is 0"),
        (put("layers", 1, "times", 0), CorruptCheckpoint, r"encoder\.layers\[1\]\.times is 0"),
        (put("layers", 1, "times", 10**9), CorruptCheckpoint, r"encoder\.layers\[1\]\.times is 1000000000"),
        (
            put("layers", 1, "norm_first", 1),
            CorruptCheckpoint,
            r"layers\[1\]\.norm_first is 1; .* true or false",
        ),
        (
            put("layers", 0, "mixer", "kind", "Softmax"),
            UnknownArchitecture,
            r"layers\[0\]\.mixer\.kind is 'Softm",
        ),
        (
            without("layers", 0, "mixer", "kind"),
            UnknownArchitecture,
            r"mixer\.kind is None; it can be Softmax",
        ),
        (
            put("layers", 0, "mixer", "heads", 0),
            CorruptCheckpoint,
            r"encoder\.layers\[0\]\.mixer: heads is 0",
        ),
        (without("layers", 0, "mixer", "heads"), CorruptCheckpoint, r"mixer\.heads is missing"),
        (
            put("layers", 2, "mixer", "position", "kind", "EncoderSpec"),
            UnknownArchitecture,
            r"position\.kind",
        ),
        (
            put("layers", 2, "mixer", "position", "slope", 1),
            UnknownArchitecture,
            r"slope is not a field of Rotary",
        ),
        (put("embedding", "kind", "Embedding"), UnknownArchitecture, r"embedding\.kind is not a field"),
        (put("layers", 0, "feedforward", "activation", "mish"), UnknownArchitecture, r"activation is 'mish'"),
        (put("sharing", [0, "a", 2]), CorruptCheckpoint, r"sharing\[1\] is 'a'"),
        (put("sharing", [0, 0, 0]), CorruptCheckpoint, r"encoder: layers that share weights 0 differ"),
        (put("heads", 0, "transform", "width", 11), CorruptCheckpoint, r"shares its matrix"),
        (put("heads", 1, "role", "masked"), UnknownArchitecture, r"heads\[1\]\.role is 'masked'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change, error, says):
    config = copy.deepcopy(json.loads(json.dumps(to_config(MIXED))))
    change(config["encoder"])
    with pytest.raises(error, match=says):
        NATIVE.read(JsonSettings("config.json", config), "published")


def test_a_config_without_a_spec_is_refused():
    with pytest.raises(CorruptCheckpoint, match="has no encoder"):
        NATIVE.read(JsonSettings("config.json", {"model_type": "unmask"}), "published")


def test_a_number_that_json_cannot_say_is_not_written():
    with pytest.raises(InvalidRequest, match="holds inf"):
        to_plain(replace(MIXED, init_std=float("inf")))


def test_another_class_than_its_heads_is_refused():
    config = {**to_config(MIXED), "architectures": ["UnmaskForMaskedLM"]}
    with pytest.raises(UnknownArchitecture, match="UnmaskModel"):
        new_checkpoint(config, FILES)
    del config["architectures"]
    assert new_checkpoint(config, FILES).spec == MIXED
