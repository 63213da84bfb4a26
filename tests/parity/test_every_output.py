"""BGE-M3's three outputs of one pass beside the published formulas, on a tiny XLM-R with random layers."""

import json

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.parity.test_downloaded import write_modules
from tests.parity.test_published_folders import XLM_R, write_encoder
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import WIDTH
from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, UnsafeCheckpoint
from unmask.tasks.late_interaction import late_interaction

TEXTS = ["the river bank, the muddy bank", "another text was muddy!", "a"]
TOKEN_WIDTH = 7


def write_bge_m3(folder):
    """As published: pickled weights, and two pickled layers beside them."""
    write_encoder(folder, XLM_R)
    write_modules(folder, ["1_Pooling cls", "2_Normalize"])
    torch.manual_seed(9)
    layers = {"sparse_linear": 1, "colbert_linear": TOKEN_WIDTH}
    for name, width in layers.items():
        torch.save({"weight": torch.randn(width, WIDTH), "bias": torch.randn(width)}, folder / f"{name}.pt")
    return folder


def pickled(folder):
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.fixture
def folder(tmp_path):
    """The safe copy, which `unmask convert` makes."""
    published = write_bge_m3(tmp_path / "published")
    ran = run_here("convert", published, tmp_path / "model")
    assert ran.code == 0, ran.err
    return tmp_path / "model"


def expected_of(published, ids):
    """The outputs of one text by the formulas of Chen et al. 2024, with nothing of `unmask`."""
    encoder = transformers.AutoModel.from_pretrained(published).eval()
    word = torch.load(published / "sparse_linear.pt", weights_only=True)
    token = torch.load(published / "colbert_linear.pt", weights_only=True)
    with torch.no_grad():
        states_ND = encoder(torch.tensor([ids])).last_hidden_state[0]
    dense = torch.nn.functional.normalize(states_ND[0], dim=0)
    weights: dict[int, float] = {}
    for id_, state_D in zip(ids, states_ND, strict=True):
        weight = torch.relu(word["weight"][0] @ state_D + word["bias"][0]).item()
        if weight > 0 and id_ not in (0, 1, 2, 3):  # [PAD], [UNK], [CLS] and [SEP] of the tiny vocabulary
            weights[id_] = max(weight, weights.get(id_, 0.0))
    vectors = torch.nn.functional.normalize(states_ND[1:] @ token["weight"].T + token["bias"], dim=1)
    return dense.numpy(), weights, vectors.numpy()


