"""Adapters in use: loaded with their model, refused on another, and several in one packed batch."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.adapters import write_random_adapter
from tests.support.tiny import change_json, tiny_bert, write_checkpoint, write_tokenizer
from unmask.errors import CheckpointNotFound, CorruptCheckpoint, InvalidRequest

TEXTS = ["the river bank was muddy", "a text", "another river, the bank!", "muddy muddy muddy " * 9]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny model and adapters of three kinds."""
    folder = tmp_path_factory.mktemp("adapters")
    write_checkpoint(folder / "base", sentence=False)
    write_random_adapter(folder / "base", folder / "mood", "sequence", ("bad", "good", "odd"), seed=1)
    write_random_adapter(folder / "base", folder / "topic", "sequence", ("x", "y"), seed=2, kind="attention")
    write_random_adapter(folder / "base", folder / "names", "tokens", ("O", "B-PER", "I-PER"), seed=3, rank=5)
    write_random_adapter(folder / "base", folder / "spans", "span", seed=4, kind="feedforward")
    return folder


def test_an_adapter_brings_its_head_and_labels(place):
    model = unmask.load(place / "base", adapter=place / "mood")
    found = model.classify(TEXTS)
    assert [set(one.scores) for one in found] == [{"bad", "good", "odd"}] * len(TEXTS)
    assert model.name == "base with the adapter mood"
    other = unmask.load(place / "base", adapter=place / "topic")
    assert set(other.classify(TEXTS[0]).scores) == {"x", "y"}
    plain, changed = (unmask.load(place / "base", **more) for more in ({}, {"adapter": place / "mood"}))
    assert (
        np.abs(plain.embed(TEXTS[:3], pooling="mean") - changed.embed(TEXTS[:3], pooling="mean")).max() > 1e-2
    )
    with pytest.raises(InvalidRequest, match="cannot label words"):
        model.tag(TEXTS)


def test_a_model_with_an_adapter_is_copied_pickled_and_saved(place, tmp_path):
    model = unmask.load(place / "base", adapter=place / "mood")
    expected = [one.scores for one in model.classify(TEXTS)]
    model.save(tmp_path / "merged")
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), unmask.load(tmp_path / "merged")):
        for one, theirs in zip(again.classify(TEXTS), expected, strict=True):
            assert one.scores == pytest.approx(theirs, rel=1e-6)
    # The merged folder is an ordinary checkpoint.
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert theirs.config.id2label == {0: "bad", 1: "good", 2: "odd"}


ROUNDING = 5e-6
"""Of float32, where torch computes one side and the native engine the other."""


def test_several_adapters_read_one_batch(place):
    names = ["mood", "topic", "names", "spans"]
    model = unmask.load_adapters(place / "base", [place / name for name in names])
    alone = {name: unmask.load(place / "base", adapter=place / name) for name in names}
    assert model.engine.one_pass
    texts = TEXTS * 3
    chosen = [names[(number + number // 4) % 4] for number in range(len(texts))]
    pairs = [text if name == "spans" else None for text, name in zip(texts, chosen, strict=True)]
    texts = ["the bank" if name == "spans" else text for text, name in zip(texts, chosen, strict=True)]
    passes = []
    encoder = model.engine._encoder
    encoder.register_forward_hook(lambda *_: passes.append(1))
    for text, name, pair, one in zip(texts, chosen, pairs, model.predict(texts, chosen, pairs), strict=True):
        if name == "names":
            (theirs,) = alone[name].tag([text])
            assert [word.label for word in one.words] == [word.label for word in theirs.words]
            assert [w.score for w in one.words] == pytest.approx(
                [w.score for w in theirs.words], abs=ROUNDING
            )
        elif name == "spans":
            theirs = alone[name].answer(text, pair)
            assert one.answers[0].text == theirs.answers[0].text
            assert one.answers[0].score == pytest.approx(theirs.answers[0].score, abs=ROUNDING)
        else:
            assert one.scores == pytest.approx(alone[name].classify(text).scores, abs=ROUNDING)
    assert len(passes) == 1


def test_words_are_tagged_in_windows_of_the_given_overlap(place):
    model = unmask.load_adapters(place / "base", [place / "names"])
    alone, text = unmask.load(place / "base", adapter=place / "names"), "muddy river " * 40
    counts = [alone.tag(text, overlap_tokens=overlap).windows for overlap in (0, 15)]
    assert counts[0] < counts[1]
    for overlap, count in zip((0, 15), counts, strict=True):
        (tagging,) = model.predict([text], ["names"], overlap_tokens=overlap)
        assert tagging.windows == count


def test_adapters_that_share_a_table_are_read_apart(tmp_path):
    """DeBERTa-v3 projects its distance table with the updated matrices, so a pass has one adapter."""
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        vocab_size=73, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=20,
        relative_attention=True, share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
        max_position_embeddings=40, position_buckets=4, norm_rel_ebd="layer_norm", type_vocab_size=0,
    )  # fmt: skip
    transformers.DebertaV2Model(config).save_pretrained(tmp_path / "base")
    write_tokenizer(tmp_path / "base")
    for seed, name in enumerate(("one", "two")):
        write_random_adapter(tmp_path / "base", tmp_path / name, "sequence", ("x", "y"), seed=seed)
    model = unmask.load_adapters(tmp_path / "base", [tmp_path / "one", tmp_path / "two"])
    assert not model.engine.one_pass
    texts, chosen = TEXTS[:3], ["one", "two", "one"]
    for text, name, found in zip(texts, chosen, model.predict(texts, chosen), strict=True):
        alone = unmask.load(tmp_path / "base", adapter=tmp_path / name).classify(text)
        assert found.scores == pytest.approx(alone.scores, abs=1e-6)


def test_an_adapter_of_another_model_is_refused(place, tmp_path):
    write_checkpoint(tmp_path / "other", tiny_bert(seed=5), sentence=False)
    with pytest.raises(InvalidRequest, match=r"mood was trained on base, and .*other has other weights"):
        unmask.load(tmp_path / "other", adapter=place / "mood")
    write_checkpoint(tmp_path / "wide", tiny_bert(intermediate_size=41), sentence=False)
    with pytest.raises(InvalidRequest, match=r"does not fit wide: it updates .* with a matrix of 37 x 30"):
        unmask.load(tmp_path / "wide", adapter=place / "mood")
    write_checkpoint(tmp_path / "short", tiny_bert(num_hidden_layers=1), sentence=False)
    with pytest.raises(InvalidRequest, match=r"does not fit short: .* there is no such matrix"):
        unmask.load(tmp_path / "short", adapter=place / "mood")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("peft_type", "IA3", "has the peft_type 'IA3'; only LORA is supported"),
        ("use_dora", True, "has use_dora = True, which is not supported; merge it with peft"),
        ("rank_pattern", {"query": 4}, "has rank_pattern"),
        ("bias", "all", "has bias = 'all'"),
        ("r", 0, "has r = 0; it must be at least 1"),
    ],
)
def test_kinds_of_peft_that_would_change_the_result_are_refused(place, tmp_path, key, value, says):
    write_random_adapter(place / "base", tmp_path / "mood", "sequence", ("x", "y"))
    change_json(tmp_path / "mood" / "adapter_config.json", **{key: value})
    with pytest.raises((InvalidRequest, CorruptCheckpoint), match=says):
        unmask.load(place / "base", adapter=tmp_path / "mood")


