"""Sentence embeddings beside `sentence-transformers`: all poolings, layers, prompts and precisions."""

import json
import warnings

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.command import run_here
from tests.support.tiny import WIDTH, change_json, tiny_bert, write_checkpoint
from unmask.errors import EmptyText, InvalidRequest
from unmask.spec import PooledVector
from unmask.tasks.embed import quantize

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.base.modules")
pooled = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

pytestmark = pytest.mark.long

TEXTS = ["The river bank was muddy.", "a text", "muddy", "another river, a bank"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.fixture
def encoder(tmp_path):
    folder = write_checkpoint(tmp_path / "encoder", tiny_bert(), sentence=False)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return str(folder)


def save(encoder, tmp_path, *parts, transformer=None, **options):
    torch.manual_seed(7)
    theirs = st.SentenceTransformer(
        modules=[modules.Transformer(encoder, **(transformer or {})), *parts], **options
    )
    theirs.save_pretrained(str(tmp_path / "theirs"))
    return tmp_path / "theirs"


def read(folder, tmp_path):
    """As loaded and as saved again, by us and by them."""
    theirs, ours = st.SentenceTransformer(str(folder)), unmask.load(folder)
    ours.save(tmp_path / "saved")
    again, theirs_again = unmask.load(tmp_path / "saved"), st.SentenceTransformer(str(tmp_path / "saved"))
    assert again.checkpoint.head == ours.checkpoint.head
    return ours, again, theirs, theirs_again


def assert_equal(ours, again, theirs, theirs_again, texts=TEXTS, **how):
    """All four embed the texts alike."""
    for mine, other in (
        ("embed", "encode"),
        ("embed_query", "encode_query"),
        ("embed_document", "encode_document"),
    ):
        if mine != "embed" and how.keys() & {"prompt", "prompt_name"}:
            continue
        expected = getattr(theirs, other)(texts, **how)
        found = getattr(ours, mine)(texts, **how)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(getattr(again, mine)(texts, **how), found)
        np.testing.assert_allclose(getattr(theirs_again, other)(texts, **how), expected, rtol=0, atol=1e-5)


def check(folder, tmp_path, texts=TEXTS, **how):
    """As loaded and as saved again, in both libraries; returns the loaded model."""
    models = read(folder, tmp_path)
    assert_equal(*models, texts, **how)
    return models[0]


@pytest.mark.parametrize("mode", [*MODES, ("weightedmean", "cls"), ("cls", "mean", "lasttoken")], ids=str)
@pytest.mark.parametrize("include_prompt", [True, False])
def test_poolings_with_and_without_the_prompt(mode, include_prompt, encoder, tmp_path):
    folder = save(
        encoder,
        tmp_path,
        pooled.Pooling(WIDTH, mode, include_prompt=include_prompt),
        prompts={"query": "a text ", "document": "the "},
        default_prompt_name="query",
    )
    models = read(folder, tmp_path)
    assert models[0].checkpoint.head.pools_prompt == include_prompt
    for how in ({}, {"prompt_name": "document"}, {"prompt": "the bank "}, {"prompt": ""}):
        assert_equal(*models, **how)


@pytest.mark.parametrize("function", ["Identity", "Tanh", "GELU", "ReLU", "SiLU"])
def test_layers_in_any_order(function, encoder, tmp_path):
    norm = pooled.LayerNorm(WIDTH)
    with torch.no_grad():
        norm.norm.weight.normal_()
        norm.norm.bias.normal_()
    activation = getattr(torch.nn, function)()
    folder = save(
        encoder,
        tmp_path,
        pooled.Pooling(WIDTH, "mean"),
        norm,
        modules.Normalize(),
        modules.Dense(WIDTH, 12, activation_function=activation),
        modules.Dense(12, 12, bias=False, activation_function=activation, use_residual=True),
        modules.Dense(12, 8, activation_function=activation, use_residual=True),
        modules.Normalize(),
    )
    ours = check(folder, tmp_path)
    assert ours.checkpoint.head.width(ours.spec) == 8
    assert ours.embed("a").shape == (8,)
    change_json(folder / "4_Dense/config.json", activation_function="torch.nn.modules.activation.Mish")
    with pytest.raises(InvalidRequest, match=r"activation\.Mish', which is not built; name a pooling"):
        unmask.load(folder).embed("a")


@pytest.mark.parametrize("normalized", [False, True])
def test_fewer_dimensions(normalized, encoder, tmp_path):
    parts = [pooled.Pooling(WIDTH, "mean"), *([modules.Normalize()] * normalized)]
    folder = save(encoder, tmp_path, *parts)
    ours = check(folder, tmp_path, truncate_dim=7)
    unit = ours.embed(TEXTS, truncate_dim=7, normalize=True)
    expected = st.SentenceTransformer(str(folder)).encode(TEXTS, truncate_dim=7, normalize_embeddings=True)
    np.testing.assert_allclose(unit, expected, rtol=0, atol=1e-5)
    change_json(folder / "config_sentence_transformers.json", truncate_dim=5)
    stored = check(folder, tmp_path / "stored")
    assert stored.embed("a").shape == (5,)
    check(folder, tmp_path / "more", truncate_dim=9)
    with pytest.raises(InvalidRequest, match="truncate_dim is 0"):
        ours.embed("a", truncate_dim=0)


def test_lower_case(encoder, tmp_path):
    """A tokenizer that keeps case, of a model that lower-cases texts first; offsets are those of the text."""
    config = json.loads((tmp_path / "encoder/tokenizer.json").read_text())
    config["normalizer"]["lowercase"] = False
    (tmp_path / "encoder/tokenizer.json").write_text(json.dumps(config))
    settings = json.loads((tmp_path / "encoder/tokenizer_config.json").read_text())
    settings |= {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "encoder/tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "encoder/vocab.txt").unlink()
    folder = save(encoder, tmp_path, pooled.Pooling(WIDTH))
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({"max_seq_length": 20, "do_lower_case": True}))
    ours = check(folder, tmp_path, ["THE River", "A TEXT"])
    np.testing.assert_array_equal(ours.embed("THE River"), ours.embed("the river"))
    assert ours.tokenize("THE River").surface(1) == "THE"
    path.write_text(json.dumps({"max_seq_length": 20, "do_lower_case": False}))
    assert np.abs(unmask.load(folder).embed("THE River") - ours.embed("the river")).max() > 0.01


def test_the_prompt_of_documents_is_found_under_three_names(encoder, tmp_path):
    folder = save(encoder, tmp_path, pooled.Pooling(WIDTH), prompts={"query": "a text "})
    path = folder / "config_sentence_transformers.json"
    for names, chosen in ((("corpus",), "corpus"), (("corpus", "passage"), "passage"), ((), None)):
        change_json(path, prompts={"query": "a text ", **{name: f"{name} " for name in names}})
        ours = unmask.load(folder)
        expected = ours.embed(TEXTS) if chosen is None else ours.embed(TEXTS, prompt_name=chosen)
        np.testing.assert_array_equal(ours.embed_document(TEXTS), expected)
        np.testing.assert_array_equal(ours.embed_query(TEXTS), ours.embed(TEXTS, prompt="a text "))
    with pytest.raises(InvalidRequest, match="give one of them"):
        ours.embed("a", prompt="b", prompt_name="query")
    with pytest.raises(InvalidRequest, match="prompt_name is 'other'; theirs has: query"):
        ours.embed("a", prompt_name="other")
    with pytest.raises(EmptyText):
        ours.embed([" "], prompt_name="query")


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_precisions(precision, encoder, tmp_path):
    folder = save(encoder, tmp_path, pooled.Pooling(WIDTH))
    theirs, ours = st.SentenceTransformer(str(folder)), unmask.load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ours.embed(TEXTS, precision=precision)
    expected = theirs.encode(TEXTS, precision=precision)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    near = 1 if "int8" in precision else 1e-5  # a number at a border may fall on either side of it
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=near)
    vectors = theirs.encode(TEXTS)
    ranges = np.array([[-1.0] * WIDTH, [1.5] * WIDTH], dtype=np.float32) if "int8" in precision else None
    np.testing.assert_array_equal(
        quantize(vectors, precision, ranges),
        st.util.quantize_embeddings(vectors, precision, ranges=ranges),
    )


