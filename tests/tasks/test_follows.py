"""Whether one text follows another: against transformers, and in every place where a task is run."""

import json

import pytest
import torch
import transformers
from starlette.testclient import TestClient

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import MAX_TOKENS, SPARE_IDS, VOCABULARY, tiny_bert, write_checkpoint
from unmask.bulk import BatchPredictor
from unmask.errors import InvalidRequest, TextTooLong
from unmask.serve import make_app

FIRSTS = ["the river bank was muddy", "another text", "a bank."]
SECONDS = ["muddy, the river was", "a text", "the river"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("follows")
    write_checkpoint(
        folder / "next", tiny_bert("BertForNextSentencePrediction", initializer_range=0.5), sentence=False
    )
    return folder


@pytest.fixture(scope="module")
def model(place):
    return unmask.load(place / "next")


def test_probabilities_are_theirs(place, model):
    theirs = transformers.BertForNextSentencePrediction.from_pretrained(place / "next").eval()
    results = model.follows(FIRSTS, SECONDS)
    for result, first, second in zip(results, FIRSTS, SECONDS, strict=True):
        encoding = model.tokenize(first, second)
        with torch.no_grad():
            logits = theirs(
                torch.tensor([encoding.ids.tolist()]),
                token_type_ids=torch.tensor([encoding.token_type_ids.tolist()]),
            ).logits
        assert result.probability == pytest.approx(logits.softmax(-1)[0, 0].item(), abs=1e-5)
        assert result.follows == (result.probability > 0.5)
        assert (result.tokens_read, result.windows) == (len(encoding), 1)
    assert len({round(result.probability, 3) for result in results}) == 3
    assert model.follows(FIRSTS[0], SECONDS[0]).probability == pytest.approx(results[0].probability, abs=1e-6)
    assert model.follows([], []) == []


def test_the_order_of_sentences_is_read_as_in_the_view(tmp_path):
    """ALBERT's head: class 0 is that of sentences in order."""
    config = transformers.AlbertConfig(
        vocab_size=len(VOCABULARY) + SPARE_IDS, embedding_size=8, hidden_size=32, num_attention_heads=2,
        num_hidden_layers=2, intermediate_size=37, max_position_embeddings=MAX_TOKENS, initializer_range=0.4,
    )  # fmt: skip
    torch.manual_seed(0)
    write_checkpoint(tmp_path / "order", transformers.AlbertForPreTraining(config).eval(), sentence=False)
    model = unmask.load(tmp_path / "order")
    view = model.sentence_pair_view(FIRSTS[0], SECONDS[0])
    assert model.follows(FIRSTS[0], SECONDS[0]).probability == pytest.approx(view.given.probability, abs=1e-5)
    assert model.follows(SECONDS[0], FIRSTS[0]).probability == pytest.approx(
        view.swapped.probability, abs=1e-5
    )


def test_what_cannot_be_read_is_refused(model):
    long = "the river " * 60
    with pytest.raises(TextTooLong, match="pair 2 of mine has 1"):
        model.follows([FIRSTS[0], long], [SECONDS[0], "a"], name=lambda index: f"pair {index + 1} of mine")
    assert model.follows(long, "a", truncation="end").truncated_tokens > 0
    with pytest.raises(InvalidRequest, match="cannot judge whether one text follows another, because its ch"):
        unmask.load("default").follows("a", "b")
    with pytest.raises(InvalidRequest, match="seconds is None"):
        model.follows("a", None)


def test_a_head_of_more_classes_is_refused(tmp_path):
    theirs = tiny_bert("BertForNextSentencePrediction")
    theirs.cls.seq_relationship = torch.nn.Linear(theirs.config.hidden_size, 3)
    model = unmask.load(write_checkpoint(tmp_path / "three", theirs, sentence=False))
    with pytest.raises(InvalidRequest, match="its next_sentence head has 3 classes instead of 2"):
        model.follows("a text", "another text")


def test_every_place_gives_the_same(place, model, tmp_path):
    expected = [result.probability for result in model.follows(FIRSTS, SECONDS)]
    words = ["yes" if result.follows else "no" for result in model.follows(FIRSTS, SECONDS)]
    app = make_app({"next": model})
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/follows", json={"pairs": list(zip(FIRSTS, SECONDS, strict=True))}).json()
        assert [row["probability"] for row in answer["results"]] == pytest.approx(expected, abs=1e-5)
        assert client.post("/v1/follows", json={"pairs": [FIRSTS[0], SECONDS[0]]}).json()["results"][0][
            "follows"
        ]
        refused = client.post("/v1/follows", json={"pairs": "a"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "pairs")
    app.state.service.close()
    rows = BatchPredictor(str(place / "next"), method="follows", columns={"seconds": "pair"})(
        {"text": FIRSTS, "pair": SECONDS}
    )
    assert rows["probability"] == pytest.approx(expected, abs=1e-5)
    lines = tmp_path / "pairs.txt"
    lines.write_text("".join(f"{first}\t{second}\n" for first, second in zip(FIRSTS, SECONDS, strict=True)))
    printed = run_here("follows", "-m", place / "next", "--file", lines)
    assert printed.out == "".join(f"{word}\t{p:.4f}\n" for word, p in zip(words, expected, strict=True))
    table = tmp_path / "pairs.csv"
    table.write_text("a,b\n" + "".join(f'"{a}","{b}"\n' for a, b in zip(FIRSTS, SECONDS, strict=True)))
    printed = run_here(
        "follows", "-m", place / "next", "--file", table, "--field", "a", "--pair-field", "b", "--json"
    )
    assert [json.loads(line)["probability"] for line in printed.out.splitlines()] == pytest.approx(
        expected, abs=1e-5
    )
    typed = run_here("follows", FIRSTS[0], SECONDS[0], "-m", place / "next")
    assert typed.out.split("\t")[0] == words[0]
    for arguments, sentence in (
        ((FIRSTS[0],), "give two texts, or neither"),
        (("--file", lines, "--field", "a"), "--field and --pair-field are for tables"),
        (("--file", table, "--field", "c"), "'c'"),
    ):
        assert_one_sentence(run_here("follows", "-m", place / "next", *arguments), sentence)
