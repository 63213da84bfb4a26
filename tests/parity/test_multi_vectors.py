"""Models with one vector per token beside `sentence-transformers`, on tiny random models that it wrote."""

import json
import string
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import VOCABULARY, WIDTH, change_json, tiny_bert, tiny_config, write_checkpoint
from unmask.errors import (
    CorruptCheckpoint,
    EmptyText,
    InvalidRequest,
    TensorMismatch,
    TextTooLong,
    UnsafeCheckpoint,
)
from unmask.spec import Dense, MultiVector, QueryExpansion, UnknownOutput
from unmask.tasks.late_interaction import late_interaction, matches
from unmask.tasks.late_texts import limit_of, read_texts
from unmask.tasks.prompts import encoded_after

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.base.modules")
own = pytest.importorskip("sentence_transformers.multi_vector_encoder.modules")

TEXTS = ["The river bank, was muddy.", "a text", "muddy!", "another river, a bank"]


def modern_bert(folder):
    """A ModernBERT whose windows are shorter than an expanded query, with BERT's words."""
    write_checkpoint(folder, sentence=False)
    config = transformers.ModernBertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        intermediate_size=28,
        num_hidden_layers=4,
        num_attention_heads=3,
        max_position_embeddings=40,
        local_attention=16,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
        initializer_range=0.4,
    )
    torch.manual_seed(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    transformers.ModernBertModel(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").unlink()
    return folder


def theirs_of(folder, *, layers=None, prompts=None, skipped=(), kinds=None, **transformer):
    """A model by `sentence-transformers` on the encoder in a folder."""
    torch.manual_seed(2)
    dense = modules.Dense(
        WIDTH,
        7,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    parts = [
        modules.Transformer(str(folder), **transformer),
        *([dense] if layers is None else layers),
        own.MultiVectorMask(list(skipped), skiplist_tasks=kinds),
        modules.Normalize(module_input_name="token_embeddings"),
    ]
    return st.MultiVectorEncoder(modules=parts, prompts=prompts or {})


def both(model, kind):
    encode = {"query": model.encode_query, "document": model.encode_document}[kind]
    return encode(TEXTS, convert_to_numpy=True)


def check(folder, tmp_path, model=None):
    """Both kinds of text, as loaded and as saved again, in both libraries; returns the loaded model."""
    theirs, ours = model or st.MultiVectorEncoder(str(folder)), unmask.load(folder)
    ours.save(tmp_path / "saved")
    again, theirs_again = unmask.load(tmp_path / "saved"), st.MultiVectorEncoder(str(tmp_path / "saved"))
    assert again.checkpoint.head == ours.checkpoint.head
    for kind in ("query", "document"):
        expected = both(theirs, kind)
        found = ours.multi_vectors(TEXTS, kind, truncation="end")
        for text, mine, other, saved, back in zip(
            TEXTS,
            found,
            expected,
            again.multi_vectors(TEXTS, kind, truncation="end"),
            both(theirs_again, kind),
            strict=True,
        ):
            assert mine.vectors_NE.dtype == np.float32
            np.testing.assert_allclose(mine.vectors_NE, other, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(mine.vectors_NE, saved.vectors_NE)
            np.testing.assert_allclose(back, other, rtol=0, atol=1e-5)
            known = mine.ids_N != ours.tokenizer.token_to_id("[UNK]")
            covered = {text[a:b].lower() for a, b in mine.spans_N2[known] if a >= 0}
            pieces = {ours.tokenizer.engine.id_to_token(int(one)).removeprefix("##") for one in mine.ids_N}
            assert covered
            assert covered <= pieces
    return ours


EXPANSIONS = {
    "none": None,
    "hidden": {"strategy": "fixed", "length": 12, "attend": False},
    "attended": {"strategy": "fixed", "length": 12, "attend": True},
    "min": {"strategy": "min", "length": 8, "attend": False},
    "token": {"strategy": "fixed", "length": 12, "token": "a"},
}


@pytest.mark.parametrize("base", ["bert", "modernbert"])
@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_native_folders(base, expansion, tmp_path):
    folder = tmp_path / "encoder"
    folder = modern_bert(folder) if base == "modernbert" else write_checkpoint(folder, sentence=False)
    theirs = theirs_of(
        folder,
        prompts={"query": "a text ", "document": "the ", "other": "x"},
        skipped=[".", ",", "no such word"],
        query_expansion=EXPANSIONS[expansion],
        query_length=13,
        document_length=10,
    )
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = check(tmp_path / "theirs", tmp_path)
    assert ours.checkpoint.head.width(ours.spec) == 7
    if expansion == "hidden":
        query = ours.multi_vectors("muddy", "query")
        assert len(query) == 12
        assert query.ids_N[-1] == ours.tokenizer.mask_id
        assert (query.spans_N2[-7:] == -1).all()


def test_several_layers_and_other_skips(tmp_path):
    """A narrower layer, one with a residual, and punctuation skipped in queries too."""
    write_checkpoint(tmp_path / "encoder", sentence=False)
    torch.manual_seed(5)
    on = {"module_input_name": "token_embeddings"}
    layers = [
        modules.Dense(WIDTH, 11, activation_function=torch.nn.GELU(), use_residual=True, **on),
        modules.Dense(11, 11, activation_function=torch.nn.Tanh(), use_residual=True, **on),
        modules.Dense(11, 6, bias=False, activation_function=torch.nn.ReLU(), **on),
    ]
    theirs = theirs_of(
        tmp_path / "encoder", layers=layers, skipped=list(string.punctuation), kinds=["query", "document"]
    )
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = check(tmp_path / "theirs", tmp_path)
    assert ours.checkpoint.head.projections == (
        Dense(11, activation="gelu", residual=True),
        Dense(11, activation="tanh", residual=True),
        Dense(6, bias=False, activation="relu"),
    )
    assert len(ours.multi_vectors("a, a.", "query")) == 4


def write_pylate(folder, **changes):
    """A folder as PyLate writes it: two modules, and its keys in config_sentence_transformers.json."""
    pieces = (*VOCABULARY, "[Q] ", "[D] ")
    write_checkpoint(folder, sentence=False)
    model = transformers.BertModel(tiny_config(vocab_size=len(pieces) + 2)).eval()
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(folder)
    theirs = theirs_of(folder)
    (folder / "1_Dense").mkdir()
    theirs[1].save(str(folder / "1_Dense"))
    dense = json.loads((folder / "1_Dense/config.json").read_text())
    dense = {key: value for key, value in dense.items() if not key.startswith("module_")}
    (folder / "1_Dense/config.json").write_text(json.dumps(dense))
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 22, "do_lower_case": False})
    )
    settings = {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "model_type": "ColBERT",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 13,
        "document_length": 9,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [".", ",", "!"],
        "do_query_expansion": True,
    } | changes
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"skiplist_words": None, "prompts": {"query": "the "}},
    ],
    ids=str,
)
def test_folders_of_pylate(changes, tmp_path):
    ours = check(write_pylate(tmp_path / "theirs", **changes), tmp_path)
    marker = ours.multi_vectors("muddy", "query")
    assert marker.ids_N[1] == ours.tokenizer.token_to_id("[Q] ")
    assert marker.spans_N2[1].tolist() == [-1, -1]


