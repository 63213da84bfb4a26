"""Sentences that a query needs: against `transformers` with the second head, in both published layouts."""

import json

import numpy as np
import pytest
import torch
import transformers
from starlette.testclient import TestClient

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.grounding import write_byte_tokenizer, write_grounder
from tests.support.pruning import write_open, write_provence
from tests.support.tiny import change_json, change_tensors
from unmask.bulk import BatchPredictor
from unmask.errors import (
    CorruptCheckpoint,
    EmptyText,
    InvalidRequest,
    InvalidText,
    TextTooLong,
    UnknownArchitecture,
)
from unmask.serve import make_app
from unmask.tasks.prune import plain_query, prepare, rule_of

QUERY = "How many people live in Paris?"
DOCUMENT = (
    "Paris. The city has two million people. The river Seine crosses it, e.g. near the Louvre!\n\n"
    "पेरिस एक शहर है। यह सुंदर है। 巴黎很大。它很老。 No point at the end"
)
SENTENCES = [
    "Paris.",
    "The city has two million people.",
    "The river Seine crosses it, e.g. near the Louvre!",
    "पेरिस एक शहर है।",
    "यह सुंदर है।",
    "巴黎很大。",
    "它很老。",
    "No point at the end",
]
KINDS = {
    "Provence": write_provence,
    "Provence, two numbers": lambda folder: write_provence(folder, labels=2),
    "ModernBERT": write_open,
    "BERT": lambda folder: write_open(folder, kind="Bert", threshold=0.4, seed=4),
}


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """The name, the folder, and what computes the outputs in `transformers`."""
    folder = tmp_path_factory.mktemp("pruner")
    return request.param, folder, KINDS[request.param](folder)


def expected(theirs, model, query, document, threshold, *, by_share):
    """The need of each sentence, and the logit, computed plainly from one pass over the whole pair."""
    encoding = model.tokenizer.encode(plain_query(query) if by_share else query, document)
    p_N, logit = theirs(encoding.ids.tolist())
    borders = [document.index(sentence) for sentence in SENTENCES]
    needs = []
    for start, stop in zip(borders, [*borders[1:], len(document)], strict=True):
        p_M = p_N[
            [
                of == 1 and start <= begin < stop
                for of, (begin, _) in zip(encoding.sequence_ids, encoding.offsets.tolist(), strict=True)
            ]
        ]
        needs.append(float((p_M > threshold).mean() if by_share else p_M.mean()))
    return needs, logit


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("threshold", [None, 0.3, 0.5, 0.8])
def test_sentences_and_scores_are_theirs(both, threshold, backend):
    name, folder, theirs = both
    by_share = name.startswith("Provence")
    model = unmask.load(folder, backend=backend)
    result = model.prune(DOCUMENT, QUERY, threshold=threshold)
    limit = threshold if threshold is not None else 0.4 if name == "BERT" else 0.1
    needs, logit = expected(theirs, model, QUERY, DOCUMENT, limit, by_share=by_share)
    assert [sentence.text for sentence in result.sentences] == SENTENCES
    assert [sentence.score for sentence in result.sentences] == pytest.approx(needs, abs=2e-5)
    assert [sentence.stays for sentence in result.sentences] == [need > limit for need in needs]
    assert all(DOCUMENT[it.start : it.end] == it.text for it in result.sentences)
    assert result.score == pytest.approx(logit if by_share else 1 / (1 + np.exp(-logit)), abs=2e-5)
    kept = [sentence.text for sentence in result.sentences if sentence.stays]
    assert "".join(result.text.split()) == "".join("".join(kept).split())
    assert (result.windows, result.tokens_read) == (
        1,
        len(model.tokenizer.encode(plain_query(QUERY) if by_share else QUERY, DOCUMENT)),
    )


def test_thresholds_of_the_test_drop_some_and_keep_some(both):
    """The comparison above would prove little where all sentences stay, or none."""
    _, folder, _ = both
    counts = {
        sum(it.stays for it in unmask.load(folder).prune(DOCUMENT, QUERY, threshold=limit).sentences)
        for limit in (0.1, 0.3, 0.5, 0.8)
    }
    assert len(counts) > 1


