"""MPNet beside its authors' rule, `transformers` and `sentence-transformers`, on tiny random models."""

import math

import numpy as np
import pytest
import torch
import transformers

import unmask
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.families import family_of
from unmask.kernels.distances import bucket_rows
from unmask.spec import RelativePositionBias
from unmask.text import PackedBatch, Tokenizer
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

LETTERS = [chr(97 + i) * (1 + i % 3) for i in range(26)]
WORDS = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, *(f"##{word}" for word in LETTERS), "[UNK]", "<mask>"]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 15,
    "num_attention_heads": 5,
    "intermediate_size": 22,
    "num_hidden_layers": 3,
    "max_position_embeddings": 202,
}


def write(folder, kind="MPNetForMaskedLM", **changes):
    """A random model in float64 whose norms and biases are random too."""
    torch.manual_seed(3)
    model = getattr(transformers, kind)(transformers.MPNetConfig(**SIZES | changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return model


def test_buckets_are_theirs():
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distance = torch.arange(-3000, 3001)
    assert torch.equal(
        bucket_rows(-distance, RelativePositionBias()), MPNetEncoder.relative_position_bucket(distance)
    )
    few = MPNetEncoder.relative_position_bucket(distance, num_buckets=12, max_distance=50)
    assert torch.equal(bucket_rows(-distance, RelativePositionBias(12, 50)), few)
    assert set(few.tolist()) == set(range(12)) - {6}  # a key at distance 0 is not after its query


def test_gradients_of_training_are_theirs(tmp_path):
    model = write(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = build(read_checkpoint(Source(tmp_path, "tiny"), "published"), dtype="float64").train()
    draw, mean = np.random.default_rng(0), torch.nn.functional.cross_entropy
    texts = [draw.integers(4, len(WORDS), length).tolist() for length in (7, 150, 7, 33)]
    labels = [torch.from_numpy(draw.integers(0, len(WORDS), len(text))) for text in texts]
    model.train()
    theirs = torch.cat([model(torch.tensor([text])).logits[0] for text in texts])
    their_loss = mean(theirs, torch.cat(labels))
    their_loss.backward()
    batch = PackedBatch.of_ids(texts, None)
    loss = mean(encoder.logits("masked", encoder.encode(batch), batch.layout), torch.cat(labels))
    loss.backward()
    assert math.isclose(float(loss.detach()), float(their_loss.detach()), abs_tol=1e-12)
    checked = {
        "distances.table.weight": "mpnet.encoder.relative_attention_bias.weight",
        "embedding.words.weight": "mpnet.embeddings.word_embeddings.weight",
        "embedding.positions.weight": "mpnet.embeddings.position_embeddings.weight",
        "layers.0.attention.out.weight": "mpnet.encoder.layer.0.attention.attn.o.weight",
        "layers.2.feedforward.inner.bias": "mpnet.encoder.layer.2.intermediate.dense.bias",
        "heads.masked.bias": "lm_head.bias",
    }
    ours, their = dict(encoder.named_parameters()), dict(model.named_parameters())
    for name, other in checked.items():
        assert their[other].grad.abs().max() > 1e-4, name
        torch.testing.assert_close(ours[name].grad, their[other].grad, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_embeddings_are_those_of_sentence_transformers(mode, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    write(tmp_path / "body", "MPNetModel")
    transformers.MPNetTokenizer(str(tmp_path / "body" / "vocab.txt")).save_pretrained(tmp_path / "body")
    body = Transformer(str(tmp_path / "body"), max_seq_length=40)
    modules = [body, Pooling(SIZES["hidden_size"], pooling_mode=mode), Normalize()]
    reference = SentenceTransformer(modules=modules, device="cpu")
    reference.save(str(tmp_path / "all"))
    texts = ["a bb ccc", "A", "d ee fff g hh iii " * 5, "zz <mask> yxx"]
    model = unmask.load(tmp_path / "all", dtype="float64")
    expected = reference.encode(texts)
    np.testing.assert_allclose(model.embed(texts), expected, rtol=0, atol=1e-6)
    assert np.abs(expected[0] - expected[2]).max() > 1e-3


TEXTS = ["a bb ccc", "A bbccc", "a  <mask> bb", "§ a", "  a", "a</s>b", "a [UNK] <unk> b", "a,b"]


def test_texts_are_read_from_vocab_txt_as_transformers_reads_them(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    theirs = transformers.MPNetTokenizer(str(tmp_path / "vocab.txt"))
    ours = Tokenizer.from_files({"vocab.txt": (tmp_path / "vocab.txt").read_bytes()}, "mpnet")
    assert ours.description.endswith("read as MPNet's")
    for text in TEXTS:
        assert ours.encode(text).ids.tolist() == theirs(text)["input_ids"], text
        pair = ours.encode(text, "bb ccc")
        assert pair.ids.tolist() == theirs(text, "bb ccc")["input_ids"], text
        assert not pair.token_type_ids.any()
    theirs.save_pretrained(tmp_path / "saved")
    names = ("tokenizer.json", "tokenizer_config.json")
    again = Tokenizer.from_files({name: (tmp_path / "saved" / name).read_bytes() for name in names}, "mpnet")
    for text in TEXTS:
        assert again.encode(text).ids.tolist() == ours.encode(text).ids.tolist()
    assert again.special_tokens == ours.special_tokens


def test_masks_are_filled_as_transformers_fills_them(tmp_path):
    model = write(tmp_path)
    theirs = transformers.MPNetTokenizer(str(tmp_path / "vocab.txt"))
    with torch.inference_mode():
        ids = theirs("a <mask> ccc", return_tensors="pt")["input_ids"]
        p = model(ids).logits[0, ids[0].tolist().index(len(WORDS) - 1)].softmax(-1)
    (found,) = unmask.load(tmp_path, dtype="float64").fill("a <mask> ccc")
    best = found.predictions[0]
    assert best.id == int(p.argmax())
    assert math.isclose(best.probability, float(p.max()), abs_tol=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("relative_attention_num_buckets", 64, UnknownArchitecture, "is 64; only 32 is built"),
        ("max_position_embeddings", 2, CorruptCheckpoint, "is 2; it must be at least 3"),
    ],
)
def test_settings_that_are_not_built_are_refused(key, value, error, words):
    config = {"model_type": "mpnet", key: value}
    with pytest.raises(error, match=f"{key} {words}"):
        family_of(config).read(JsonSettings("config.json", config), "published")
