"""BERT beside `transformers`, on tiny random models of unusual shape, both ways."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from tests.support.kernels import CPU_KERNELS
from unmask.spec import FullAttention, NoPosition
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) * (1 + i % 3) for i in range(26))]

CONFIGS = {
    "three heads": {"hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 50},
    "one layer": {
        "hidden_size": 10,
        "num_attention_heads": 1,
        "intermediate_size": 7,
        "num_hidden_layers": 1,
    },
    "tanh gelu, one segment": {
        "hidden_size": 28,
        "num_attention_heads": 7,
        "intermediate_size": 33,
        "hidden_act": "gelu_new",
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "relu, four layers": {
        "hidden_size": 15,
        "num_attention_heads": 5,
        "intermediate_size": 61,
        "hidden_act": "relu",
        "num_hidden_layers": 4,
    },
}


def write(folder, **changes):
    """A random BERT in float64 whose norms and biases are random too; its model."""
    torch.manual_seed(3)
    config = BertConfig(
        **({"vocab_size": len(WORDS), "num_hidden_layers": 3, "max_position_embeddings": 33} | changes)
    )
    model = BertModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return model


def theirs(model, ids, segments):
    with torch.inference_mode():
        out = model(
            input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([segments]), output_hidden_states=True
        )
    return [state[0].numpy() for state in out.hidden_states], out.pooler_output[0].numpy()


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, len(WORDS), length).tolist() for length in (1, 33, 4, 17, 4)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "kernel",
    [
        kernel.capability.name
        for kernel in CPU_KERNELS
        if FullAttention in kernel.capability.patterns and NoPosition in kernel.capability.positions
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_loaded_from_transformers(name, kernel, dtype, tolerance, texts, tmp_path):
    model = write(tmp_path, **CONFIGS[name])
    checkpoint = read_checkpoint(Source(tmp_path, "tiny"))
    encoder = build(checkpoint, dtype=dtype, kernel=kernel)
    segments = [[i % model.config.type_vocab_size for i in range(len(text))] for text in texts]
    batch = PackedBatch.of_ids(texts, segments)
    heard = []

    def listen(place, layer, tensor):
        if place.value in ("embedded", "layer"):
            heard.append(tensor)

    with torch.inference_mode():
        x_TD = encoder.encode(batch, hook=listen)
        pooled_SD = encoder.pooler(x_TD, batch.layout).double().numpy()
    for sequence, (text, segment) in enumerate(zip(texts, segments, strict=True)):
        states, pooled = theirs(model, text, segment)
        assert len(states) == len(heard)
        for ours, expected in zip(heard, states, strict=True):
            got = ours[batch.layout.rows(sequence)].double().numpy()
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
        np.testing.assert_allclose(pooled_SD[sequence], pooled, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_for_transformers(name, texts, tmp_path):
    (tmp_path / "one").mkdir()
    model = write(tmp_path / "one", **CONFIGS[name])
    checkpoint = read_checkpoint(Source(tmp_path / "one", "tiny"))
    save(build(checkpoint, dtype="float64"), checkpoint, tmp_path / "two")
    back = AutoModel.from_pretrained(tmp_path / "two", dtype=torch.float64).eval()
    assert type(back) is BertModel
    for key, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[key], value), key
    states, pooled = theirs(back, texts[1], [0] * len(texts[1]))
    expected_states, expected_pooled = theirs(model, texts[1], [0] * len(texts[1]))
    np.testing.assert_allclose(states, expected_states, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pooled, expected_pooled, rtol=0, atol=1e-12)
    for key in ("hidden_act", "layer_norm_eps", "max_position_embeddings", "type_vocab_size"):
        assert getattr(back.config, key) == getattr(model.config, key)


def test_attention_equals_eager_attention(texts, tmp_path):
    from unmask.interpret import AttentionView
    from unmask.text import Tokenizer

    write(tmp_path, **CONFIGS["three heads"])
    model = BertModel.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="eager").eval()
    checkpoint = read_checkpoint(Source(tmp_path, "tiny"))
    encoding = Tokenizer.from_files(checkpoint.tokenizer.files).encode("a bb ccc d ee fff g")
    view = AttentionView(build(checkpoint, dtype="float64"), encoding)
    with torch.inference_mode():
        maps = model(
            input_ids=torch.tensor(encoding.ids[None]),
            token_type_ids=torch.tensor(encoding.token_type_ids[None]),
            output_attentions=True,
        ).attentions
    for layer, theirs_1HNN in enumerate(maps):
        for head in range(3):
            expected = theirs_1HNN[0, head].numpy()
            np.testing.assert_allclose(view.probabilities(layer, head), expected, rtol=0, atol=1e-7)
            part = view.probabilities(layer, head, slice(2, 5), slice(1, 9))
            np.testing.assert_array_equal(part, view.probabilities(layer, head)[2:5, 1:9])
            entropy = -(expected * np.log(expected)).sum(-1)
            np.testing.assert_allclose(view.entropy[layer, head], entropy, rtol=1e-6)
            np.testing.assert_allclose(view.attention_received[layer, head], expected.mean(0), rtol=1e-6)
            far = np.abs(np.subtract.outer(range(len(view)), range(len(view))))
            np.testing.assert_allclose(view.distance[layer, head], (expected * far).sum(-1), rtol=1e-6)
            edges = view.topk(layer, head, 2)
            np.testing.assert_array_equal(edges.keys, np.argsort(-expected, axis=1)[:, :2])
