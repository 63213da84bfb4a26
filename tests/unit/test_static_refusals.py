"""What needs layers says so of a static model, in one sentence: methods, commands and routes."""

import json

import numpy as np
import pytest

import unmask
from tests.parity.test_static import table, write_folder
from tests.support.command import run_here
from unmask.errors import InvalidRequest, UnmaskError

NEEDS = "needs layers, and this is a static model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("static") / "words", {"embeddings": table()}, normalize=True)


METHODS = {
    "trainable_encoder": lambda model: model.trainable_encoder(),
    "encoder": lambda model: model.encoder,
    "attention": lambda model: model.attention("a river"),
    "attention_over": lambda model: model.attention_over(["a river", "a bank"]),
    "edit": lambda model: model.edit("residual", lambda x, at: None).__enter__(),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_about_layers(name, folder):
    with pytest.raises(InvalidRequest, match=NEEDS):
        METHODS[name](unmask.load(folder))


TASKS = {
    "fill": lambda model: model.fill("a [MASK]"),
    "classify": lambda model: model.classify("a river"),
    "tag": lambda model: model.tag("a river"),
    "answer": lambda model: model.answer("a river?", "a river"),
    "sparse_vectors": lambda model: model.sparse_vectors("a river"),
    "multi_vectors": lambda model: model.multi_vectors("a river"),
    "score_pairs": lambda model: model.score_pairs(["a river"], ["a bank"]),
    "logits": lambda model: model.logits("a river"),
    "masked_view": lambda model: model.masked_view("a river"),
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_of_heads(name, folder):
    with pytest.raises(UnmaskError) as caught:
        TASKS[name](unmask.load(folder))
    assert "\n" not in str(caught.value)


COMMANDS = [
    ("look", "a river"),
    ("report", "a river", "-o", "report.html"),
    ("geometry", "texts.txt"),
    ("attribute", "a river"),
    ("senses", "river", "texts.txt"),
    ("bench", "speed"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_about_layers(command, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a river\na bank\nthe river\n")
    ran = run_here(*command, "-m", folder)
    assert ran.code != 0
    assert ran.out == ""
    assert ran.err.startswith("unmask: ")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_export_and_training(folder, tmp_path):
    ran = run_here("export", folder, "-o", tmp_path / "graph")
    assert NEEDS in ran.err
    (tmp_path / "data.jsonl").write_text(
        '{"text": "a river", "label": "x"}\n{"text": "bank", "label": "y"}\n'
    )
    (tmp_path / "run.toml").write_text(
        f'task = "classification"\n[model]\nstart_from = {json.dumps(str(folder))}\n'
        '[data]\ntrain = "data.jsonl"\ndev = "data.jsonl"\n'
    )
    ran = run_here("finetune", tmp_path / "run.toml", "-o", tmp_path / "run")
    assert ran.err.count("\n") == 1, ran.err
    assert ran.code != 0


def test_kernels_say_what_computes_it(folder):
    ran = run_here("kernels", "-m", folder, "--json")
    assert json.loads(ran.out)["inference"] == {
        "float32": {"backend": "numpy, the mean of rows of a table", "reason": None}
    }


def test_adapters(folder):
    with pytest.raises(UnmaskError):
        unmask.load(folder, adapter="sentiment")


def test_what_works(folder, tmp_path):
    """Embedding, comparing, inspecting, converting, indexing and searching."""
    (tmp_path / "texts.txt").write_text("a river\na bank\n")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("the river was muddy.")
    (tmp_path / "documents" / "b.txt").write_text("a text, another text.")
    for arguments in (
        ("inspect", folder, "--tensors"),
        ("similarity", "a river", "a bank", "-m", folder),
        ("embed", tmp_path / "texts.txt", "-m", folder, "-o", tmp_path / "vectors.npy"),
        ("convert", folder, tmp_path / "copy", "--dtype", "float16"),
        ("index", tmp_path / "documents", "-m", folder, "-o", tmp_path / "index", "--no-bm25"),
        ("search", tmp_path / "index", "muddy river"),
    ):
        ran = run_here(*arguments)
        assert (ran.code, arguments[0]) == (0, arguments[0]), ran.err
    assert "a.txt" in ran.out.splitlines()[0]


def test_a_server_answers_with_its_vectors_and_refuses_the_rest(folder):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    from starlette.testclient import TestClient

    from unmask.serve import make_app

    model = unmask.load(folder)
    texts = ["the river was muddy.", "a bank, a text", "muddy"]
    app = make_app({"words": model})
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        answer = client.post("/v1/embeddings", json={"input": texts}).json()
        np.testing.assert_allclose(
            [row["embedding"] for row in answer["data"]], model.embed(texts), atol=1e-6
        )
        refused = client.post("/v1/classify", json={"input": texts})
        assert (refused.status_code // 100, refused.json()["error"]["message"].count(".") < 3) == (4, True)
    app.state.service.close()


def test_shards_have_the_vectors_of_the_model(folder, tmp_path):
    pytest.importorskip("pyarrow", reason="shards are read by pyarrow")
    from unmask.bulk import BatchEmbedder, run_shards

    texts = ["the river was muddy.", "a bank, a text", "muddy"]
    source, out = tmp_path / "texts.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run_shards([str(source)], str(out), BatchEmbedder(str(folder)), rows_per_shard=2)
    rows = [
        json.loads(line)
        for part in sorted(out.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    np.testing.assert_allclose(
        [row["embedding"] for row in rows], unmask.load(folder).embed(texts), atol=1e-6
    )