def test_a_folder_of_pylate_without_its_type(tmp_path):
    """PyLate writes the type only if the checkpoint that it started from has one."""
    folder = write_pylate(tmp_path / "theirs")
    typed = unmask.load(folder)
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text())
    del settings["model_type"]
    path.write_text(json.dumps(settings))
    found = unmask.load(folder)
    assert found.checkpoint.head == typed.checkpoint.head
    np.testing.assert_array_equal(
        found.multi_vectors("muddy", "query").vectors_NE, typed.multi_vectors("muddy", "query").vectors_NE
    )


def write_stanford(folder, metadata):
    """A folder as Stanford's code writes it: the projection beside the encoder's tensors."""
    from safetensors.torch import load_file, save_file

    pieces = tuple({"!": "[unused0]", "3": "[unused1]"}.get(piece, piece) for piece in VOCABULARY)
    write_checkpoint(folder, tiny_bert(), sentence=False)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    torch.manual_seed(4)
    tensors["linear.weight"] = torch.randn(5, WIDTH)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_json(folder / "config.json", architectures=["HF_ColBERT"])
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"query_maxlen": 14, "doc_maxlen": 9, "mask_punctuation": False, "attend_to_mask_tokens": True},
        {"query_maxlen": 9, "doc_maxlen": 12, "mask_punctuation": True, "dim": 5},
    ],
    ids=str,
)
def test_folders_of_stanford(metadata, tmp_path):
    if metadata is None:  # their default of 32 tokens is more than this encoder reads
        folder = write_stanford(tmp_path / "theirs", None)
        head = unmask.load(folder).checkpoint.head
        assert head.expansion == QueryExpansion(32)
        assert head.skipped_words == tuple(string.punctuation)
        return
    folder = write_stanford(tmp_path / "theirs", metadata)
    ours = check(folder, tmp_path)
    query = ours.multi_vectors("muddy", "query")
    assert query.ids_N[1] == ours.tokenizer.token_to_id("[unused0]")
    assert ours.multi_vectors("muddy").ids_N[1] == ours.tokenizer.token_to_id("[unused1]")
    assert json.loads((tmp_path / "saved/config.json").read_text())["architectures"] == ["BertModel"]


