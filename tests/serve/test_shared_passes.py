"""Different tasks and adapters of one encoder in one packed pass, with the results of separate models."""

import threading
from concurrent.futures import wait
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import transformers

import unmask
from tests.support.adapters import write_random_adapter
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.serve.fields import Inputs
from unmask.serve.models import Models, a_text
from unmask.serve.scheduler import Limits, Scheduler, Work
from unmask.serve.telemetry import Metrics
from unmask.serve.workers import Workers
from unmask.spec import MaskedLM, MultiVector, PairScore, SparseVector
from unmask.tasks import (
    answer,
    classify,
    embed,
    fill,
    hidden_states,
    multi_vectors,
    pair_scores,
    sparse_vectors,
    tag,
)
from unmask.tasks.reader import Ready
from unmask.text import PackedBatch

LATER = 1e12
SECONDS = 30
TEXTS = ["the river bank", "a text", "the river bank", "another river, the bank!"]
ADAPTERS = {"mood": ("sequence", ("bad", "good")), "names": ("tokens", ("O", "B-PER")), "spans": ("span", ())}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A sentence encoder with adapters of three kinds, and a masked language model."""
    folder = tmp_path_factory.mktemp("shared")
    write_checkpoint(folder / "base")
    for seed, (name, (role, labels)) in enumerate(ADAPTERS.items(), 1):
        write_random_adapter(folder / "base", folder / name, role, labels, seed=seed)
    write_checkpoint(folder / "words", tiny_bert("BertForMaskedLM"), sentence=False)
    transformers.AutoTokenizer.from_pretrained(folder / "words").save_pretrained(folder / "words")
    return folder


@pytest.fixture(scope="module")
def adapted(place):
    """The base and its adapters, with one set of weights."""
    shared = unmask.load_adapters(place / "base", {name: place / name for name in ADAPTERS})
    return {"base": shared.model()} | {name: shared.model(name) for name in ADAPTERS}


def several(texts):
    return Inputs(texts, None, False)


def states_of(served):
    return hidden_states.of_encodings(served.texts.tokenized(TEXTS))


def asked(models):
    """What requests of all kinds prepare, each with its model."""
    base, mood, names, spans = (models.named(name) for name in ("base", *ADAPTERS))
    return [
        (base, base.embed(several(TEXTS), truncation="error", name=a_text)),
        (mood, classify.prepare(mood.texts, TEXTS)),
        (names, tag.prepare(names.texts, TEXTS)),
        (spans, answer.prepare(spans.texts, ["the bank"], [TEXTS[:1]], max_answer_tokens=5)),
        (base, states_of(base)),
    ]


def run_together(scheduler, requests):
    """Results of works that were all waiting when the thread looked for its next pass."""
    inside, gate = threading.Event(), threading.Event()

    def hold(texts):
        inside.set()
        assert gate.wait(SECONDS)
        return texts

    scheduler.submit(Work("first", hold), ["x"], "a", LATER)
    assert inside.wait(SECONDS)
    sent = sent_to(scheduler, requests)
    gate.set()
    wait(sent, SECONDS)
    return [finished(ready, future) for (_, ready), future in zip(requests, sent, strict=True)]


def sent_to(scheduler, requests):
    return [
        scheduler.submit(served.work(ready), ready.encodings, "a", LATER).future for served, ready in requests
    ]


def finished(ready, future):
    """The results of a request, or its error."""
    if future.exception(SECONDS) is not None:
        return future.exception()
    return ready.finish(future.result())


def check(found, place):
    vectors, moods, names, answers, states = found
    base = unmask.load(place / "base")
    alone = {name: unmask.load(place / "base", adapter=place / name) for name in ADAPTERS}
    np.testing.assert_allclose(np.stack(vectors), base.embed(TEXTS), atol=1e-5)
    for one, theirs in zip(moods, alone["mood"].classify(TEXTS), strict=True):
        assert one.scores == pytest.approx(theirs.scores, abs=1e-5)
    for one, theirs in zip(names, alone["names"].tag(TEXTS), strict=True):
        assert [word.score for word in one.words] == pytest.approx([w.score for w in theirs.words], abs=1e-5)
    expected = alone["spans"].answer("the bank", TEXTS[:1], max_answer_tokens=5)
    assert answers[0].answers[0].score == pytest.approx(expected.answers[0].score, abs=1e-5)
    for one, theirs in zip(states, base.hidden_states(TEXTS), strict=True):
        np.testing.assert_allclose(one, theirs, atol=1e-5)


def test_adapters_and_tasks_share_a_pass(place, adapted):
    metrics, models = Metrics(), Models(adapted, Limits(tokens_per_pass=2048))
    scheduler, passes = Scheduler(Limits(), metrics), []
    with pytest.MonkeyPatch.context() as patch:
        routed = adapted["base"].engine.routed
        whole = type(routed).states
        patch.setattr(
            type(routed), "states", lambda self, groups: passes.append(len(groups)) or whole(self, groups)
        )
        found = run_together(scheduler, asked(models))
    scheduler.close()
    assert passes == [5]
    check(found, place)


def test_tasks_of_one_model_share_a_pass(place):
    """A native engine, where there is one; with texts of one task alone nothing is looked up."""
    model = unmask.load(place / "words")
    models, metrics = Models({"words": model}, Limits(tokens_per_pass=2048)), Metrics()
    served = models.named("words")
    texts = ["the [MASK] bank", "a [MASK]"]
    requests = [(served, states_of(served)), (served, fill.prepare(served.texts, texts, top_k=3))]
    scheduler = Scheduler(Limits(), metrics)
    states, words = run_together(scheduler, requests)
    scheduler.close()
    assert "unmask_pass_texts_count 2" in metrics.text()  # that of the first work, and one
    for one, theirs in zip(states, model.hidden_states(TEXTS), strict=True):
        np.testing.assert_allclose(one, theirs, atol=1e-5)
    for one, theirs in zip(words, model.fill(texts, top_k=3), strict=True):
        assert [p.id for p in one[0].predictions] == [p.id for p in theirs[0].predictions]
        assert one[0].predictions[0].probability == pytest.approx(
            theirs[0].predictions[0].probability, abs=1e-5
        )


def test_a_worker_reads_them_together(place, adapted):
    """What a pass computes is sent to the worker by name, without the weights."""
    models, metrics = Models(adapted, Limits(tokens_per_pass=2048)), Metrics()
    shared = {("model", one.name): one for one in models.all}
    workers = Workers(1, shared, warm=models.warm, seconds=SECONDS)
    scheduler = Scheduler(Limits(), metrics, workers=workers)
    requests = asked(models)
    works = [served.work(ready) for served, ready in requests]
    parts = [
        (work.model, work.run, len(ready.encodings)) for work, (_, ready) in zip(works, requests, strict=True)
    ]
    sent = workers.packed(partial(parts[0][0].read_together, parts), requests[0][1].encodings)
    assert len(sent) < 50_000
    futures = sent_to(scheduler, requests)
    check([finished(ready, future) for (_, ready), future in zip(requests, futures, strict=True)], place)
    scheduler.close()
    workers.close()


def test_works_of_other_encoders_do_not_share(place, adapted):
    models = Models(adapted | {"other": unmask.load(place / "base")}, Limits(tokens_per_pass=2048))
    works = [
        served.work(served.embed(several(["a"]), truncation="error", name=a_text))
        for served in (models.named(name) for name in ("base", "mood", "other"))
    ]
    assert len({work.key for work in works}) == 3
    shares = [work.shares for work in works]
    assert shares[0] == shares[1] != shares[2]
    other = models.named("other")
    alone = replace(states_of(other), reads_last_states=False)
    assert other.work(alone).shares != shares[2]
    assert "attention" in models.named("base").tasks
    assert "attention" not in models.named("mood").tasks


def with_output(reader, output):
    return replace(reader, checkpoint=replace(reader.checkpoint, head=output))


def test_tasks_of_other_options_are_not_run_as_one(place, adapted):
    base, words = (unmask.load(place / name).reader for name in ("base", "words"))
    texts, head = base.tokenized(TEXTS), base.output
    unpooled = replace(head, pools_prompt=False)
    pairs, sparse = with_output(words, PairScore()), with_output(words, SparseVector(static_queries=True))
    tasks = [
        *(fill.prepare(words, "a [MASK]", top_k=top_k) for top_k in (2, 3)),
        *(hidden_states.of_encodings(texts, layers=layers) for layers in ("last", "all")),
        *(embed.of_encodings(base, texts, some) for some in (head, replace(head, normalize=False), unpooled)),
        embed.of_encodings(base, texts, unpooled, prompt="the river"),
        *(pair_scores.prepare(pairs, "a", "b", activation=name) for name in ("default", "identity")),
        *(sparse_vectors.prepare(sparse, "a text", kind) for kind in ("document", "query")),
        classify.prepare(adapted["mood"].reader, "a text"),
        tag.prepare(adapted["names"].reader, "a text"),
    ]
    assert len({task.key for task in tasks}) == len(tasks)


def test_tasks_that_read_more_than_the_last_states_are_computed_alone(place):
    words = unmask.load(place / "words").reader
    (head,) = (head for head in words.spec.heads if isinstance(head, MaskedLM))
    spec = replace(words.spec, heads=(replace(head, enhanced=True),))
    enhanced = replace(words, checkpoint=replace(words.checkpoint, spec=spec))
    shared, static = PairScore(shared_query=True), SparseVector(static_queries=True)
    assert fill.prepare(words, "a [MASK]").reads_last_states
    assert not fill.prepare(enhanced, "a [MASK]").reads_last_states
    assert pair_scores.prepare(with_output(words, PairScore()), "a", "b").reads_last_states
    assert not pair_scores.prepare(with_output(words, shared), "a", "b").reads_last_states
    assert sparse_vectors.prepare(with_output(words, static), "a").reads_last_states
    assert not sparse_vectors.prepare(with_output(words, static), "a", "query").reads_last_states
    assert not multi_vectors.prepare(with_output(words, MultiVector()), "a").reads_last_states


def test_a_text_that_fails_in_a_shared_pass_does_so_alone(place, adapted):
    """The results of other tasks, and those of other texts of its task, arrive."""
    models, broken = Models(adapted, Limits(tokens_per_pass=2048)), []

    mood = models.named("mood")

    def fails(engine, **_):
        broken.append(engine is not mood.model.engine)
        raise ValueError("boom")

    bad = mood, Ready(mood.texts.tokenized(["a text"]), fails, list, "bad")
    scheduler = Scheduler(Limits(), Metrics())
    *found, failed = run_together(scheduler, [*asked(models), bad])
    scheduler.close()
    assert broken[0]  # it failed beside the others first
    assert "failed on a text" in str(failed)
    check(found, place)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_states_are_those_of_the_same_sequence(place, backend):
    """Equal ids with other token types, and sequences that were not in the pass, are told apart."""
    try:
        engine = unmask.load(place / "base", backend=backend).engine
    except unmask.errors.InvalidRequest as error:
        pytest.skip(f"no native library: {error}")
    ids = [[2, 5, 6, 3], [2, 5, 6, 3], [2, 7, 3]]
    types = [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0]]
    after = engine.with_states(PackedBatch.of_ids(ids, types))
    for some in ([1], [2, 0], [0, 1, 2]):
        batch = PackedBatch.of_ids([ids[one] for one in some], [types[one] for one in some])
        np.testing.assert_allclose(after.hidden_states(batch), engine.hidden_states(batch), atol=1e-5)
    other = PackedBatch.of_ids([[2, 8, 9, 3]])
    np.testing.assert_allclose(after.hidden_states(other), engine.hidden_states(other), atol=1e-5)
    differs = np.abs(
        after.hidden_states(PackedBatch.of_ids(ids[:1], types[:1]))
        - after.hidden_states(PackedBatch.of_ids(ids[1:2], types[1:2]))
    )
    assert differs.max() > 1e-3


def test_a_model_of_one_adapter_has_no_module(adapted):
    with pytest.raises(unmask.errors.InvalidRequest, match="shares the model's weights with others"):
        adapted["mood"].attention("a text")
    assert adapted["base"].attention("a text").summaries()
