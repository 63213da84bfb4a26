"""A static model made from an encoder, and what the command says of it."""

import json
import subprocess
import sys

import numpy as np
import pytest

import unmask
from tests.support.command import run_here
from tests.support.tiny import VOCABULARY, WIDTH, tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest, OutputError
from unmask.models import distill_static as module

TEXTS = [
    f"{first} {second} {third}"
    for first in ("the river", "a bank", "muddy text")
    for second in ("was", "was muddy", "a text")
    for third in (".", "!", "river bank", "another bank")
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("teacher") / "tiny", tiny_bert())
    return unmask.load(folder)


def test_a_token_has_the_teachers_vector_of_it_reduced_and_weighted(teacher, tmp_path):
    """With all dimensions, cosines of centered vectors stay."""
    done = unmask.distill_static(teacher, tmp_path / "static", dimensions=WIDTH, smoothing=1.0)
    static = unmask.load(tmp_path / "static")
    assert (done.vocabulary, done.dimensions, done.texts, done.epochs) == (len(VOCABULARY), WIDTH, 0, 0)
    assert done.explained == pytest.approx(1)
    words = ["river", "bank", "muddy", "text", "the"]
    inside = [VOCABULARY.index(word) for word in words]
    (states,) = [static.hidden_states([[id_] for id_ in range(len(VOCABULARY))])]
    table = np.array([np.asarray(state)[0] for state in states])
    special = [VOCABULARY.index(piece) for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    assert not table[special].any()
    assert table[inside].any(1).all()
    # Distances between rows before weights are those between the teacher's vectors.
    vectors = teacher.embed(words, normalize=False)
    ranks = np.arange(1, len(VOCABULARY) - 4)
    shares = 1 / ranks / (1 / ranks).sum()
    rows = table[inside] * (1 + shares[np.array(inside) - 5])[:, None]
    ours = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    theirs = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_training_brings_texts_nearer_to_the_teacher(teacher, tmp_path):
    done = unmask.distill_static(teacher, tmp_path / "static", dimensions=8, texts=TEXTS, epochs=30)
    assert done.cosine > done.cosine_before + 0.02
    assert 1 <= done.epochs <= 30
    again = unmask.distill_static(teacher, tmp_path / "again", dimensions=8, texts=TEXTS, epochs=30)
    assert again.cosine == done.cosine
    mine, other = (unmask.load(tmp_path / name).embed(TEXTS) for name in ("static", "again"))
    np.testing.assert_array_equal(mine, other)
    np.testing.assert_allclose(np.linalg.norm(mine, axis=1), 1, rtol=1e-6)


def test_the_folder_is_whole_and_described(teacher, tmp_path):
    unmask.distill_static(teacher, tmp_path / "static", dimensions=8)
    names = {path.name for path in (tmp_path / "static").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "modules.json", "tokenizer.json"} <= names
    card = (tmp_path / "static" / "README.md").read_text()
    assert "base_model: tiny" in card
    assert "not trained" in card
    assert unmask.load(tmp_path / "static", verify=True).checkpoint.unread_config == ()
    model2vec = pytest.importorskip("model2vec", reason="model2vec, which is compared with, is not installed")
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "static").encode(TEXTS)
    np.testing.assert_allclose(unmask.load(tmp_path / "static").embed(TEXTS), theirs, atol=1e-6)


def test_sentence_transformers_reads_the_folder(teacher, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    unmask.distill_static(teacher, tmp_path / "static", dimensions=8)
    theirs = st.SentenceTransformer(str(tmp_path / "static"), device="cpu").encode(["a river 世", *TEXTS])
    np.testing.assert_allclose(
        unmask.load(tmp_path / "static").embed(["a river 世", *TEXTS]), theirs, atol=1e-6
    )


def test_a_failure_leaves_nothing(teacher, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmask.weights.write.static.save_file", fail)
    with pytest.raises(OutputError, match="No space left"):
        unmask.distill_static(teacher, tmp_path / "static", dimensions=8)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_refused_by_one_sentence(teacher, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for folder, options, words in (
        ("new", {"dimensions": WIDTH + 1}, f"dimensions is {WIDTH + 1} and the vectors of tiny have {WIDTH}"),
        ("new", {"dimensions": 0}, "dimensions is 0"),
        ("new", {"smoothing": 0}, "smoothing is 0"),
        ("new", {"epochs": 0}, "epochs is 0"),
        ("new", {"texts": ["river"], "dimensions": 8}, "a single text"),
        ("full", {}, "exists already"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            unmask.distill_static(teacher, tmp_path / folder, **options)
    unmask.distill_static(teacher, tmp_path / "static", dimensions=8)
    with pytest.raises(InvalidRequest, match="the teacher of a static model needs layers"):
        unmask.distill_static(tmp_path / "static", tmp_path / "new", dimensions=4)
    assert not (tmp_path / "new").exists()


def test_the_command(teacher, tmp_path):
    folder = teacher.checkpoint.source.folder
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ["distill-static", "-m", folder, "--dimensions", 8]
    ran = run_here(*arguments, "-o", tmp_path / "one", "--texts", tmp_path / "texts.txt", "--epochs", 3)
    assert (ran.code, ran.err) == (0, "")
    assert "is ready: " in ran.out
    assert "before training" in ran.out
    ran = run_here(*arguments, "-o", tmp_path / "two", "--json")
    assert json.loads(ran.out)["dimensions"] == 8
    ran = run_here(*arguments, "-o", tmp_path / "two")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("unmask: ")
    assert ran.err.count("\n") == 1


def test_no_torch_is_imported_to_make_or_run_one(teacher, tmp_path):
    """Unless it is trained."""
    code = f"""
import sys, unmask
unmask.distill_static({str(teacher.checkpoint.source.folder)!r}, {str(tmp_path / "static")!r}, dimensions=8)
model = unmask.load({str(tmp_path / "static")!r})
model.embed("a river")
model.save({str(tmp_path / "saved")!r})
assert "torch" not in sys.modules, "torch is imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_weights_fall_with_frequency():
    counted = np.array([False, True, True, True])
    by_rank = module._weights(counted, [], 0.1)
    assert by_rank[1] < by_rank[2] < by_rank[3]
    by_count = module._weights(counted, [np.array([3, 3, 3, 3, 2])], 0.1)
    assert by_count[3] < by_count[2] < by_count[1]