def test_what_is_not_built_is_refused_by_name(tmp_path):
    theirs_of(write_checkpoint(tmp_path / "encoder", sentence=False)).save_pretrained(str(tmp_path / "m"))
    folder = tmp_path / "m"
    listed = json.loads((folder / "modules.json").read_text())
    pooled = [*listed[:2], listed[1] | {"type": "somewhere.HierarchicalTokenPooling"}]
    for changed, reason in (
        (pooled, "asks for a HierarchicalTokenPooling module"),
        ([listed[0] | {"type": "sentence_transformers.models.Router"}, *listed[1:]], "is not a Transformer"),
    ):
        (folder / "modules.json").write_text(json.dumps(changed))
        ours = unmask.load(folder)
        assert isinstance(ours.checkpoint.head, UnknownOutput)
        assert reason in ours.checkpoint.head.reason
        with pytest.raises(InvalidRequest, match="does not give one vector per token"):
            ours.multi_vectors("a")
    (folder / "modules.json").write_text(json.dumps(listed))
    change_json(folder / "1_Dense/config.json", activation_function="torch.nn.modules.activation.Mish")
    assert "Mish" in unmask.load(folder).checkpoint.head.reason


def test_damaged_modules_are_refused(tmp_path):
    theirs_of(write_checkpoint(tmp_path / "encoder", sentence=False)).save_pretrained(str(tmp_path / "m"))
    folder, dense = tmp_path / "m", tmp_path / "m/1_Dense"
    change_json(dense / "config.json", out_features=8)
    with pytest.raises(
        TensorMismatch, match=r"linear\.weight in 1_Dense/model\.safetensors has shape 7 x 30"
    ):
        unmask.load(folder)
    change_json(dense / "config.json", out_features=7, bias=True)
    with pytest.raises(TensorMismatch, match=r"lacks the tensor linear\.bias"):
        unmask.load(folder)
    (dense / "model.safetensors").rename(dense / "pytorch_model.bin")
    with pytest.raises(UnsafeCheckpoint, match="pickled weights"):
        unmask.load(folder)
    (dense / "pytorch_model.bin").unlink()
    with pytest.raises(CorruptCheckpoint, match="names 1_Dense"):
        unmask.load(folder)
    listed = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([listed[0], listed[1] | {"path": "../1_Dense"}]))
    with pytest.raises(CorruptCheckpoint, match="outside the folder"):
        unmask.load(folder)


def test_lengths_and_empty_texts(tmp_path):
    theirs = theirs_of(
        write_checkpoint(tmp_path / "encoder", sentence=False),
        prompts={"query": "a ", "document": "the "},
        query_expansion=EXPANSIONS["hidden"],
        document_length=6,
    )
    theirs.save_pretrained(str(tmp_path / "m"))
    ours = unmask.load(tmp_path / "m")
    with pytest.raises(TextTooLong, match="has 10 tokens and the model reads at most 6"):
        ours.multi_vectors(TEXTS[:1])
    assert len(ours.multi_vectors(TEXTS[0], max_tokens=23)) == 10
    with pytest.raises(InvalidRequest, match="always have 12 tokens"):
        ours.multi_vectors(TEXTS, "query", max_tokens=9)
    with pytest.raises(InvalidRequest, match="it can be 1 to 23"):
        ours.multi_vectors(TEXTS, max_tokens=24)
    with pytest.raises(EmptyText, match="text 2 has no words"):
        ours.multi_vectors(["a", " "])
    with pytest.raises(InvalidRequest, match="kind is 'both'"):
        ours.multi_vectors(TEXTS, "both")
    assert ours.multi_vectors([]) == []


