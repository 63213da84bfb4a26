"""Multiple choice and zero-shot classification of tiny checkpoints, beside `transformers`."""

import itertools
import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers

import unmask
from tests.support.command import run_here
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidRequest, InvalidText, NonFiniteResult, TextError, TextTooLong
from unmask.spec import Classifier
from unmask.tasks import choose, zero_shot
from unmask.tasks.aligned import align
from unmask.text.windows import aligned_windows

QUESTIONS = ["The river bank was muddy.", "a text"]
CHOICES = [["the river", "a bank!", "another text, muddy"], ["muddy", "the bank was a river"]]
LONG = "the river bank was muddy . " * 3 + "a text , another text ! " * 2 + "3 3 3 river ! ! ! , "
NLI = ["contradiction", "neutral", "entailment"]
LABELS = ["muddy", "a river", "another text"]


def saved(folder, kind, labels=None, **changes):
    if labels:
        numbers = {label: number for number, label in enumerate(labels)}
        changes |= {"id2label": dict(enumerate(labels)), "label2id": numbers}
    model = tiny_bert(kind, **changes)
    write_tokenizer(folder)
    model.save_pretrained(folder)
    return model, unmask.load(folder)


@pytest.fixture(scope="module")
def choice(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("choice"), "BertForMultipleChoice")


@pytest.fixture(scope="module")
def entailment(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("entailment"), "BertForSequenceClassification", NLI)


def their_probabilities(model, folder, question, choices):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer([question] * len(choices), choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**{name: value[None] for name, value in inputs.items()}).logits[0].softmax(-1).numpy()


def test_choices_are_those_of_transformers(choice):
    theirs, ours = choice
    found = ours.choose(QUESTIONS, CHOICES)
    for question, choices, one in zip(QUESTIONS, CHOICES, found, strict=True):
        p = their_probabilities(theirs, ours.checkpoint.source.folder, question, choices)
        np.testing.assert_allclose(one.scores, p, atol=1e-6)
        assert (one.index, one.label, one.score) == (p.argmax(), choices[p.argmax()], max(one.scores))
        assert one.tokens_read == sum(len(ours.tokenizer.encode(question, each)) for each in choices)
        assert (one.windows, one.truncated_tokens) == (1, 0)
        np.testing.assert_allclose(ours.choose(question, choices).scores, one.scores, atol=1e-5)
    assert ours.choose([], []) == []


def test_the_order_of_choices_is_that_of_their_scores(choice):
    _, ours = choice
    for question in (QUESTIONS[0], LONG):
        scores = dict(zip(CHOICES[0], ours.choose(question, CHOICES[0]).scores, strict=True))
        for order in itertools.permutations(CHOICES[0]):
            found = ours.choose(question, order)
            np.testing.assert_allclose(found.scores, [scores[each] for each in order], atol=1e-6)
            assert order[found.index] == found.label == max(scores, key=scores.get)


def packed_logits(ours, encoding, role):
    from unmask.text import PackedBatch

    return ours.engine.logits(PackedBatch.of_ids([encoding.ids], [encoding.token_type_ids]), role)[0]


def test_a_long_question_is_the_mean_of_windows_that_all_choices_share(choice):
    _, ours = choice
    choices = ["muddy", "the bank was a river"]
    found = ours.choose(LONG, choices, overlap_tokens=3)
    parts = aligned_windows([ours.tokenizer.encode(LONG, each) for each in choices], 23, 3)
    assert found.windows == len(parts[0]) == len(parts[1]) == 3
    assert (found.tokens_read, found.truncated_tokens) == (38 + 3 + 1 + 38 + 3 + 5, 0)
    p_WA, owned = [], []
    for windows in zip(*parts, strict=True):
        questions = [window.encoding.ids[window.encoding.sequence_ids == 0].tolist() for window in windows]
        assert questions[0] == questions[1]
        logits = np.array([packed_logits(ours, window.encoding, "choice")[0] for window in windows])
        owned.append((windows[0].owned & (windows[0].encoding.sequence_ids == 0)).sum())
        p_WA.append(np.exp(logits) / np.exp(logits).sum())
    p = np.array(owned) / 38 @ p_WA
    assert np.abs(p - np.mean(p_WA, axis=0)).max() > 1e-3, "the weights matter here"
    np.testing.assert_allclose(found.scores, p, atol=1e-6)
    cut = ours.choose(LONG, choices, truncation="end")
    begun = " ".join(LONG.split()[:15])
    assert (cut.windows, cut.tokens_read, cut.truncated_tokens) == (1, 19 + 23, 46)
    np.testing.assert_allclose(cut.scores, ours.choose(begun, choices).scores, atol=1e-6)
    with pytest.raises(TextTooLong, match="the question has 46 tokens with its longest choice"):
        ours.choose(LONG, choices, truncation="error")