@pytest.mark.parametrize("compat", ["published", "hf"])
def test_the_state_that_the_head_reads_is_that_of_training(tmp_path, compat):
    """`transformers` 4 listed states before the final norm, and version 5 lists those after it."""
    theirs = write_open(tmp_path)
    model = unmask.load(tmp_path, compat=compat)
    (head,) = [head for head in model.spec.heads if head.role == "prune"]
    assert head.reads == ("unnormed" if compat == "published" else "tokens")
    needs, _ = expected(theirs, model, QUERY, DOCUMENT, 0.1, by_share=False)
    scores = [it.score for it in model.prune(DOCUMENT, QUERY).sentences]
    assert (scores == pytest.approx(needs, abs=1e-4)) == (compat == "published")


def test_scores_of_pairs_are_those_of_the_first_head(both):
    name, folder, theirs = both
    model = unmask.load(folder)
    ids = model.tokenizer.encode(QUERY, DOCUMENT).ids.tolist()
    if name == "Provence, two numbers":
        with pytest.raises(InvalidRequest, match="does not score pairs by one number"):
            model.score_pairs(QUERY, DOCUMENT)
        return
    scores = model.score_pairs(QUERY, [DOCUMENT, "Paris."], activation="identity")
    assert scores[0] == pytest.approx(theirs(ids)[1], abs=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_every_precision_is_near(both, dtype):
    _, folder, _ = both
    exact = unmask.load(folder).prune(DOCUMENT, QUERY, threshold=0.5)
    near = unmask.load(folder, dtype=dtype).prune(DOCUMENT, QUERY, threshold=0.5)
    exact_scores = [it.score for it in exact.sentences]
    assert [it.score for it in near.sentences] == pytest.approx(exact_scores, abs=0.35)
    assert near.score != exact.score


def test_a_saved_folder_prunes_the_same(both, tmp_path):
    name, folder, _ = both
    model = unmask.load(folder)
    saved = tmp_path / "saved"
    model.save(saved)
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    again = unmask.load(saved)
    if name.startswith("Provence"):
        assert config["model_type"] == "deberta-v2"
        assert config["architectures"] == ["DebertaV2ForCompressionAndRanking"]
    else:
        assert config["model_type"] == "open_provence"
        assert set(config["base_model_config"]) >= {"model_type", "hidden_size"}
        from safetensors.numpy import load_file

        stored, before = load_file(saved / "model.safetensors"), load_file(folder / "model.safetensors")
        assert stored.keys() == before.keys()
        assert all(np.array_equal(stored[key], before[key]) for key in before)
    assert again.prune(DOCUMENT, QUERY) == model.prune(DOCUMENT, QUERY)
    assert again.checkpoint.pruning == model.checkpoint.pruning


def test_long_documents_are_read_in_windows(tmp_path):
    write_open(tmp_path, max_tokens=120)
    model = unmask.load(tmp_path)
    document = " ".join(f"The number {number} is a number of the river." for number in range(60))
    result = model.prune(document, QUERY, threshold=0.5)
    assert result.windows > 5
    assert len(result.sentences) == 60
    ready = prepare(model.reader, document, QUERY, rule_of(model.reader))
    logits = [logit for _, logit in ready.run(model.engine, ready.encodings)]
    assert result.score == pytest.approx(1 / (1 + np.exp(-max(logits))), abs=1e-5)
    assert max(logits) > min(logits) + 1e-3
    assert [it.start for it in result.sentences] == [document.index(it.text) for it in result.sentences]
    whole = len(model.tokenizer.encode(QUERY, document))
    assert (result.tokens_read, result.truncated_tokens) == (whole, 0)
    with pytest.raises(TextTooLong, match=r"the document has \d+ tokens and the model reads at most 120"):
        model.prune(document, QUERY, truncation="error")
    end = model.prune(document, QUERY, threshold=0.999999, truncation="end")
    assert end.truncated_tokens == whole - end.tokens_read > 0
    assert end.sentences[-1].stays, "what was not read stays"
    assert not end.sentences[0].stays


def test_the_first_sentence_stays_with_another(both):
    _, folder, _ = both
    model = unmask.load(folder)
    for limit in np.linspace(0, 1, 21).tolist():
        plain = model.prune(DOCUMENT, QUERY, threshold=limit)
        first = model.prune(DOCUMENT, QUERY, threshold=limit, keep_first=True)
        others = [it.stays for it in plain.sentences]
        assert [it.stays for it in first.sentences] == [any(others), *others[1:]]
        assert first.text.startswith("Paris.") == any(others)
    assert model.prune(DOCUMENT, QUERY, threshold=1.0).text == ""


def test_several_documents_are_those_alone(both):
    _, folder, _ = both
    model = unmask.load(folder)
    documents, queries = [DOCUMENT, "Paris.", "   \n\n The river.\n \nA city. "], [QUERY, "?!", "Seine"]
    results = model.prune(documents, queries, threshold=0.5)
    for result, document, query in zip(results, documents, queries, strict=True):
        alone = model.prune(document, query, threshold=0.5)
        assert [vars(it) | {"score": 0} for it in alone.sentences] == [
            vars(it) | {"score": 0} for it in result.sentences
        ]
        assert alone.score == pytest.approx(result.score, abs=1e-5)
    assert [it.text for it in results[2].sentences] == ["The river.", "A city."]
    assert model.prune([], QUERY) == []


def test_what_cannot_be_pruned_is_refused(tmp_path):
    folder = tmp_path / "pruner"
    folder.mkdir()
    write_provence(folder)
    model = unmask.load(folder)
    for arguments, options, error, sentence in (
        (("", QUERY), {}, EmptyText, "the document has no words"),
        ((["a", " "], QUERY), {}, EmptyText, "document 2|text 2"),
        ((DOCUMENT, " "), {}, EmptyText, "the query has no words"),
        (([DOCUMENT], [3]), {}, InvalidText, "query 1"),
        (([DOCUMENT], [QUERY, QUERY]), {}, InvalidRequest, "there are 2 queries and 1 documents; give one"),
        ((DOCUMENT, QUERY), {"threshold": 1.5}, InvalidRequest, "threshold is 1.5"),
        ((DOCUMENT, QUERY), {"truncation": "start"}, InvalidRequest, "truncation is 'start'"),
    ):
        with pytest.raises(error, match=sentence):
            model.prune(*arguments, **options)
    other = tmp_path / "grounder"
    other.mkdir()
    with pytest.raises(
        InvalidRequest, match="cannot prune documents, because its checkpoint has no prune head"
    ):
        unmask.load(write_grounder(other)).prune(DOCUMENT, QUERY)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"base_model_config": {}}, "has no base_model_config with a model_type"),
        ({"default_threadshold": 3.0}, "default_threadshold is 3.0; it must be from 0 to 1"),
        ({"max_length": 0}, "max_length"),
        ({"num_pruning_labels": 3}, "num_pruning_labels"),
    ],
)
def test_folders_that_say_something_else_are_refused(tmp_path, changes, sentence):
    write_open(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises((CorruptCheckpoint, UnknownArchitecture), match=sentence):
        unmask.load(tmp_path)


def test_every_place_gives_the_same(tmp_path):
    folder = tmp_path / "pruner"
    folder.mkdir()
    write_open(folder, threshold=0.5)
    model = unmask.load(folder)
    expected = model.prune(DOCUMENT, QUERY)
    app = make_app({"pruner": model})
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body = {"query": QUERY, "documents": DOCUMENT}
        (sent,) = client.post("/v1/prune", json=body).json()["results"]
        first, second = client.post("/v1/prune", json=body | {"documents": [DOCUMENT, "Paris."]}).json()[
            "results"
        ]
        for refused, field in (({"query": " "}, "query"), ({"documents": [" "]}, "documents[0]")):
            answer = client.post("/v1/prune", json=body | refused)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith(f"{field} has no words")
        assert client.post("/v1/prune", json=body | {"threshold": 2}).status_code == 400
        ranked = client.post("/v1/rerank", json={"query": QUERY, "documents": ["Paris.", DOCUMENT]}).json()
    app.state.service.close()
    assert (sent["text"], first["text"]) == (expected.text, expected.text)
    assert sent["score"] == pytest.approx(expected.score, abs=1e-5)
    assert [it["stays"] for it in sent["sentences"]] == [it.stays for it in expected.sentences]
    assert second["sentences"][0]["text"] == "Paris."
    scores = {row["index"]: row["relevance_score"] for row in ranked["results"]}
    assert scores[1] == pytest.approx(expected.score, abs=1e-5)
    rows = BatchPredictor(str(folder), method="prune", column="text", columns={"queries": "asked"})(
        {"text": [DOCUMENT, "Paris."], "asked": [QUERY, "Seine"]}
    )
    assert rows["score"][0] == pytest.approx(expected.score, abs=1e-5)
    staying = f"{sum(it.stays for it in expected.sentences)} of {len(SENTENCES)}"
    typed = run_here("prune", DOCUMENT, "--query", QUERY, "-m", folder).out
    assert typed.startswith(f"{expected.score:.4f}\t{staying}\t")
    for text in expected.text.split("\n\n"):
        assert text.strip() in typed
    table = tmp_path / "documents.jsonl"
    records = [{"text": DOCUMENT, "query": QUERY}, {"text": "Paris.", "query": "Seine"}]
    table.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    written = tmp_path / "pruned.jsonl"
    run_here("prune", "--file", table, "-m", folder, "-o", written)
    row, other = map(json.loads, written.read_text(encoding="utf-8").splitlines())
    assert (row["text"], row["query"], row["document"]) == (expected.text, QUERY, DOCUMENT)
    assert other["score"] == pytest.approx(model.prune("Paris.", "Seine").score, abs=1e-5)
    lines = run_here("prune", "--query", QUERY, "--file", table, "-m", folder).out.splitlines()
    assert lines[0] == typed.rstrip("\n")
    for arguments, sentence in (
        ((DOCUMENT,), "there is no query; give --query TEXT"),
        (("--query", "a", "--query-field", "b", "--file", table), "leave it or --query-field out"),
        (("--file", tmp_path / "documents.txt"), "this command reads"),
        ((DOCUMENT, "--query", QUERY, "--threshold", "7"), "threshold is 7"),
        ((DOCUMENT, "--query", QUERY, "--file", table), "give either a text or --file"),
    ):
        assert_one_sentence(run_here("prune", *arguments, "-m", folder), sentence)


def test_another_head_of_that_name_is_not_taken_for_it(tmp_path):
    write_provence(tmp_path)
    sizes = {"weight": (3, 24), "bias": 3}
    head = {f"token_classifier.{part}": torch.ones(shape) for part, shape in sizes.items()}
    change_tensors(tmp_path, lambda tensors: tensors.update(head))
    with pytest.raises(unmask.errors.TensorMismatch, match="token_classifier"):
        unmask.load(tmp_path)


def test_the_class_of_xprovence_is_refused(tmp_path):
    """Its ``classifier`` reads the pooler, where that name is a tagger's in RoBERTa's layout."""
    size = write_byte_tokenizer(tmp_path)
    config = transformers.XLMRobertaConfig(
        vocab_size=size, hidden_size=24, num_attention_heads=3, intermediate_size=32, num_hidden_layers=1,
        num_labels=1,
    )  # fmt: skip
    transformers.XLMRobertaForTokenClassification(config).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", architectures=["XLMRobertaForCompressionAndRanking"])
    with pytest.raises(UnknownArchitecture, match="XLMRobertaForCompressionAndRanking, whose head is not"):
        unmask.load(tmp_path)
    change_json(tmp_path / "config.json", model_type="XProvence")
    with pytest.raises(UnknownArchitecture, match="XProvence"):
        unmask.load(tmp_path)
