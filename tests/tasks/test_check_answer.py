"""Parts of answers that contexts do not support: against transformers, and in every place of a task.

The expected prompts are those of `lettucedetect` 0.2.3, with which a recorded run compared whole results.
"""

import json

import numpy as np
import pytest
import torch
import transformers
from starlette.testclient import TestClient

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.grounding import write_grounder
from unmask.bulk import BatchPredictor
from unmask.errors import EmptyText, InvalidRequest, InvalidText, TextTooLong
from unmask.serve import make_app

ANSWER = "Paris has nine million 😀 people and the river is long."
CONTEXTS = ["Paris has two million people.", "The Seine crosses it.\n"]
QUESTION = "How large is {Paris}?"
ASKED = (
    "Briefly answer the following question:\nHow large is {Paris}?\nBear in mind that your response should "
    "be strictly based on the following 2 passages:\npassage 1: Paris has two million people.\npassage 2: "
    "The Seine crosses it.\n\nIn case the passages do not contain the necessary information to answer the "
    'question, please reply with: "Unable to answer based on given passages."\noutput:'
)
SUMMARY = "Riassumi il seguente testo:\nbrano 1: Paris has two million people.\nRisposta: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_grounder(tmp_path_factory.mktemp("grounder"))


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.ModernBertForTokenClassification.from_pretrained(folder).eval()

    def flagged(prompt, answer):
        """The probability of class 1 and the characters of each token of the answer."""
        batch = tokenizer(prompt, answer, return_tensors="pt", return_offsets_mapping=True)
        own = torch.tensor([of == 1 for of in batch.sequence_ids(0)])
        bounds_N2 = batch.pop("offset_mapping")[0][own].tolist()
        with torch.no_grad():
            logits_NC = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[
                0
            ]
        return logits_NC[own].softmax(-1)[:, 1].numpy(), bounds_N2

    return flagged


def spans_of(p_N, bounds_N2, answer, threshold=0.5):
    """The characters of flagged tokens, joined where tokens are neighbors, without spaces at ends."""
    spans, before = [], False
    for p, (start, end) in zip(p_N.tolist(), bounds_N2, strict=True):
        if p > threshold and before:
            spans[-1] = [spans[-1][0], end, max(spans[-1][2], p)]
        elif p > threshold:
            spans.append([start, end, p])
        before = p > threshold
    result = []
    for first, last, p in spans:
        text = answer[first:last]
        if text.strip():
            start, end = last - len(text.lstrip()), first + len(text.rstrip())
            if result and start < result[-1][1]:
                result[-1] = (result[-1][0], end, max(p, result[-1][2]))
            else:
                result.append((start, end, p))
    return result


def assert_is(result, expected, answer=ANSWER):
    assert [(it.start, it.end) for it in result.spans] == [it[:2] for it in expected]
    assert [it.score for it in result.spans] == pytest.approx([it[2] for it in expected], abs=1e-5)
    assert all(it.text == answer[it.start : it.end] for it in result.spans)
    assert result.supported == (not expected)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.7])
@pytest.mark.parametrize(
    ("contexts", "question", "language", "prompt"),
    [(CONTEXTS, QUESTION, "en", ASKED), (CONTEXTS[0], None, "it", SUMMARY)],
)
def test_spans_are_theirs(model, theirs, contexts, question, language, prompt, threshold):
    result = model.check_answer(ANSWER, contexts, question, language=language, threshold=threshold)
    p_N, bounds_N2 = theirs(prompt, ANSWER)
    assert_is(result, spans_of(p_N, bounds_N2, ANSWER, threshold))
    assert result.score == pytest.approx(p_N.max(), abs=1e-5)
    assert (result.tokens_read, result.windows) == (len(model.tokenize(prompt, ANSWER)), 1)
    if threshold == 0.5:
        assert 1 < len(result.spans) < len(p_N)