def test_a_number_that_is_not_finite_names_its_question(tmp_path):
    _, ours = saved(tmp_path, "BertForMultipleChoice")
    with torch.no_grad():
        ours.trainable_encoder().embedding.words.weight[ours.tokenizer.encode("3").ids[1]] = torch.nan
    with pytest.raises(NonFiniteResult, match="of text 2 is not finite"):
        ours.choose(["a text", "3"], CHOICES)


def test_windows_are_not_counted_as_texts_that_lost_their_end(choice):
    _, ours = choice
    counts = [
        choose.prepare(ours.reader, LONG, CHOICES[0], truncation=truncation).truncated
        for truncation in ("window", "end")
    ]
    assert counts == [0, len(CHOICES[0])]


def test_a_choice_that_leaves_no_room_is_refused(choice):
    tokenizer = choice[1].tokenizer
    encoding = tokenizer.encode("a text", CHOICES[0][2])
    others = len(encoding) - int((encoding.sequence_ids == 0).sum())
    (cut,) = align([encoding], max_tokens=others + 1, truncation="end").encodings
    assert len(cut) == others + 1
    with pytest.raises(InvalidRequest, match="the longest choice leaves no room"):
        align([encoding], max_tokens=others, truncation="end")


def test_companions_change_nothing(choice, entailment):
    questions, choices = [QUESTIONS[0], LONG, QUESTIONS[1]], [CHOICES[0], CHOICES[1], CHOICES[1]]
    together = choice[1].choose(questions, choices)
    for question, some, one in zip(questions, choices, together, strict=True):
        np.testing.assert_allclose(choice[1].choose(question, some).scores, one.scores, atol=1e-5)
    for one, text in zip(entailment[1].zero_shot(questions, LABELS), questions, strict=True):
        alone = entailment[1].zero_shot(text, LABELS)
        np.testing.assert_allclose(list(alone.scores.values()), list(one.scores.values()), atol=1e-5)


