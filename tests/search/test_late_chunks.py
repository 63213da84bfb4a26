"""Late chunking against the formula: means of the whole document's hidden states."""

import numpy as np
import pytest

import unmask
from unmask.errors import InvalidRequest
from unmask.search.late_chunks import late_chunks
from unmask.search.passages import passages_of
from unmask.spec import PooledVector
from unmask.text.windows import windows

TEXT = "The river bank was muddy. " * 6 + "The bank was a river."


@pytest.fixture(scope="module")
def exact(tiny_folder):
    return unmask.load(tiny_folder, dtype="float64")


def of_tokens(encoding, passages):
    """The positions of each passage's tokens in the encoding; special tokens belong to the nearest."""
    found = [list(range(one.first_token + 1, one.first_token + 1 + one.tokens)) for one in passages]
    found[0].insert(0, 0)
    found[-1].append(len(encoding) - 1)
    return found


@pytest.mark.parametrize("normalize", [False, True])
def test_a_vector_is_the_mean_of_its_tokens_states(exact, normalize):
    encoding = exact.tokenizer.encode(TEXT[:66])
    passages = passages_of(encoding, max_tokens=9, overlap_tokens=2)
    assert len(passages) > 1
    states_ND = exact.hidden_states(TEXT[:66]).numpy()
    expected = np.stack([states_ND[tokens].mean(axis=0) for tokens in of_tokens(encoding, passages)])
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    head = PooledVector(("mean",), normalize)
    np.testing.assert_allclose(late_chunks(exact, head, [(encoding, passages)])[0], expected, atol=1e-6)


def test_a_document_of_one_passage_has_its_usual_vector(exact):
    text = "the river bank"
    encoding = exact.tokenizer.encode(text)
    head = exact.embedding_head()
    vectors = late_chunks(exact, head, [(encoding, passages_of(encoding, max_tokens=None))])[0]
    np.testing.assert_allclose(vectors[0], exact.embed(text), atol=1e-6)


def test_a_long_document_takes_each_state_from_the_window_with_most_context(exact, monkeypatch):
    encoding = exact.tokenizer.encode(TEXT)
    monkeypatch.setattr(type(exact), "max_tokens", 12)
    states_ND = np.zeros((len(encoding), exact.width))
    parts = windows(encoding, 12, 4)
    assert len(parts) > 3
    for part in parts:
        states = exact.hidden_states([part.encoding.ids])[0].numpy()
        states_ND[part.tokens[part.owned]] = states[part.owned]
    passages = passages_of(encoding, max_tokens=15, overlap_tokens=3)
    expected = np.stack([states_ND[tokens].mean(axis=0) for tokens in of_tokens(encoding, passages)])
    head = PooledVector(("mean",))
    found = late_chunks(exact, head, [(encoding, passages)], overlap_tokens=4)[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        late_chunks(exact, head, [(encoding, passages)], overlap_tokens=4, tokens_per_pass=12)[0],
        found,
        atol=1e-6,
    )


def test_another_pooling_is_refused(exact):
    encoding = exact.tokenizer.encode("the river")
    with pytest.raises(InvalidRequest, match="cls pooling, and late chunking needs the mean"):
        late_chunks(exact, PooledVector(("cls",)), [(encoding, passages_of(encoding, max_tokens=None))])[0]


def test_documents_do_not_change_each_other(exact, monkeypatch):
    monkeypatch.setattr(type(exact), "max_tokens", 12)
    documents = []
    for text in (TEXT, "the river bank", TEXT[:66]):
        encoding = exact.tokenizer.encode(text)
        documents.append((encoding, passages_of(encoding, max_tokens=9)))
    together = late_chunks(exact, exact.embedding_head(), documents)
    for document, vectors_PE in zip(documents, together, strict=True):
        (alone_PE,) = late_chunks(exact, exact.embedding_head(), [document])
        assert vectors_PE.shape == (len(document[1]), exact.width)
        np.testing.assert_allclose(vectors_PE, alone_PE, rtol=0, atol=1e-6)