def test_a_family_without_such_a_head_is_named(place, tmp_path):
    torch.manual_seed(0)
    config = transformers.NomicBertConfig(vocab_size=73, hidden_size=12, num_attention_heads=3,
                                          num_hidden_layers=1, intermediate_size=20)  # fmt: skip
    transformers.NomicBertModel(config).save_pretrained(tmp_path / "nomic")
    write_tokenizer(tmp_path / "nomic")
    with pytest.raises(InvalidRequest, match="spans was made for base and does not fit nomic"):
        unmask.load(tmp_path / "nomic", adapter=place / "spans")


def test_damaged_adapters_are_named(place, tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"holds no adapter_config.json, so it is not an adapter"):
        unmask.load(place / "base", adapter=place / "base")
    folder = write_random_adapter(place / "base", tmp_path / "mood", "sequence", ("x", "y"))
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(CorruptCheckpoint, match="is damaged or incomplete"):
        unmask.load(place / "base", adapter=folder)
    weights.unlink()
    with pytest.raises(CheckpointNotFound, match=r"holds no adapter_model.safetensors"):
        unmask.load(place / "base", adapter=folder)
    (folder / "unmask_adapter.json").write_text(json.dumps([1]))
    with pytest.raises(CorruptCheckpoint, match=r"unmask_adapter.json"):
        unmask.load(place / "base", adapter=folder)


@pytest.mark.parametrize(
    ("texts", "names", "pairs", "says"),
    [
        (["a"], ["none"], None, "there is no adapter 'none'; loaded are mood, spans"),
        (["a"], [], None, "0 adapter_names were given for 1 texts"),
        (["a"], ["mood"], ["b", "c"], "2 pairs were given for 1 texts"),
        (["a"], ["spans"], None, "is a question without a context"),
        ("a", ["mood"], None, "texts is"),
    ],
)
def test_wrong_arguments_are_named(place, texts, names, pairs, says):
    model = unmask.load_adapters(place / "base", [place / "mood", place / "spans"])
    with pytest.raises(InvalidRequest, match=says):
        model.predict(texts, names, pairs)


@pytest.mark.parametrize("wrong", [3, "", None])
def test_names_that_are_none(place, wrong):
    with pytest.raises(InvalidRequest, match="source is"):
        unmask.load_adapters(wrong, [place / "mood"])
    with pytest.raises(InvalidRequest, match="adapter is"):
        unmask.load_adapters(place / "base", [wrong])


def test_two_adapters_of_one_name_need_a_dictionary(place):
    twice = [place / "mood", place / "mood"]
    with pytest.raises(InvalidRequest, match="two adapters have one name"):
        unmask.load_adapters(place / "base", twice)
    model = unmask.load_adapters(place / "base", dict(zip("ab", twice, strict=True)))
    first, second = model.predict([TEXTS[0]] * 2, ["a", "b"])
    assert first.scores == pytest.approx(second.scores)