def test_a_supported_answer_has_no_spans(model):
    result = model.check_answer(ANSWER, CONTEXTS, QUESTION, threshold=1.0)
    assert (result.supported, result.spans) == (True, ())
    assert 0 < result.score < 1


def test_several_answers_are_those_alone(model):
    answers, contexts, questions = [ANSWER, "It is."], [CONTEXTS, CONTEXTS[0]], [QUESTION, None]
    both = model.check_answer(answers, contexts, questions)
    for result, *arguments in zip(both, answers, contexts, questions, strict=True):
        alone = model.check_answer(*arguments)
        assert_is(alone, [(it.start, it.end, it.score) for it in result.spans], arguments[0])
    assert model.check_answer([], []) == []


def test_what_one_window_supports_is_supported(model, theirs):
    """Each window holds whole passages, numbered anew; the lowest probability counts."""
    passages = [f"The river number {number} crosses the city of Paris. " * 3 for number in range(5)]
    alone = len(model.tokenize(f"Summarize the following text:\npassage 1: {passages[0]}\noutput:", ANSWER))
    result = model.check_answer(ANSWER, passages, threshold=0.4, max_tokens=alone + 20)
    windows = [
        theirs(f"Summarize the following text:\npassage 1: {passage}\noutput:", ANSWER)
        for passage in passages
    ]
    p_N = np.min([p_N for p_N, _ in windows], axis=0)
    assert_is(result, spans_of(p_N, windows[0][1], ANSWER, 0.4))
    assert result.windows == 5
    assert result.score == pytest.approx(p_N.max(), abs=1e-5)
    two = model.check_answer(ANSWER, passages, max_tokens=2 * alone)
    assert two.windows == 3
    first = model.check_answer(ANSWER, passages, max_tokens=2 * alone, truncation="end")
    assert (first.windows, first.tokens_read + first.truncated_tokens) == (1, two.tokens_read)
    p_N, bounds_N2 = theirs(
        "Summarize the following text:\n"
        + "\n".join(f"passage {number}: {text}" for number, text in enumerate(passages[:2], start=1))
        + "\noutput:",
        ANSWER,
    )
    assert_is(first, spans_of(p_N, bounds_N2, ANSWER))


def test_a_passage_that_is_too_long_is_read_in_parts(model):
    words = [f"word{number}" for number in range(300)]
    read = []
    reader = model.reader
    ready = unmask.tasks.check_answer.prepare(
        reader, ANSWER, ["Short.", " ".join(words)], QUESTION, max_tokens=350, overlap_tokens=7
    )
    assert all(len(encoding) <= 350 for encoding in ready.encodings)
    assert len(ready.encodings) > 3
    for encoding in ready.encodings:
        read += [line.partition(": ")[2] for line in encoding.text.split("\n") if line.startswith("passage ")]
    assert read[0] == "Short."
    joined = read[1]
    for part in read[2:]:
        shared = max(size for size in range(len(part)) if joined.endswith(part[:size]))
        assert shared >= 7, "neighbors share tokens"
        joined += part[shared:]
    assert joined == " ".join(words)