def test_ranges(encoder, tmp_path):
    ours = unmask.load(save(encoder, tmp_path, pooled.Pooling(WIDTH)))
    with pytest.warns(UserWarning, match="those of 4 embeddings"):
        ours.embed(TEXTS, precision="int8")
    ranges = np.stack([np.full(WIDTH, -2.0), np.full(WIDTH, 2.0)])
    one = ours.embed(TEXTS[0], precision="int8", ranges=ranges)
    np.testing.assert_array_equal(ours.embed(TEXTS, precision="int8", ranges=ranges)[0], one)
    for options, sentence in (
        ({"precision": "int8"}, "those of one embedding"),
        ({"precision": "int8", "ranges": ranges[:, :3]}, "ranges have shape"),
        ({"precision": "binary", "ranges": ranges}, "they are for int8 and uint8"),
        ({"precision": "int4"}, "precision is 'int4'"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            ours.embed(TEXTS[0], **options)


def test_the_command(encoder, tmp_path):
    folder = save(
        encoder, tmp_path, pooled.Pooling(WIDTH), prompts={"query": "a text "}, default_prompt_name="query"
    )
    ours, path = unmask.load(folder), tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    for arguments, options in (
        ([], {}),
        (["--prompt", "the "], {"prompt": "the "}),
        (["--prompt", ""], {"prompt": ""}),
        (["--prompt-name", "query"], {"prompt_name": "query"}),
        (["--truncate-dim", "5"], {"truncate_dim": 5}),
        (["--precision", "binary"], {"precision": "binary"}),
        (["--precision", "ubinary", "--truncate-dim", "20"], {"precision": "ubinary", "truncate_dim": 20}),
    ):
        ran = run_here(
            "embed", path, "--model", folder, "-o", tmp_path / "out.npy", "--overwrite", *arguments
        )
        assert ran.code == 0, ran.err
        expected = ours.embed(TEXTS, **options)
        found = np.load(tmp_path / "out.npy")
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert isinstance(ours.checkpoint.head, PooledVector)


def test_training_and_saving_take_the_layers_with_them(encoder, tmp_path):
    """An encoder that was built without the output's layers is not saved as if it had them."""
    from unmask.training.objectives.labeled import ContrastiveObjective
    from unmask.weights.build import on_meta
    from unmask.weights.write.save import save as save_checkpoint

    folder = save(encoder, tmp_path, pooled.Pooling(WIDTH), modules.Dense(WIDTH, 6))
    ours = unmask.load(folder)
    objective = ContrastiveObjective(ours.trainable_encoder(), ours.checkpoint.head)
    assert any(name.endswith("output.0.linear.weight") for name, _ in objective.named_parameters())
    with pytest.raises(InvalidRequest, match="has 1 layers with weights and the encoder has 0"):
        save_checkpoint(on_meta(ours.spec), ours.checkpoint, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
