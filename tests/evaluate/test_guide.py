"""The guide to models: the data file, the order, and the command."""

import json
import re

import pytest

from tests.support.command import assert_one_sentence, run_here
from tests.support.places import REPOSITORY
from unmask.errors import InvalidRequest
from unmask.evaluate.guide import CPU_PARAMETERS, TASKS, candidates, guide, read_figures
from unmask.families import DEFAULT_NAME, FAMILIES

pytestmark = pytest.mark.long

NAMES = {one.name for family in FAMILIES for one in family.published} | {"unmask-mini"}
BERT, MODERN, DEBERTA = (
    "google-bert/bert-base-uncased",
    "answerdotai/ModernBERT-base",
    "microsoft/deberta-v3-base",
)


def names(ranked):
    return [one.name for one in ranked]


def test_every_figure_has_a_known_model_a_source_and_a_date():
    figures = read_figures()
    assert set(figures.measures) == set(TASKS)
    for (key, model), found in [*figures.scores.items(), *figures.speeds.items()]:
        assert model in NAMES, (key, model)
        for figure in found:
            assert figure.kind in ("measured", "published")
            assert figure.source
            assert re.match(r"20\d\d", figure.date), figure
            assert figure.kind == "published" or re.fullmatch(r"2026-\d\d-\d\d", figure.date), figure
    for task, model in figures.ready:
        assert task in TASKS
        assert model in NAMES
    for task, measures in [*figures.measures.items(), *figures.long_measures.items()]:
        known = {
            figure.measure for (one, _), found in figures.scores.items() for figure in found if one == task
        }
        assert set(measures) <= known, task


def test_measured_figures_are_those_of_the_docs():
    pages = {name: (REPOSITORY / name).read_text() for name in ("docs/scores.md", "docs/log/2026.md")}
    found = read_figures()
    every = [figure for group in (found.scores, found.speeds) for one in group.values() for figure in one]
    measured = [figure for figure in every if figure.kind == "measured"]
    assert len(measured) >= 10
    for figure in measured:
        page = pages[figure.source.partition(",")[0]]
        assert any(f"{figure.value:{form}}" in page for form in ("g", ",g", ".1f", ".4f")), figure


def test_the_order_is_the_one_that_is_stated():
    short = guide("classification")
    with_score = [one for one in short.to_train if one.score is not None and one.reads]
    small = {one.name for one in candidates() if one.layer_parameters <= CPU_PARAMETERS}
    assert not {"albert/albert-xlarge-v2", "chandar-lab/NeoBERT"} & small, (
        "shared weights count in each layer"
    )
    assert {one.score.measure for one in with_score} == {"MNLI dev, accuracy"}
    values = [one.score.value for one in with_score if one.name in small]
    assert values == sorted(values, reverse=True)
    order = names(short.to_train)
    assert order.index(DEBERTA) < order.index(MODERN) < order.index(BERT)
    assert order.index(BERT) < order.index("microsoft/deberta-v3-large")
    on_a_gpu = names(guide("classification", device="cuda").to_train)
    assert on_a_gpu.index("microsoft/deberta-v3-large") < on_a_gpu.index(BERT)


def test_long_texts_change_the_order_and_the_reasons():
    found = guide("search", tokens=2000)
    assert names(found.to_train)[0] == MODERN
    assert found.to_train[0].score.measure.startswith("MLDR")
    order = names(found.to_train)
    assert order.index("jhu-clsp/ettin-encoder-17m") < order.index(BERT)
    (bert,) = (one for one in found.to_train if one.name == BERT)
    assert not bert.reads
    assert "at most 512 tokens" in bert.reasons[0]
    (deberta,) = (one for one in found.to_train if one.name == DEBERTA)
    assert "was trained on at most 512 tokens" in deberta.reasons[0]
    (default,) = (one for one in found.ready if one.name == DEFAULT_NAME)
    assert "at most 256 tokens" in default.reasons[0]
    assert guide("search", tokens=256).to_train[0].score.measure.startswith("BEIR")
    assert names(found.ready)[0] == "lightonai/mLateOn"
    assert names(guide("search", tokens=256).ready)[0] == "lightonai/mLateOn"
    assert names(guide("search").ready).index("lightonai/DenseOn") < names(found.ready).index(DEFAULT_NAME)


def test_what_is_not_comparable_does_not_rank():
    (default,) = guide("classification").ready
    assert default.score is None
    assert 66.7 in [figure.value for figure in default.scores]


def test_masked_words_need_a_model_that_predicts_them():
    found = guide("masked-words", tokens=100)
    assert found.ready[0].name == "unmask-mini"
    assert found.ready[0].score.value == 62.3
    assert not {DEBERTA, DEFAULT_NAME, "google/electra-base-discriminator"} & set(names(found.ready))
    assert {BERT, MODERN} <= set(names(found.ready))
    assert found.to_train == ()


def test_speeds_are_of_the_nearest_length_and_the_device():
    def speed(tokens, device):
        (one,) = (one for one in guide("search", tokens=tokens, device=device).to_train if one.name == MODERN)
        return one.speed.value

    assert (speed(1000, "cpu"), speed(8000, "cpu")) == (1.85, 11.7)
    assert (speed(256, "cuda"), speed(8000, "cuda")) == (147.3, 133.8)


@pytest.mark.parametrize("task", TASKS)
def test_every_model_is_ranked_once(task):
    found = guide(task)
    every = names(found.ready) + names(found.to_train)
    assert len(every) == len(set(every))
    assert set(every) == NAMES or task == "masked-words"


def test_bad_requests():
    for arguments, said in (
        ({"task": "cooking"}, "task"),
        ({"task": "search", "tokens": 0}, "tokens is 0"),
        ({"task": "search", "tokens": "many"}, "tokens is 'many'"),
        ({"task": "search", "device": "tpu"}, "device"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            guide(**arguments)


def test_the_command_says_where_numbers_are_from():
    ran = run_here("models", "--task", "search", "--tokens", "2000")
    assert (ran.code, ran.err) == (0, "")
    text = " ".join(ran.out.split())
    assert "Order: models that read such texts first" in text
    assert "80.2 (published, 2024-12: Warner et al. 2024, Table 1, long documents)" in text
    assert "77.92 (published, 2026-07: model card of lightonai/mDenseOn" in text
    assert "not measured here" in text
    tagging = " ".join(run_here("models", "--task", "tagging").out.split())
    assert "79.8 (measured here, 2026-11-22: docs/scores.md" in tagging
    assert all(len(line) <= 100 for line in ran.out.splitlines())
    answer = json.loads(run_here("models", "--task", "tagging", "--json").out)
    assert answer["ready"][0]["name"] == DEFAULT_NAME
    assert answer["to_train"][0]["score"]["value"] == 91.28
    assert_one_sentence(run_here("models", "--tokens", "9"), "--tokens needs --task")
    assert_one_sentence(run_here("models", "--device", "cpu"), "--device needs --task")
    assert_one_sentence(run_here("models", "--task", "cooking"), "--task", code=2)
    assert_one_sentence(run_here("models", "--task", "search", "--tokens", "0"), "tokens is 0")