def test_what_cannot_be_read_is_refused(model, tmp_path):
    for arguments, options, error, sentence in (
        (("", CONTEXTS), {}, EmptyText, "the answer has no words"),
        ((["a", " "], [CONTEXTS] * 2), {}, EmptyText, "answer 2 has no words"),
        ((ANSWER, []), {}, InvalidRequest, "contexts is empty"),
        ((ANSWER, [3]), {}, InvalidText, "context 1"),
        (
            ([ANSWER], CONTEXTS),
            {},
            InvalidRequest,
            "there are 1 answers and contexts for 2; give each answer",
        ),
        ((ANSWER, CONTEXTS, ["a", "b"]), {}, InvalidRequest, "there are 1 answers and 2 questions"),
        ((ANSWER, CONTEXTS, " "), {}, EmptyText, "the question has no words"),
        ((ANSWER, CONTEXTS), {"threshold": 2}, InvalidRequest, "threshold is 2"),
        ((ANSWER, CONTEXTS), {"language": "xx"}, InvalidRequest, "language is 'xx'; it can be"),
        ((ANSWER, CONTEXTS), {"max_tokens": 9000}, InvalidRequest, "max_tokens is 9000, and .* reads 8192"),
        ((ANSWER, CONTEXTS), {"max_tokens": 9}, TextTooLong, "leave no room for contexts in the 9 tokens"),
        ((ANSWER, "long " * 200), {"max_tokens": 100, "truncation": "error"}, TextTooLong, "the answer and"),
        (
            (ANSWER, "long " * 200),
            {"max_tokens": 150, "overlap_tokens": 140},
            InvalidRequest,
            "lower overlap",
        ),
    ):
        with pytest.raises(error, match=sentence):
            model.check_answer(*arguments, **options)
    three = unmask.load(write_grounder(tmp_path, num_labels=3))
    with pytest.raises(InvalidRequest, match="cannot check answers, because its tokens head has 3 classes"):
        three.check_answer(ANSWER, CONTEXTS)


def test_every_place_gives_the_same(folder, model, tmp_path):
    expected = model.check_answer(ANSWER, CONTEXTS, QUESTION)
    spans = [vars(span) for span in expected.spans]
    app = make_app({"grounder": model})
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = {"answer": ANSWER, "contexts": CONTEXTS, "question": QUESTION}
        sent = client.post("/v1/check_answer", json=body).json()
        refused = client.post("/v1/check_answer", json=body | {"language": "xx"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "language")
        blank = client.post("/v1/check_answer", json=body | {"contexts": []})
        assert blank.status_code == 400
    app.state.service.close()
    assert sent["supported"] is False
    assert [span["start"] for span in sent["spans"]] == [span["start"] for span in spans]
    rows = BatchPredictor(
        str(folder),
        method="check_answer",
        column="answer",
        columns={"contexts": "context", "question": "asked"},
    )({"answer": [ANSWER, "It is."], "context": [CONTEXTS, CONTEXTS], "asked": [QUESTION, QUESTION]})
    assert rows["score"][0] == pytest.approx(expected.score, abs=1e-5)
    given = [part for text in CONTEXTS for part in ("--context", text)]
    typed = run_here("check-answer", ANSWER, *given, "--question", QUESTION, "-m", folder)
    lines = [f"{it.score:.4f}\t{it.start}\t{it.end}\t{it.text}" for it in expected.spans]
    assert typed.out.splitlines() == lines
    table = tmp_path / "answers.jsonl"
    records = [
        {"id": "a", "answer": ANSWER, "context": CONTEXTS, "question": QUESTION},
        {"id": "b", "answer": ANSWER, "context": CONTEXTS[0]},
    ]
    table.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    printed = run_here("check-answer", "--file", table, "-m", folder)
    assert printed.out.splitlines()[: len(lines)] == [f"a\t{line}" for line in lines]
    second = model.check_answer(ANSWER, CONTEXTS[0])
    written = tmp_path / "checked.jsonl"
    run_here("check-answer", "--file", table, "-m", folder, "-o", written)
    row = json.loads(written.read_text(encoding="utf-8").splitlines()[1])
    assert row["score"] == pytest.approx(second.score, abs=1e-5)
    assert (row["id"], row["tokens_read"]) == ("b", second.tokens_read)
    sure = run_here("check-answer", ANSWER, *given, "--threshold", "1", "-m", folder)
    assert sure.out.startswith("supported\t0.")
    for arguments, sentence in (
        ((ANSWER,), "give an answer with --context"),
        (("--context", "a"), "for an answer on the command line"),
        (("--file", tmp_path / "answers.txt"), "this command reads"),
        ((), "standard input is taken for a file of format lines, and this command reads"),
    ):
        assert_one_sentence(run_here("check-answer", "-m", folder, *arguments), sentence)
