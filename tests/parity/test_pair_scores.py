"""Cross-encoders beside `sentence-transformers`, on tiny random models that it wrote."""

import json

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import VOCABULARY, WIDTH, change_json, tiny_bert, write_checkpoint
from unmask.errors import EmptyText, InvalidRequest, NonFiniteResult, TextTooLong
from unmask.spec import Dense, LayerNorm, PairScore, UnknownOutput

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.base.modules")
pooled = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

QUERY = "a river"
TEXTS = ["The river bank, was muddy.", "another text", "muddy", "the river " * 9, "a text " * 6 + "muddy"]
PAIRS = [(QUERY, text) for text in TEXTS] + [("a text " * 8, "the river " * 8), ("the bank " * 9, "muddy")]


def write(folder, kind="BertForSequenceClassification", labels=1):
    """A random checkpoint of `transformers` whose scores differ widely."""
    model = tiny_bert(kind, **({"num_labels": labels} if "Sequence" in kind else {}))
    write_checkpoint(folder, model, sentence=False)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def check(folder, tmp_path, **options):
    """Scores and logits, as loaded and as saved again, in both libraries; returns the loaded model."""
    theirs, ours = st.CrossEncoder(str(folder), **options), unmask.load(folder)
    ours.save(tmp_path / "saved")
    again, theirs_again = unmask.load(tmp_path / "saved"), st.CrossEncoder(str(tmp_path / "saved"))
    assert again.checkpoint.head == ours.checkpoint.head
    asked, texts = zip(*PAIRS, strict=True)
    for name, function in (
        ("default", None),
        ("identity", torch.nn.Identity()),
        ("sigmoid", torch.nn.Sigmoid()),
    ):
        expected = theirs.predict(PAIRS, activation_fn=function)
        found = ours.score_pairs(asked, texts, activation=name, truncation="end")
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(
            again.score_pairs(asked, texts, activation=name, truncation="end"), found
        )
        np.testing.assert_allclose(theirs_again.predict(PAIRS, activation_fn=function), expected, atol=1e-5)
    assert np.ptp(found) > 0.01
    return ours


def test_a_score_that_is_not_finite_names_its_pair(tmp_path):
    ours = unmask.load(write(tmp_path))
    with torch.no_grad():
        ours.trainable_encoder().embedding.words.weight[ours.tokenizer.encode("muddy").ids[1]] = torch.nan
    with pytest.raises(NonFiniteResult, match="of pair 2 is not finite"):
        ours.score_pairs("a", ["a text", "muddy"])


def test_a_plain_classifier_of_one_label(tmp_path):
    folder = write(tmp_path / "m")
    ours = check(folder, tmp_path)
    assert ours.checkpoint.head == PairScore(1, "sigmoid")
    assert not (tmp_path / "saved/modules.json").exists()
    assert isinstance(ours.score_pairs(QUERY, TEXTS[0]), float)
    np.testing.assert_array_equal(
        ours.score_pairs(QUERY, TEXTS[:2]), ours.score_pairs([QUERY] * 2, TEXTS[:2])
    )


def test_a_cross_encoder_of_several_classes_stays_one(tmp_path):
    """Its logits, as sentence-transformers gives them by default, also where it is saved again."""
    folder = write(tmp_path / "m", labels=3)
    theirs = st.CrossEncoder(str(folder))
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = unmask.load(tmp_path / "theirs")
    assert ours.checkpoint.head == PairScore(3, "identity")
    ours.save(tmp_path / "saved")
    again = st.CrossEncoder(str(tmp_path / "saved"))
    np.testing.assert_allclose(again.predict(PAIRS), theirs.predict(PAIRS), atol=1e-5)
    change_json(tmp_path / "theirs/config_sentence_transformers.json", activation_fn=None)
    assert unmask.load(tmp_path / "theirs").checkpoint.head == PairScore(3, "identity")


