"""Arguments of the functions that users call: old names, one text and several, and what is refused."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.support.tiny import WIDTH, change_json, tiny_bert, write_checkpoint
from unmask.errors import CheckpointError, CorruptCheckpoint, InvalidRequest, KernelError, NonFiniteResult
from unmask.tasks.batches import require_finite

TEXTS = ["the river bank", "a text"]


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    """A model with a masked-LM head, no pooling of its own, and a classifier beside it."""
    folder = tmp_path_factory.mktemp("filler") / "tiny"
    return unmask.load(write_checkpoint(folder, tiny_bert("BertForMaskedLM"), sentence=False))


def test_a_generator_is_read_once_and_whole(tiny_model):
    expected = tiny_model.embed(TEXTS)
    for given in ((text for text in TEXTS), tuple(TEXTS), np.array(TEXTS), map(str, TEXTS)):
        np.testing.assert_array_equal(tiny_model.embed(given), expected)
    assert [len(one) for one in tiny_model.tokenize(text for text in TEXTS)] == [5, 4]
    assert len(tiny_model.hidden_states(text for text in TEXTS)) == 2


def test_one_text_gives_what_is_given_for_it_in_a_list(tiny_model, filler):
    text = TEXTS[0]
    np.testing.assert_array_equal(tiny_model.tokenize(text).ids, tiny_model.tokenize([text])[0].ids)
    np.testing.assert_array_equal(tiny_model.embed(text), tiny_model.embed([text])[0])
    np.testing.assert_array_equal(tiny_model.hidden_states(text), tiny_model.hidden_states([text])[0])
    (alone,), several = filler.fill("the [MASK]"), filler.fill(["a [MASK] text [MASK]", "the [MASK]"])
    assert [len(masks) for masks in several] == [2, 1]
    for one, other in zip(alone.predictions, several[1][0].predictions, strict=True):
        assert (one.id, one.probability) == (other.id, pytest.approx(other.probability, rel=1e-5))
    np.testing.assert_array_equal(filler.logits(text)[0], filler.logits([text])[0])


def test_no_text_gives_an_empty_result_everywhere(tiny_model, filler):
    assert tiny_model.tokenize([]) == tiny_model.hidden_states([]) == filler.fill([]) == []
    assert tiny_model.embed([]).shape == (0, WIDTH)
    assert tiny_model.similarity([], TEXTS).shape == (0, 2)
    none = filler.logits([])
    assert (len(none), none.values.shape) == (0, (0, filler.spec.embedding.vocabulary))


def test_hidden_states_of_texts_and_of_their_ids_agree(tiny_model):
    encodings = tiny_model.tokenize(TEXTS)
    ids = [one.ids for one in encodings]
    for given in (ids, [one.tolist() for one in ids], [torch.tensor(one) for one in ids]):
        for states, again in zip(
            tiny_model.hidden_states(TEXTS), tiny_model.hidden_states(given), strict=True
        ):
            np.testing.assert_array_equal(states, again)
    apart = tiny_model.hidden_states(TEXTS, layers="all", tokens_per_pass=1)
    for states, every in zip(tiny_model.hidden_states(TEXTS), apart, strict=True):
        assert every.shape == (tiny_model.layer_count + 1, *states.shape)
        np.testing.assert_allclose(every[-1], states, rtol=0, atol=1e-5)


def test_logits_are_those_of_the_encoder(filler):
    found = filler.logits(TEXTS, head="masked", tokens_per_pass=1)
    encoder = filler.trainable_encoder(replace=False)
    for text, logits in zip(TEXTS, found, strict=True):
        batch = unmask.PackedBatch.of_ids([filler.tokenize(text).ids])
        with torch.inference_mode():
            expected = encoder.logits("masked", encoder.encode(batch), batch.layout)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_logits_of_a_classifier_have_one_row_per_text(tmp_path):
    model = unmask.load(write_checkpoint(tmp_path / "pairs", tiny_bert("BertForNextSentencePrediction")))
    alone, paired = model.logits(TEXTS), model.logits(TEXTS, TEXTS[::-1])
    assert alone.offsets is None
    assert alone.values.shape == paired.values.shape == (2, 2)
    assert np.abs(alone.values - paired.values).max() > 1e-3
    np.testing.assert_allclose(model.logits(TEXTS[1], TEXTS[0])[0], paired[1], rtol=0, atol=1e-5)
    with pytest.raises(InvalidRequest, match=r"head is 'masked'; .* has: next_sentence"):
        model.logits(TEXTS, head="masked")


def test_similarities_are_those_of_sentence_transformers(tiny_model):
    from sentence_transformers.util import cos_sim, dot_score, euclidean_sim, manhattan_sim

    a, b = (tiny_model.embed(some, normalize=False) for some in (TEXTS, [*TEXTS, "muddy"]))
    theirs = {"cosine": cos_sim, "dot": dot_score, "euclidean": euclidean_sim, "manhattan": manhattan_sim}
    for metric, function in theirs.items():
        expected = function(torch.from_numpy(a), torch.from_numpy(b))
        np.testing.assert_allclose(tiny_model.similarity(a, b, metric=metric), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        tiny_model.similarity(TEXTS[0], TEXTS), tiny_model.similarity(a[:1], a), atol=1e-6
    )
    assert tiny_model.similarity(np.zeros(WIDTH), b).tolist() == [[0.0, 0.0, 0.0]]
    with pytest.raises(InvalidRequest, match="vectors of 30 numbers and b of 2"):
        tiny_model.similarity(a, np.ones((1, 2)))


REFUSED = {
    "texts none": (lambda m: m.embed(None), "texts is None; give a string or a list"),
    "texts a number": (lambda m: m.embed(5), "texts is 5"),
    "texts a set": (lambda m: m.embed({"a"}), "texts is {'a'}"),
    "texts a mapping": (lambda m: m.tokenize({"a": 1}), "texts is {'a': 1}"),
    "texts bytes": (lambda m: m.tokenize(b"a"), "texts is b'a'"),
    "one text and pairs": (lambda m: m.tokenize("a", ["b"]), "one text and a list of pairs"),
    "pooling": (lambda m: m.embed("a", pooling="median"), "pooling is 'median'; it can be 'mean', 'cls'"),
    "normalize": (lambda m: m.embed("a", normalize="no"), "normalize is 'no'; it can be True, False"),
    "truncation": (
        lambda m: m.embed("a", truncation="start"),
        "truncation is 'start'; it can be 'error' or 'end'",
    ),
    "prompt": (lambda m: m.embed("a", prompt_name="query"), "prompt_name is 'query'; .* has: none"),
    "tokens": (
        lambda m: m.embed("a", tokens_per_pass="x"),
        "tokens_per_pass is 'x'; it must be a whole number",
    ),
    "no tokens": (lambda m: m.embed("a", tokens_per_pass=0), "tokens_per_pass is 0; it must be at least 1"),
    "progress": (lambda m: m.embed("a", progress=3), "progress is 3; give a function"),
    "globals": (lambda m: m.embed("a", global_tokens="x"), "global_tokens is 'x'; it can be"),
    "layers": (lambda m: m.hidden_states("a", layers=3), "layers is 3; it can be 'last' or 'all'"),
    "layers some": (lambda m: m.hidden_states([[5]], layers="some"), "layers is 'some'"),
    "hidden none": (lambda m: m.hidden_states(None), "inputs is None"),
    "flat ids": (lambda m: m.hidden_states([5, 6]), "sequence 1 of token ids is 5; give a list"),
    "float ids": (lambda m: m.hidden_states([[1.5, 2.5]]), r"sequence 1 of token ids is \[1.5, 2.5\]"),
    "words for ids": (lambda m: m.hidden_states([["1", "2"]]), "sequence 1 of token ids"),
    "flags for ids": (lambda m: m.hidden_states([[5], [True, False]]), "sequence 2 of token ids"),
    "the id after the last": (
        lambda m: m.hidden_states([[m.spec.embedding.vocabulary]]),
        r"a token id is \d+; this model has 0 to",
    ),
    "huge id": (lambda m: m.hidden_states([[2**70]]), "sequence 1 of token ids is"),
    "none for an id": (lambda m: m.hidden_states([[None]]), "sequence 1 of token ids is"),
    "global places": (
        lambda m: m.hidden_states([[5]], global_tokens="x"),
        "global_tokens is 'x'; give the positions",
    ),
    "metric": (lambda m: m.similarity("a", "b", metric="sine"), "metric is 'sine'; it can be 'cosine'"),
    "vectors": (lambda m: m.similarity(["a", 1], "b"), r"a is \['a', 1\]; give texts, or embeddings"),
    "watch": (lambda m: m.attention("a", watch=1), "watch is 1; give a function"),
    "no head": (lambda m: m.logits("a"), "has no head"),
    "shards": (lambda m: m.save("x", shard_bytes="1MB"), "shard_bytes is '1MB'; it must be a whole number"),
    "folder": (lambda m: m.save(3), "folder is 3; give the name"),
    "replace": (lambda m: m.trainable_encoder(replace=1), "replace is 1"),
    "save what": (lambda m: unmask.save(m.spec, "x"), "give what unmask.load returned"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_in_one_sentence(case, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, sentence = REFUSED[case]
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        call(tiny_model)
    assert len(str(refused.value)) < 400
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("top_k", [0, 2.5, True, "3", 10**6])
def test_how_many_words_a_mask_can_have(filler, top_k):
    with pytest.raises(InvalidRequest, match="top_k is"):
        filler.fill("the [MASK]", top_k=top_k)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"source": None}, InvalidRequest, "source is None; name a checkpoint folder"),
        ({"source": b"x"}, InvalidRequest, "source is b'x'"),
        ({"source": ""}, InvalidRequest, "source is ''"),
        ({"source": "a" * 5000}, CheckpointError, "cannot be opened: File name too long"),
        ({"source": "a\0b"}, CheckpointError, "cannot be opened: embedded null byte"),
        ({"compat": "nonsense"}, InvalidRequest, "compat is 'nonsense'; it can be 'published' or 'hf'"),
        ({"kernel": "nope"}, KernelError, "there is no kernel 'nope'; there are"),
        ({"kernel": 5}, KernelError, "there is no kernel 5"),
        ({"dtype": "int4"}, InvalidRequest, "dtype is 'int4'; it can be 'float32'.*or 'int8'"),
        ({"dtype": 16}, InvalidRequest, "dtype is 16"),
        ({"device": "meta"}, InvalidRequest, "device is meta, which computes nothing"),
        ({"device": 1.0}, InvalidRequest, "device is 1.0; give one that torch knows"),
        ({"device": True}, InvalidRequest, "device is True"),
        ({"revision": 3}, InvalidRequest, "revision is 3; give a branch"),
    ],
)
def test_what_load_refuses(options, kind, sentence, tiny_folder):
    with pytest.raises(kind, match=sentence) as refused:
        unmask.load(**{"source": tiny_folder} | options)
    assert len(str(refused.value)) < 400


def test_types_of_torch_are_taken_by_load(tiny_folder):
    model = unmask.load(tiny_folder, dtype=torch.float64, device=torch.device("cpu"))
    assert (model.dtype, model.device) == ("float64", "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidRequest, match="device is cuda, and torch finds no CUDA device"):
            unmask.load(tiny_folder, device=0)


@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_model_can_be_pickled_and_copied(again, dtype, tiny_folder):
    model = unmask.load(tiny_folder, dtype=dtype)
    other = again(model)
    assert (other.dtype, other.encoder is model.encoder) == (dtype, False)
    np.testing.assert_array_equal(other.embed(TEXTS), model.embed(TEXTS))
    with torch.no_grad():
        model.trainable_encoder().embedding.words.weight.mul_(1.5)
    trained = again(model)
    np.testing.assert_array_equal(trained.embed(TEXTS), model.embed(TEXTS))
    assert np.abs(trained.embed(TEXTS) - other.embed(TEXTS)).max() > 1e-3


def test_a_trained_model_that_reads_special_tokens_otherwise_keeps_its_module(tiny_folder):
    model = unmask.load(tiny_folder)
    encoder = model.trainable_encoder()
    assert model.reading("text").trainable_encoder() is encoder


def test_the_digest_is_also_of_the_tokenizer_and_the_longest_text(tiny_copy):
    digests = [unmask.load(tiny_copy).content_digest()]
    vocabulary = (tiny_copy / "vocab.txt").read_text()
    (tiny_copy / "vocab.txt").write_text(vocabulary.replace("river", "brook"))
    digests.append(unmask.load(tiny_copy).content_digest())
    change_json(tiny_copy / "sentence_bert_config.json", max_seq_length=9)
    assert unmask.load(tiny_copy).max_tokens == 9
    digests.append(unmask.load(tiny_copy).content_digest())
    assert len(set(digests)) == 3


def test_the_digest_does_not_depend_on_how_the_cpu_is_named(tiny_folder):
    assert (
        unmask.load(tiny_folder).content_digest() == unmask.load(tiny_folder, device="cpu").content_digest()
    )


def test_a_digest_is_refused_after_the_files_changed(tiny_copy):
    model = unmask.load(tiny_copy)
    os.utime(tiny_copy / "model.safetensors", ns=(0, 1))
    with pytest.raises(CorruptCheckpoint, match="have changed on disk"):
        model.content_digest()


def test_a_pickled_model_whose_files_changed_is_refused(tiny_copy):
    stored = pickle.dumps(unmask.load(tiny_copy))
    os.utime(tiny_copy / "model.safetensors", (1, 1))
    with pytest.raises(CorruptCheckpoint, match="have changed on disk"):
        pickle.loads(stored)


def test_normalization_of_a_checkpoint_holds_for_a_pooling_that_is_named(tiny_copy):
    change_json(tiny_copy / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False)
    model = unmask.load(tiny_copy)
    assert isinstance(model.checkpoint.head, unmask.spec.UnknownOutput)
    assert np.linalg.norm(model.embed(TEXTS[0], pooling="mean")) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(model.embed(TEXTS[0], pooling="mean", normalize=False)) > 1.5


def test_a_named_prompt_is_put_before_the_text(tiny_copy):
    prompts = {"query": "the river ", "document": ""}
    path = tiny_copy / "config_sentence_transformers.json"
    path.write_text("{}")
    change_json(path, prompts=prompts)
    model = unmask.load(tiny_copy)
    found = model.embed(["bank"], prompt_name="query")
    np.testing.assert_array_equal(found, model.embed(["the river bank"]))
    change_json(path, default_prompt_name="query")
    model = unmask.load(tiny_copy)
    np.testing.assert_array_equal(model.embed(["bank"]), found)
    assert np.abs(model.embed(["bank"], prompt="") - found).max() > 0.01


def test_an_embedding_that_is_not_finite_ends_the_work_at_its_pass(tiny_folder):
    model = unmask.load(tiny_folder)
    broken = int(model.tokenize("muddy").ids[1])
    with torch.no_grad():
        model.trainable_encoder().embedding.words.weight[broken] = torch.nan
    done = []
    texts = ["a a a a", "muddy river bank", "a", "the"]
    with pytest.raises(NonFiniteResult, match="the embedding of text 2 is not finite"):
        model.embed(texts, tokens_per_pass=1, progress=lambda at, total: done.append((at, total)))
    assert done == [(1, 4)]
    with pytest.raises(NonFiniteResult, match="the embedding of the text is not finite"):
        model.embed("muddy")
    for call in (model.hidden_states, lambda some: model.hidden_states(some, layers="all")):
        with pytest.raises(NonFiniteResult, match="a hidden state of text 2 is not finite"):
            call(["a", "muddy"])


def test_which_text_is_not_finite_in_a_batch_of_several():
    values = np.zeros((2, 4, 3))
    values[1, 2, 0] = np.inf
    with pytest.raises(NonFiniteResult, match="x of 7 is not finite"):
        require_finite(values, np.array([9, 7, 3]), np.array([0, 0, 1, 2]), "x", name=str, dtype="float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_weight_that_is_not_finite_is_found_when_a_model_is_loaded(tmp_path, bad, dtype):
    folder = write_checkpoint(tmp_path / "broken", tiny_bert(), sentence=False)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][3, 5] = bad
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CorruptCheckpoint, match=rf"{name} holds a number that is not finite in {dtype}"):
        unmask.load(folder, dtype=dtype)
