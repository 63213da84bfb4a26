"""Fine-tuning for multiple choice: what is read, what is learned, and what `transformers` loads."""

import json
import random

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.specs import SPECS
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidRequest, InvalidText, TextError, TextTooLong
from unmask.training.finetune.examples import Counts, Preparation, right_choice
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.finetune.start import task_checkpoint, task_encoder
from unmask.training.objectives.labeled import LabeledObjective
from unmask.training.run.base_model import first_checkpoint
from unmask.weights.write.save import save

WORDS = ["the", "river", "bank", "was", "muddy", "a", "text", "another"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny checkpoint, and questions whose right choice is the one with the word river."""
    folder = tmp_path_factory.mktemp("choices")
    write_tokenizer(folder / "tiny")
    tiny_bert(initializer_range=0.1).save_pretrained(folder / "tiny")
    draw = random.Random(0)
    others = [word for word in WORDS if word != "river"]
    for name, count in (("train", 40), ("dev", 20)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for _ in range(count):
                choices = [" ".join(draw.choices(others, k=2)) for _ in range(draw.randint(2, 4))]
                label = draw.randrange(len(choices))
                choices[label] = "river " + choices[label]
                row = {"question": " ".join(draw.choices(others, k=3)), "choices": choices, "label": label}
                file.write(json.dumps(row) + "\n")
    return folder


def table(out, **changes):
    return {
        "name": "tiny-choice",
        "task": "multiple_choice",
        "epochs": 6,
        "batch_size": 8,
        "out": str(out),
        "model": {"start_from": "tiny"},
        "data": {"train": ["train.jsonl"], "dev": ["dev.jsonl"], "text": "question", "choices": ["choices"]},
        "optimizer": {"learning_rate": 5e-3},
        "evaluation": {"metric": "accuracy"},
        "log": {"every": 1},
    } | changes


def test_a_run_learns_and_transformers_gives_the_same_probabilities(place, tmp_path):
    result = finetune(table(tmp_path / "run"), base=place)
    assert result.dev["dev/accuracy"] > 0.9
    ours = unmask.load(result.folder)
    question, choices = "the bank was", ["a text", "river the bank", "muddy bank"]
    found = ours.choose(question, choices)
    assert found.label == "river the bank"
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(result.folder)
    assert type(theirs).__name__ == "BertForMultipleChoice"
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.folder)
    inputs = tokenizer([question] * 3, choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**{name: value[None] for name, value in inputs.items()}).logits[0]
    np.testing.assert_allclose(found.scores, logits.softmax(-1).numpy(), atol=1e-5)
    config = json.loads((result.folder / "config.json").read_text())
    assert config.keys().isdisjoint({"id2label", "label2id", "problem_type"}), "choices have no names"
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert any("multiple_choice/loss" in event for event in logged)
    again = finetune(
        table(tmp_path / "again", epochs=1, model={"start_from": str(result.folder)}), base=place
    )
    assert again.dev["dev/accuracy"] > 0.9, "the head is trained further"


def test_micro_batches_change_nothing(place, tmp_path):
    given = {"epochs": 1, "model": {"start_from": "tiny", "config": {"hidden_dropout_prob": 0.0}}}
    given["model"]["config"]["attention_probs_dropout_prob"] = 0.0
    found = []
    for count in (1, 3):
        result = finetune(table(tmp_path / str(count), micro_batches=count, **given), base=place)
        log = [json.loads(line) for line in (tmp_path / str(count) / "log.jsonl").read_text().splitlines()]
        losses = [event["multiple_choice/loss"] for event in log if "multiple_choice/loss" in event]
        assert len(losses) == result.steps == 5
        chosen = unmask.load(result.folder).choose("the bank", ["a text", "river", "muddy bank a"]).scores
        found.append([*losses, *chosen])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_the_step_is_that_of_transformers(place, tmp_path):
    settings = settings_of_table(table(tmp_path / "x"))
    begun = first_checkpoint(settings, place)
    checkpoint = task_checkpoint(settings, begun, ())
    encoder = task_encoder(settings, checkpoint, begun, lambda _: None).eval()
    save(encoder, checkpoint, tmp_path / "start")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "start").double().eval()
    preparation = Preparation(settings, (), checkpoint.tokenizer, encoder.spec, checkpoint.max_tokens)
    rows = [
        ("the bank", ("a river", "muddy", "text"), 2),
        ("a text was muddy", ("bank", "the river was", "a"), 0),
    ]
    records = [Labeled("x", question, None, label, choices) for question, choices, label in rows]
    objective = LabeledObjective(encoder.double(), "choice")
    example = objective.prepare(
        preparation.items(preparation.examples(records, Counts())), np.random.default_rng(0), 0.0
    )
    loss = objective(example, example.counts).loss
    loss.backward()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "start")
    flat = tokenizer(
        [question for question, choices, _ in rows for _ in choices],
        [choice for _, choices, _ in rows for choice in choices],
        padding=True,
        return_tensors="pt",
    )
    batch = {name: value.view(2, 3, -1) for name, value in flat.items()}
    expected = theirs(**batch, labels=torch.tensor([2, 0])).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    for mine, other in (
        (encoder.heads["choice"].out.weight, theirs.classifier.weight),
        (encoder.embedding.words.weight, theirs.bert.embeddings.word_embeddings.weight),
        (encoder.pooler.dense.weight, theirs.bert.pooler.dense.weight),
    ):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-10)


def data_of(**data):
    return settings_of_table(table("x", evaluation={}, data={"train": ["x"], **data})).data


def test_one_column_for_each_choice(tmp_path):
    """As in SWAG, whose endings continue the beginning of a second sentence; in CSV all is strings."""
    (tmp_path / "swag.csv").write_text(
        "sent1,sent2,ending0,ending1,label\nA river.,The bank,was muddy.,is a text.,1\n"
    )
    data = data_of(text="sent1", pair="sent2", choices=["ending0", "ending1"])
    (record,) = read_labeled(["swag.csv"], data, tmp_path)
    assert (record.text, record.pair, record.choices) == (
        "A river.",
        "The bank",
        ("was muddy.", "is a text."),
    )
    assert right_choice(record, data) == 1


def test_choices_begin_with_the_second_text(tiny_model):
    settings = settings_of_table(table("x", evaluation={}, data={"train": ["x"], "choices": ["c"]}))
    preparation = Preparation(settings, (), tiny_model.tokenizer, tiny_model.spec, None)
    (example,) = preparation.examples(
        [Labeled("here", "a river", "the bank", 0, ("was", "muddy a"))], Counts()
    )
    assert [one.pair for one in example.choices.encodings] == ["the bank was", "the bank muddy a"]
    assert {one.text for one in example.choices.encodings} == {"a river"}


def test_a_parquet_file_has_lists(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"q": "a", "c": ["b", "c"], "label": "c"}, {"q": "a", "c": ["b", "c", "d"], "label": "b"}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    data = data_of(text="q", choices=["c"])
    records = list(read_labeled(["a.parquet"], data, tmp_path))
    assert [record.choices for record in records] == [("b", "c"), ("b", "c", "d")]
    assert [right_choice(record, data) for record in records] == [1, 0]


@pytest.mark.parametrize(
    ("label", "choices", "expected"),
    [
        (1, ("a", "b"), 1),
        ("1", ("a", "b"), 1),
        ("b", ("a", "b"), 1),
        (1, ("1", "2"), 1),
        ("5", ("5", "6"), 0),
        ("0", ("0", "1"), 0),
        ("B", ("a", "b"), 1),
    ],
)
def test_a_label_is_a_number_or_a_text(label, choices, expected):
    data = data_of(choices=["c"], rename_labels={"A": "0", "B": "1"})
    assert right_choice(Labeled("here", "q", None, label, choices), data) == expected


@pytest.mark.parametrize(
    ("label", "choices", "sentence"),
    [
        (
            2,
            ("a", "b"),
            "here has 2 as its label; give the number of the right choice, from 0 to 1, or its te",
        ),
        (-1, ("a", "b"), "has -1 as its label"),
        (True, ("a", "b"), "has True as its label"),
        (None, ("a", "b"), "has None as its label"),
        ("c", ("a", "b"), "has 'c' as its label"),
        ("1", ("1", "2"), "has '1' as its label, which fits the choices 0 and 1; use JSON lines"),
        ("a", ("a", "a"), "which fits the choices 0 and 1"),
    ],
)
def test_a_label_that_is_neither_or_both_is_refused(label, choices, sentence):
    with pytest.raises(InvalidText, match=sentence):
        right_choice(Labeled("here", "q", None, label, choices), data_of(choices=["c"]))


@pytest.mark.parametrize(
    ("row", "changes", "sentence"),
    [
        ({"choices": ["a"]}, {}, "under 'choices'; give at least two choices as strings"),
        ({"choices": "ab"}, {}, "has 'ab' under 'choices'; give at least two"),
        ({"choices": ["a", 3]}, {}, "give at least two choices as strings"),
        ({"choices": ["a", " "]}, {}, "choice 2 of line 1 of .* has no words"),
        ({}, {"choices": ["c"]}, "no column 'c'; set data.choices to some of: question, choices, label"),
        ({}, {"choices": []}, "data.choices is empty, and multiple_choice needs"),
        ({"question": ["a", "b"]}, {}, "has a list of words as its question"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(place, tmp_path, row, changes, sentence):
    row = {"question": "the bank", "choices": ["a", "b"], "label": 0} | row
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    data = {"train": [str(tmp_path / "data.jsonl")], "text": "question", "choices": ["choices"]} | changes
    with pytest.raises((InvalidRequest, TextError), match=sentence):
        finetune(table(tmp_path / "run", data=data, evaluation={}), base=place)


def test_choices_belong_to_their_task():
    with pytest.raises(
        InvalidRequest, match=r"data\.choices is for multiple_choice, and the task is tagging"
    ):
        settings_of_table(table("x", task="tagging", evaluation={}))


def test_long_questions(tiny_model):
    record = Labeled("here", "the river bank " * 6, None, 1, ("a text", "muddy"))

    def prepared(**data):
        settings = settings_of_table(
            table("x", evaluation={}, data={"train": ["x"], "choices": ["c"], **data})
        )
        return Preparation(settings, (), tiny_model.tokenizer, tiny_model.spec, 13)

    counts = Counts()
    (cut,) = prepared().examples([record], counts)
    assert [len(one) for one in cut.choices.encodings] == [13, 12], "both have the same part of the question"
    assert (counts.truncated, counts.truncated_tokens, counts.longest) == (1, 20, 13)
    preparation = prepared(long_texts="window", overlap_tokens=2)
    (read,) = preparation.examples([record], counts)
    items = preparation.items([read])
    assert counts.windowed == 1
    assert len(items) == len(read.choices.windows[0]) == 3
    assert all(item.lengths == (13, 12) and int(item.target) == 1 for item in items)
    with pytest.raises(TextTooLong, match="here has 23 tokens with its longest choice and the limit is 13"):
        prepared(long_texts="error").examples([record], counts)


def test_the_tokens_of_a_choice_are_global(tiny_model):
    """In training too, where the encoder has global tokens."""
    settings = settings_of_table(table("x", evaluation={}, data={"train": ["x"], "choices": ["c"]}))
    preparation = Preparation(settings, (), tiny_model.tokenizer, SPECS["windows-globals"], None)
    record = Labeled("here", "a river", None, 0, ("the bank", "muddy"))
    (item,) = preparation.items(preparation.examples([record], Counts()))
    assert [(len(ids), marks) for ids, _, marks in item.sequences()] == [(7, (4, 5, 6)), (6, (4, 5))]