def test_how_long_a_query_may_be():
    """Before expansion, which makes short ones longer than the limit of queries allows."""
    fixed, free = QueryExpansion(32), QueryExpansion(32, truncates=False)
    cases = ((None, 20), (fixed, 32), (free, 32), (replace(free, length=8), 20))
    for expansion, limit in cases:
        output = MultiVector(query_tokens=20, document_tokens=60, expansion=expansion)
        assert limit_of(output, "query", 50, None) == limit
        assert limit_of(output, "document", 50, None) == 50
        assert limit_of(output, "document", None, None) == 60
    assert limit_of(MultiVector(expansion=free), "query", None, None) is None
    assert limit_of(MultiVector(), "query", 50, 50) == 50
    with pytest.raises(InvalidRequest, match="max_tokens is 51; it can be 1 to 50"):
        limit_of(MultiVector(), "query", 50, 51)


def test_a_prompt_that_leaves_no_room_is_named(tmp_path):
    tokenizer = unmask.load(write_checkpoint(tmp_path / "m")).tokenizer
    options = {"truncation": "end", "name": lambda index: f"text {index + 1}"}
    read = encoded_after(tokenizer, "a text ", ["the river", "the bank"], max_tokens=5, **options)
    assert [len(encoding) for encoding in read] == [5, 5]
    with pytest.raises(EmptyText, match="text 1 has no words after its prompt"):
        encoded_after(tokenizer, "a text ", ["the river", "the bank"], max_tokens=4, **options)


def test_an_expansion_out_of_the_reach_of_windows_is_refused(tmp_path):
    theirs = theirs_of(modern_bert(tmp_path / "encoder"), query_expansion={"strategy": "fixed", "length": 30})
    theirs.save_pretrained(str(tmp_path / "m"))
    ours = unmask.load(tmp_path / "m")
    with pytest.raises(InvalidRequest, match="text 1 has 3 tokens and is expanded to 30"):
        ours.multi_vectors(["muddy"], "query")
    reader, options = ours.reader, {"max_tokens": None, "truncation": "error", "name": lambda _: "it"}

    def expanded(length):
        output = replace(reader.output, expansion=QueryExpansion(length))
        (text,) = read_texts(reader.late_tokenizer, output, reader.spec, ["muddy"], "query", **options)
        return text

    assert len(expanded(11)) == 11  # the last of eight more sees the last of three
    with pytest.raises(InvalidRequest, match="it has 3 tokens and is expanded to 12, and a layer reads only"):
        expanded(12)


def test_scores_are_theirs_and_shares_add_up():
    draw = np.random.default_rng(0)
    query, documents = draw.normal(size=(9, 5)).astype(np.float32), []
    for length in (1, 4000, 300, 9000, 2):
        documents.append(draw.normal(size=(length, 5)).astype(np.float32))
    expected = st.util.similarity.maxsim([torch.from_numpy(query)], [torch.from_numpy(d) for d in documents])
    for document, score in zip(documents, expected[0].tolist(), strict=True):
        assert late_interaction(query, document) == pytest.approx(score, rel=1e-6)
        assert late_interaction(query, document, mean=True) == pytest.approx(score / 9, rel=1e-6)
        best = matches(query, document)
        assert best.shares_Q.sum() == pytest.approx(score, rel=1e-6)
        products = query @ document.T
        np.testing.assert_array_equal(best.tokens_Q, products.argmax(axis=1))
    with pytest.raises(InvalidRequest, match="have 5 numbers and the document's 4"):
        late_interaction(query, documents[0][:, :4])
    with pytest.raises(InvalidRequest, match="the document's vectors have shape"):
        late_interaction(query, documents[0][:0])


def test_the_weights_of_the_layers_are_part_of_the_model(tmp_path):
    """They train, pickle, and take the model's dtype."""
    import pickle

    theirs_of(write_checkpoint(tmp_path / "encoder", sentence=False)).save_pretrained(str(tmp_path / "m"))
    model = unmask.load(tmp_path / "m")
    before = model.multi_vectors("muddy").vectors_NE
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).multi_vectors("muddy").vectors_NE, before)
    encoder = model.trainable_encoder()
    with torch.no_grad():
        encoder.output[0].linear.weight.mul_(-1)
    np.testing.assert_allclose(model.multi_vectors("muddy").vectors_NE, -before, atol=1e-6)
    model.save(tmp_path / "again")
    np.testing.assert_allclose(
        unmask.load(tmp_path / "again").multi_vectors("muddy").vectors_NE, -before, atol=1e-6
    )
    half = unmask.load(tmp_path / "m", dtype="bfloat16").multi_vectors("muddy").vectors_NE
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, before, atol=0.1)
    assert isinstance(model.checkpoint.head, MultiVector)