@pytest.mark.parametrize("with_safetensors", [True, False])
def test_three_outputs_of_one_pass(with_safetensors, tmp_path):
    published = write_bge_m3(tmp_path / "published")
    reference = tmp_path / "reference"
    write_bge_m3(reference)
    if not with_safetensors:
        pickled(published)
    assert run_here("convert", published, tmp_path / "model").code == 0
    model = unmask.load(tmp_path / "model")
    passes = []
    run = model.engine.hidden_states
    model.engine.hidden_states = lambda batch, layers: passes.append(batch) or run(batch, layers)
    outputs = model.embed_all(TEXTS)
    assert len(passes) == 1, "all texts and outputs share one pass"
    seen = set()
    for text, output in zip(TEXTS, outputs, strict=True):
        encoding = model.tokenize(text)
        dense, weights, vectors = expected_of(reference, encoding.ids.tolist())
        np.testing.assert_allclose(output.vector_E, dense, rtol=0, atol=1e-5)
        assert output.words.ids.tolist() == sorted(weights)
        np.testing.assert_allclose(
            output.words.weights, [weights[id_] for id_ in sorted(weights)], rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(output.tokens.vectors_NE, vectors, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(output.tokens.ids_N, encoding.ids[1:])
        spans = output.tokens.spans_N2
        assert spans[-1].tolist() == [-1, -1]
        assert text[spans[0, 0] : spans[0, 1]] == text.split()[0].strip(",")
        seen |= set(weights)
    assert len(seen) >= 3, "the layers must leave some words a weight"
    np.testing.assert_allclose(model.embed(TEXTS), [output.vector_E for output in outputs], atol=1e-6)
    one = model.embed_all(TEXTS[0])
    np.testing.assert_allclose(one.vector_E, outputs[0].vector_E, atol=1e-6)
    score = late_interaction(one.tokens, outputs[1].tokens, mean=True)
    products = one.tokens.vectors_NE @ outputs[1].tokens.vectors_NE.T
    assert score == pytest.approx(products.max(axis=1).mean(), abs=1e-5)


def test_saved_and_by_torch(folder, tmp_path):
    """The native engine and torch agree, and a saved folder has the layers."""
    native, plain = unmask.load(folder), unmask.load(folder)
    plain.trainable_encoder()
    plain.save(tmp_path / "saved")
    saved = unmask.load(tmp_path / "saved")
    for text in TEXTS:
        first, second, third = (model.embed_all(text) for model in (native, plain, saved))
        np.testing.assert_allclose(first.vector_E, second.vector_E, atol=1e-5)
        np.testing.assert_allclose(first.tokens.vectors_NE, second.tokens.vectors_NE, atol=1e-5)
        np.testing.assert_array_equal(first.words.ids, third.words.ids)
        np.testing.assert_array_equal(first.words.weights, third.words.weights)


def test_the_command(folder, tmp_path):
    path, out = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    path.write_text("\n".join(TEXTS) + "\n")
    ran = run_here("embed", path, "--model", folder, "-o", out, "--all-outputs")
    assert ran.code == 0, ran.err
    model = unmask.load(folder)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for row, output in zip(rows, model.embed_all(TEXTS), strict=True):
        np.testing.assert_allclose(row["embedding"], output.vector_E, atol=1e-6)
        np.testing.assert_allclose(row["vectors"], output.tokens.vectors_NE, atol=1e-6)
        pieces = [model.tokenizer.engine.id_to_token(int(id_)) for id_ in output.words.ids]
        assert list(row["words"]) == pieces
        np.testing.assert_allclose(list(row["words"].values()), output.words.weights, atol=1e-6)
    for more, said in (
        (["-o", tmp_path / "out.npy"], "--all-outputs writes JSON lines"),
        (["--precision", "binary"], "--all-outputs writes JSON lines"),
    ):
        refused = run_here("embed", path, "--model", folder, "--all-outputs", *more)
        assert_one_sentence(refused, said)
    refused = run_here("embed", path, "--model", "default", "--all-outputs")
    assert_one_sentence(refused, "no sparse_linear.safetensors beside its encoder")


def test_what_cannot_be_read_is_refused(folder, tmp_path):
    from safetensors.torch import save_file

    published = write_bge_m3(tmp_path / "again")
    with pytest.raises(UnsafeCheckpoint, match=r"sparse_linear\.pt is pickled.*unmask convert"):
        unmask.load(published).embed_all(TEXTS)
    model = unmask.load(folder)
    with pytest.raises(EmptyText):
        model.embed_all([" "])
    (folder / "unmask_checksums.json").unlink()
    wrong = {
        "holds a number that is not finite": {
            "weight": torch.full((1, WIDTH), torch.nan),
            "bias": torch.ones(1),
        },
        "gives 2 numbers for a token": {"weight": torch.ones(2, WIDTH), "bias": torch.ones(2)},
        f"states {WIDTH} wide": {"weight": torch.ones(1, WIDTH - 1), "bias": torch.ones(1)},
    }
    for said, tensors in wrong.items():
        save_file(tensors, folder / "sparse_linear.safetensors")
        with pytest.raises(CorruptCheckpoint, match=said):
            unmask.load(folder).embed_all(TEXTS)
    (folder / "sparse_linear.safetensors").unlink()
    with pytest.raises(InvalidRequest, match="does not give all three outputs"):
        unmask.load(folder).embed_all(TEXTS)