@pytest.mark.parametrize("function", ["Identity", "Sigmoid"])
def test_folders_of_each_version(function, tmp_path):
    """Version 6 writes modules.json, version 4 a key of config.json, earlier ones another key."""
    folder = write(tmp_path / "m")
    path = {"Identity": "torch.nn.modules.linear.Identity", "Sigmoid": "torch.nn.modules.activation.Sigmoid"}
    change_json(
        folder / "config.json", sentence_transformers={"activation_fn": path[function], "version": "4.1.0"}
    )
    head = PairScore(1, function.lower())
    assert check(folder, tmp_path / "4").checkpoint.head == head
    change_json(
        folder / "config.json",
        sentence_transformers=None,
        sbert_ce_default_activation_function=path[function],
    )
    assert check(folder, tmp_path / "3").checkpoint.head == head
    change_json(folder / "config.json", sbert_ce_default_activation_function=None)
    theirs = st.CrossEncoder(str(folder), activation_fn=getattr(torch.nn, function)())
    theirs.save_pretrained(str(tmp_path / "six"))
    ours = check(tmp_path / "six", tmp_path / "6")
    assert ours.checkpoint.head == head
    assert ours.checkpoint.unread_config == ()


def test_layers_after_pooling(tmp_path):
    """The form of rerankers of 2026: pooling, a dense layer, a norm and a dense layer to one number."""
    folder = write(tmp_path / "m", "BertModel")
    torch.manual_seed(0)
    last = modules.Dense(9, 1, activation_function=torch.nn.Identity(), module_output_name="scores")
    norm = pooled.LayerNorm(9)
    with torch.no_grad():
        norm.norm.weight.normal_()
        norm.norm.bias.normal_()
    parts = [
        modules.Transformer(str(folder)),
        pooled.Pooling(WIDTH, "cls"),
        modules.Dense(WIDTH, 9, activation_function=torch.nn.GELU()),
        norm,
        last,
    ]
    theirs = st.CrossEncoder(modules=parts, num_labels=1, activation_fn=torch.nn.Identity())
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = check(tmp_path / "theirs", tmp_path)
    layers = (Dense(9, activation="gelu"), LayerNorm(1e-5), Dense(1))
    assert ours.checkpoint.head == PairScore(1, "identity", ("cls",), layers)


def test_other_families(tmp_path):
    """A pooler of its own and no token types."""
    config = transformers.ModernBertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        intermediate_size=28,
        num_hidden_layers=3,
        num_attention_heads=3,
        max_position_embeddings=64,
        local_attention=8,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
        initializer_range=0.4,
        num_labels=1,
    )
    folder = write(tmp_path / "m")
    torch.manual_seed(1)
    transformers.ModernBertForSequenceClassification(config).eval().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 64,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    check(folder, tmp_path)


def test_what_is_not_built_is_refused_by_name(tmp_path):
    folder = write(tmp_path / "m")
    change_json(
        folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"}
    )
    ours = unmask.load(folder)
    assert isinstance(ours.checkpoint.head, UnknownOutput)
    assert "activation.Tanh" in ours.checkpoint.head.reason
    with pytest.raises(InvalidRequest, match="does not score pairs by one number"):
        ours.score_pairs(QUERY, TEXTS)
    several = write(tmp_path / "several", labels=3)
    assert isinstance(unmask.load(several).checkpoint.head, UnknownOutput)
    st.CrossEncoder(str(several)).save_pretrained(str(tmp_path / "three"))
    three = unmask.load(tmp_path / "three")
    assert three.checkpoint.head == PairScore(3)
    with pytest.raises(InvalidRequest, match="does not score pairs by one number"):
        three.score_pairs(QUERY, TEXTS)
    with pytest.raises(InvalidRequest, match="name a pooling"):
        three.embed("a")


def test_lengths_arguments_and_empty_texts(tmp_path):
    ours = unmask.load(write(tmp_path / "m"))
    with pytest.raises(TextTooLong, match=r"the query has .* the model reads at most 23"):
        ours.score_pairs(QUERY, TEXTS[3:4] * 2 + ["river " * 40])
    with pytest.raises(EmptyText, match="document 2 has no words"):
        ours.score_pairs(QUERY, ["a", " "])
    with pytest.raises(InvalidRequest, match="2 texts and 1 pairs"):
        ours.score_pairs(["a", "a"], ["a"])
    with pytest.raises(InvalidRequest, match="activation is 'tanh'"):
        ours.score_pairs("a", ["a"], activation="tanh")
    assert ours.score_pairs("a", []).shape == (0,)
