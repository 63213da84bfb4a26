"""ESM's tokenizer and mask tokens beside `transformers`, on a tiny random model."""

import json

import numpy as np
import pytest
import torch
import transformers

import unmask
from unmask.base.json_settings import JsonSettings
from unmask.engines.export.padded import PaddedEncoder
from unmask.engines.inference.optimize import optimize_for_inference
from unmask.engines.native.program import unsupported_encoder
from unmask.errors import CorruptCheckpoint
from unmask.families import family_of
from unmask.text import PackedBatch, Tokenizer
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

PIECES = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "GA", "<null_1>", "<mask>"]
MASK = PIECES.index("<mask>")
SIZES = {
    "vocab_size": len(PIECES),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 10,
    "position_embedding_type": "rotary",
    "pad_token_id": 1,
    "mask_token_id": MASK,
    "token_dropout": True,
}
TEXTS = ["MKTAYIAKQR", "MGAGK", "M K T<mask>", "mkt Z@@G.-", "<mask>", "  L\tA\n", "MKé<null_1>W<eos>A"]


def write(tmp_path, **changes):
    torch.manual_seed(3)
    model = transformers.EsmForMaskedLM(transformers.EsmConfig(**SIZES | changes)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path)


def test_residues_are_read_as_by_transformers(folder):
    theirs = transformers.EsmTokenizer(str(folder / "vocab.txt"))
    ours = Tokenizer.from_files({"vocab.txt": (folder / "vocab.txt").read_bytes()}, "esm")
    assert ours.description.endswith("read as ESM's")
    for text in TEXTS:
        assert list(ours.encode(text).ids) == theirs(text)["input_ids"], text
    assert list(ours.encode("MK", "T").ids) == theirs("MK", "T")["input_ids"]


def test_a_vocabulary_without_esms_tokens_is_refused():
    with pytest.raises(CorruptCheckpoint, match=r"vocab.txt lacks <cls>, <eos>, so it is not an ESM"):
        Tokenizer.from_files({"vocab.txt": b"<unk>\n<pad>\nA\n"}, "esm")


def test_a_protein_with_a_gap_is_filled_as_by_transformers(folder):
    model = unmask.load(str(folder))
    text = "MKTA<mask>IAKQR"
    tokens = transformers.EsmTokenizer(str(folder / "vocab.txt"))(text, return_tensors="pt")
    theirs = transformers.EsmForMaskedLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits_V = theirs(**tokens).logits[0, 5]
    best = torch.softmax(logits_V, -1).topk(3)
    (mask,) = model.fill([text], top_k=3)[0]
    assert [one.piece for one in mask.predictions] == [PIECES[i] for i in best.indices]
    np.testing.assert_allclose(
        [one.probability for one in mask.predictions], best.values.numpy(), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("positions", ["rotary", "absolute"])
@pytest.mark.parametrize("padding", [MASK, 5])
def test_every_engine_scales_by_the_text_that_a_mask_token_is_in(positions, padding, tmp_path):
    folder = write(tmp_path, position_embedding_type=positions)
    texts = [[0, 4, MASK, 6, 2], [0, MASK, MASK, 5, 2, 9, 8, 2], [0, 7, 2], [MASK, MASK]]
    checkpoint = read_checkpoint(Source(folder, "tiny"))
    theirs = transformers.EsmModel.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        expected_TD = torch.cat([theirs(torch.tensor([ids])).last_hidden_state[0] for ids in texts[:3]])
        batch = PackedBatch.of_ids(texts[:3])
        states_TD = build(checkpoint, dtype="float64").encode(batch)
        torch.testing.assert_close(states_TD, expected_TD, rtol=0, atol=1e-6)
        encoder = build(checkpoint, dtype="float32")
        assert encoder.encode(PackedBatch.of_ids(texts)).isfinite().all()
        longest = max(map(len, texts))
        ids_BN = torch.tensor([ids + [padding] * (longest - len(ids)) for ids in texts[:3]])
        mask_BN = torch.tensor([[place < len(ids) for place in range(longest)] for ids in texts[:3]])
        module = PaddedEncoder(encoder, None, outputs=("last_hidden_state",), role=None, longest=longest)
        (states_BND,) = module(ids_BN, mask_BN.long(), torch.zeros_like(ids_BN))
        torch.testing.assert_close(states_BND[mask_BN].double(), expected_TD, rtol=0, atol=1e-5)
        fast = optimize_for_inference(encoder, "float32")
        torch.testing.assert_close(fast.encode(batch).double(), expected_TD, rtol=0, atol=1e-5)
        alone_TD = fast.encode(PackedBatch.of_ids(texts[:1])).double()
        torch.testing.assert_close(alone_TD, expected_TD[: len(texts[0])], rtol=0, atol=1e-5)


def test_mask_tokens_scale_only_their_own_text(folder):
    encoder = build(read_checkpoint(Source(folder, "tiny")), dtype="float64")
    text, masked, nothing = [0, 4, 5, 6, 2], [0, MASK, MASK, 5, 2], [MASK, MASK]
    with torch.inference_mode():
        batch = PackedBatch.of_ids([text, masked, nothing])
        together_TD = encoder.embedding(
            torch.from_numpy(batch.ids_T), torch.zeros(12, dtype=torch.long), batch.layout
        )
    words_VD = encoder.embedding.words.weight.detach()
    expected = [0.88 * words_VD[text], 0.88 * words_VD[masked] / (1 - 2 / 5), 0 * words_VD[nothing]]
    expected[1][[1, 2]] = 0
    torch.testing.assert_close(together_TD, torch.cat(expected), rtol=0, atol=1e-12)


def test_the_native_library_leaves_it_to_torch(folder):
    assert "token_dropout" in (unsupported_encoder(read_checkpoint(Source(folder, "tiny")).spec) or "")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mask_token_id": None}, "token_dropout is true and does not say mask_token_id"),
        (
            {"mask_token_id": len(PIECES)},
            r"mask_token_id is \d+; .* below vocab_size, which is \d+",
        ),
        ({"mask_token_id": -1}, "mask_token_id is -1; with token_dropout it must be at least 0"),
        ({"position_embedding_type": "absolute", "pad_token_id": None}, "does not say pad_token_id"),
        ({"position_embedding_type": "absolute", "max_position_embeddings": 2}, "it must be at least 3"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0; it must be above 0"),
    ],
)
def test_a_config_that_says_too_little_is_refused(changes, sentence):
    config = json.loads(json.dumps({"model_type": "esm", **SIZES, **changes}))
    with pytest.raises(CorruptCheckpoint, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")