def test_longformer_gives_its_global_attention_to_the_choice(tmp_path):
    config = transformers.LongformerConfig(
        vocab_size=300, hidden_size=12, num_attention_heads=2, intermediate_size=9, num_hidden_layers=2,
        attention_window=4, max_position_embeddings=70, type_vocab_size=1, pad_token_id=1, sep_token_id=2,
        initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LongformerForMultipleChoice(config).eval()
    theirs.save_pretrained(tmp_path)
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ"]
    vocabulary = {piece: n for n, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    ours = unmask.load(tmp_path)
    choices = ["a choice", "another"]
    found = ours.choose("the question here", choices)
    logits = []
    for encoding in ours.tokenize(["the question here"] * 2, choices):
        ids = torch.from_numpy(encoding.ids.copy())[None, None]
        with torch.no_grad():
            logits.append(theirs(ids, attention_mask=torch.ones_like(ids)).logits[0, 0])
    np.testing.assert_allclose(found.scores, torch.stack(logits).softmax(0).numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("questions", "choices", "error", "sentence"),
    [
        ("a", ["b"], InvalidRequest, "the question has 1 choice; give at least two"),
        (["a", "b"], [["c", "d"], []], InvalidRequest, "text 2 has 0 choices; give at least two"),
        (["a"], [["b", "c"], ["d", "e"]], InvalidRequest, "1 questions and 2 lists of choices"),
        ("a", "bc", InvalidRequest, "choices is 'bc'; give a list of strings"),
        (["a"], ["bc"], InvalidRequest, "the choices of text 1 are 'bc'; give a list"),
        (["a"], [7], InvalidRequest, "the choices of text 1 is 7; give"),
        ("a", ["b", " "], TextError, "choice 2 of the question has no words"),
        ("a", ["b", 3], InvalidText, "choice 2 of the question is of type int"),
        ([" "], [["a", "b"]], TextError, "text 1 has no words"),
        ("a", ["b", "the " * 30], InvalidRequest, "a window over the question has room for 0 tokens beside"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(choice, questions, choices, error, sentence):
    with pytest.raises(error, match=sentence):
        choice[1].choose(questions, choices)


def test_heads_that_a_checkpoint_lacks_are_named(choice, entailment):
    with pytest.raises(InvalidRequest, match=r"cannot choose between texts, .* no choice head .heads: sequ"):
        entailment[1].choose("a", ["b", "c"])
    with pytest.raises(InvalidRequest, match=r"no sequence head .heads: choice"):
        choice[1].zero_shot("a", ["b", "c"])


ORDERS = [NLI, NLI[::-1], ["ENTAILED", "not_entailment"], ["not_entailment", "Entailment"]]


@pytest.mark.parametrize("names", ORDERS, ids=" ".join)
@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_is_that_of_transformers(names, multi_label, tmp_path):
    _, ours = saved(tmp_path, "BertForSequenceClassification", names, max_position_embeddings=80)
    run = transformers.pipeline("zero-shot-classification", str(tmp_path), device="cpu")
    for labels, template in ((LABELS, "This example is {}."), (LABELS[:1], "a {}, a text")):
        theirs = run(QUESTIONS, labels, hypothesis_template=template, multi_label=multi_label)
        found = ours.zero_shot(QUESTIONS, labels, hypothesis_template=template, multi_label=multi_label)
        for one, other in zip(found, theirs, strict=True):
            assert one.scores == pytest.approx(
                dict(zip(other["labels"], other["scores"], strict=True)), abs=1e-5
            )
            assert (one.label, one.score) == (other["labels"][0], max(one.scores.values()))
            assert list(one.scores) == labels


def test_labels_that_apply(entailment):
    _, ours = entailment
    single = ours.zero_shot(QUESTIONS[0], LABELS)
    assert (single.labels, sum(single.scores.values())) == ((single.label,), pytest.approx(1))
    several = ours.zero_shot(QUESTIONS[0], LABELS, multi_label=True, threshold=0.0)
    assert several.labels == tuple(LABELS)
    middle = sorted(several.scores.values())[1]
    some = ours.zero_shot(QUESTIONS[0], LABELS, multi_label=True, threshold=middle)
    assert some.labels == tuple(label for label in LABELS if several.scores[label] >= middle)
    assert len(some.labels) == 2


def test_without_a_name_for_contradiction_it_is_the_first_or_last_other_label():
    labels = {("entailment", "x", "y"): (0, 2), ("x", "entailment", "y"): (1, 0)}
    for names, classes in labels.items():
        assert zero_shot.entailment_of(Classifier("sequence", 3, "pooler", labels=names), "m") == classes


def test_contradiction_is_found_by_its_name(tmp_path):
    """Where `transformers` compares entailment with whatever the first label is."""
    _, ours = saved(tmp_path, "BertForSequenceClassification", [NLI[1], NLI[0], NLI[2]])
    found = ours.zero_shot("a text", ["muddy"], hypothesis_template="the {}")
    logits = packed_logits(ours, ours.tokenizer.encode("a text", "the muddy"), "sequence")
    assert found.score == pytest.approx(1 / (1 + np.exp(logits[1] - logits[2])), abs=1e-6)


def test_a_long_text_is_read_in_windows_shared_by_all_hypotheses(entailment):
    _, ours = entailment
    found = ours.zero_shot(LONG, ["muddy", "a river bank"], hypothesis_template="a {}", overlap_tokens=2)
    seconds = ["a muddy", "a a river bank"]
    parts = aligned_windows([ours.tokenizer.encode(LONG, each) for each in seconds], 23, 2)
    p = np.zeros(2)
    for windows in zip(*parts, strict=True):
        logits = np.array([packed_logits(ours, window.encoding, "sequence")[2] for window in windows])
        owned = (windows[0].owned & (windows[0].encoding.sequence_ids == 0)).sum()
        p += owned / 38 * np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(list(found.scores.values()), p, atol=1e-6)
    assert found.windows == len(parts[0]) > 1


@pytest.mark.parametrize(
    ("labels", "options", "sentence"),
    [
        (["a"], {"hypothesis_template": "this"}, "hypothesis_template is 'this'; it must have one {}"),
        (["a"], {"hypothesis_template": "{} or {}"}, "it must have one {}"),
        ([], {}, "candidate_labels is empty"),
        (["a", "a"], {}, "candidate_labels has 'a' twice"),
        (["a", " "], {}, "candidate_labels has ' '; give each label as a text"),
        ("ab", {}, "candidate_labels is 'ab'; give"),
        (["a"], {"multi_label": "yes"}, "multi_label is 'yes'"),
        (["a"], {"threshold": 2}, "threshold is 2"),
    ],
)
def test_labels_and_templates_that_cannot_be_used(entailment, labels, options, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        entailment[1].zero_shot("a text", labels, **options)


@pytest.mark.parametrize("names", [["bad", "good"], None])
def test_a_head_without_entailment_names_its_labels(names, tmp_path):
    _, ours = saved(tmp_path, "BertForSequenceClassification", names)
    listed = ", ".join(names or ["LABEL_0", "LABEL_1"])
    with pytest.raises(InvalidRequest, match=f'begins with "entail" .*labels: {listed}'):
        ours.zero_shot("a text", ["a", "b"])


def lines(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_choose_on_the_command_line(choice, tmp_path):
    _, ours = choice
    model = str(ours.checkpoint.source.folder)
    rows = [{"q": question, "c": some} for question, some in zip(QUESTIONS, CHOICES, strict=True)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = ["--question-field", "q", "--choices-field", "c"]
    found = lines(
        run_here("choose", "--model", model, "--json", *fields, "--file", str(tmp_path / "asked.jsonl"))
    )
    for one, other, row in zip(found, ours.choose(QUESTIONS, CHOICES), rows, strict=True):
        assert (one["index"], one["label"], one["question"]) == (other.index, other.label, row["q"])
        assert one["choices"] == row["c"]
        np.testing.assert_allclose(one["scores"], other.scores, atol=1e-6)
        assert {"model", "revision", "source", "line", "tokens_read", "windows"} <= set(one)
    one = ours.choose(QUESTIONS[1], CHOICES[1])
    asked = [part for each in CHOICES[1] for part in ("--choice", each)]
    plain = run_here("choose", "--model", model, QUESTIONS[1], *asked)
    assert plain.out == f"{one.index}\t{one.score:.4f}\t{one.label}\n"
    stdin = (json.dumps({"question": QUESTIONS[1], "choices": CHOICES[1]}) + "\n").encode()
    assert run_here("choose", "--model", model, stdin=stdin).out == plain.out


def test_questions_of_a_parquet_file(choice, tmp_path):
    rows = [{"sent": question, "ends": some} for question, some in zip(QUESTIONS, CHOICES, strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    given = [
        "choose",
        "--model",
        choice[1].checkpoint.source.folder,
        "--question-field",
        "sent",
        "--choices-field",
        "ends",
        "--json",
    ]
    ran = [run_here(*given, "--file", tmp_path / name) for name in ("a.jsonl", "a.parquet")]
    by_line, by_row = ([json.loads(line) for line in one.out.splitlines()] for one in ran)
    assert [one.pop("row") for one in by_row] == [one.pop("line") for one in by_line] == [1, 2]
    assert [one | {"source": ""} for one in by_row] == [one | {"source": ""} for one in by_line]
    wrong = run_here(
        "choose", "--model", choice[1].checkpoint.source.folder, "--file", tmp_path / "a.parquet"
    )
    assert "row 1 of" in wrong.err
    assert "has no 'question'; set --question-field to one of: sent, ends" in wrong.err


def test_choices_in_columns_of_their_own(choice, tmp_path, monkeypatch):
    model = choice[1].checkpoint.source.folder
    (tmp_path / "a.csv").write_text(
        "".join(f'"{a}","{b}","{c}"\n' for a, b, c in [("q", "x", "y"), ("the", "a", "bank")])
    )
    fields = ("--question-field", "q", "--choices-field", "x, y")
    (row,) = lines(run_here("choose", "--model", model, "--file", tmp_path / "a.csv", *fields, "--json"))
    assert (row["question"], row["choices"], row["row"]) == ("the", ["a", "bank"], 2)
    assert row["scores"] == pytest.approx(choice[1].choose("the", ["a", "bank"]).scores, abs=1e-6)
    monkeypatch.setattr("unmask.cli.tasks.predict.on_terminal", lambda: True)
    heading, *rows = run_here(
        "choose", "--model", model, "--file", tmp_path / "a.csv", *fields
    ).out.splitlines()
    assert heading == "the"
    assert [line.split() for line in rows] == [
        [str(place), f"{score:.4f}", text]
        for place, (score, text) in enumerate(zip(row["scores"], row["choices"], strict=True))
    ]


@pytest.mark.parametrize(
    ("arguments", "stdin", "sentence"),
    [
        ([], b"[1]\n", "line 1 of <stdin> is not a JSON object"),
        ([], b"{\n", "line 1 of <stdin> is not JSON, of which each line must hold one object"),
        ([], b'{"question": "a"}\n', "has no 'choices'; set --choices-field to one of: question"),
        ([], b'{"question": "a", "choices": "b"}\n', "has 'b' under 'choices'; give a list of strings"),
        ([], b'{"question": 1, "choices": []}\n', "has no text under 'question'; give a string"),
        ([], b'{"question": "a", "choices": ["b"]}\n', "line 1 of <stdin> has 1 choice; give at least two"),
        (["a"], b"", "give a question together with its choices"),
        (["--choice", "a"], b"", "give a question together with its choices"),
    ],
)
def test_bad_lines_are_one_sentence(choice, arguments, stdin, sentence):
    ran = run_here("choose", "--model", str(choice[1].checkpoint.source.folder), *arguments, stdin=stdin)
    assert (ran.code, ran.out) == (1, "")
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1


def test_zero_shot_on_the_command_line(entailment):
    _, ours = entailment
    model = str(ours.checkpoint.source.folder)
    options = ["--candidate-labels", "muddy, a river", "--hypothesis-template", "the {}"]
    expected = ours.zero_shot(QUESTIONS[0], ["muddy", "a river"], hypothesis_template="the {}")
    ran = run_here("classify", "--model", model, *options, QUESTIONS[0])
    assert ran.out == f"{expected.label}\t{expected.score:.4f}\n"
    several = ours.zero_shot(QUESTIONS[0], ["muddy", "a river"], multi_label=True, threshold=0.0)
    (one,) = lines(
        run_here(
            "classify", "--model", model, *options[:2], "--multi-label", "--threshold", "0", "--json",
            QUESTIONS[0],
        )
    )  # fmt: skip
    assert one["scores"] == pytest.approx(several.scores, abs=1e-6)
    assert one["labels"] == ["muddy", "a river"]
    alone = run_here("classify", "--model", model, "--candidate-labels", "muddy", "--threshold", "0", "a")
    assert alone.out.startswith("muddy\t0.")
    for wrong, sentence in (
        (["--multi-label"], "--multi-label is given without --labels"),
        (["--hypothesis-template", "{}"], "--hypothesis-template is given without --labels"),
        (
            ["--pairs", "--candidate-labels", "a"],
            "--pairs or --pair-field and --labels are both given",
        ),
    ):
        ran = run_here("classify", "--model", model, *wrong, "a text")
        assert (ran.code, ran.out) == (1, "")
        assert sentence in ran.err
