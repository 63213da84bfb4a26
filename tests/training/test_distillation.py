"""Distillation against its formulas, one text at a time, and students that begin as their teachers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.specs import (
    ALIBI_SHARED,
    BLOCKS,
    DISENTANGLED,
    LINEAR,
    POST_NORM,
    ROTARY_WINDOWS,
    SPECS,
    random_encoder,
)
from tests.support.tiny import tiny_bert, write_checkpoint
from tests.training.toy import chunks, gradients, vocabulary, with_heads
from unmask.encoder.hooks import HookPoint
from unmask.errors import InvalidRequest
from unmask.kernels.reference import ReferenceKernel
from unmask.spec import Classifier, LayerNorm, LearnedPositions, SoftmaxAttention
from unmask.text import PackedBatch
from unmask.text.batch import SequenceLayout
from unmask.training.data.stream import Chunk
from unmask.training.objectives import distillation as matching
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.distillation import (
    DISTILBERT_LAYERS,
    Distillation,
    init_from_teacher,
    record_states,
)
from unmask.training.objectives.language_modeling import EnhancedMaskedLanguageModel
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.sentence_pairs import SentencePairs
from unmask.training.objectives.specs import MINILM, MINILM_V2, DistillationSpec
from unmask.weights import find, read_checkpoint
from unmask.weights.build import build

EVERYTHING = DistillationSpec(
    words=5.0,
    masked=2.0,
    cosine=1.0,
    attention=0.7,
    relations=0.3,
    related=("queries", "keys", "values"),
    relation_heads=3,
    state_layers=((0, 0), (-1, -1)),
    attention_layers=((0, 1), (1, 2)),
    masking=MaskingSpec(0.3),
)
TEACHER = with_heads(POST_NORM)
NARROW = with_heads(
    replace(
        POST_NORM,
        width=15,
        embedding=replace(POST_NORM.embedding, width=15),
        layers=(replace(POST_NORM.layers[0], mixer=SoftmaxAttention(heads=3, head_width=5)),) * 2,
    )
)
PRE_NORM = replace(
    TEACHER, layers=(replace(TEACHER.layers[0], norm_first=True),) * 2, final_norm=LayerNorm(1e-5)
)
TEXTS = (7, 1, 11, 5)


def shallow(spec):
    """The spec with two of its layers."""
    return replace(spec, layers=spec.layers[:2], sharing=None if spec.sharing is None else (0, 1))


def kl(wanted, found):
    """Of two rows of probabilities."""
    return (wanted * (wanted / found).log()).sum()


def run_alone(encoder, ids_N, segments_N):
    """One text: what its tap hears, and logits of words."""
    heard = {}
    layout = SequenceLayout.of_lengths([len(ids_N)])
    ids, segments = torch.from_numpy(ids_N), torch.from_numpy(segments_N)
    x_ND = encoder(ids, layout, segments, hook=lambda place, layer, x: heard.update({(place, layer): x}))
    heard[HookPoint.LAYER, len(encoder.spec.layers) - 1] = x_ND
    return heard, encoder.logits("masked", x_ND, layout)


def maps(heard, layer):
    """softmax(q k / sqrt(K)) of every head, (H, N, N)."""
    q, k = heard[HookPoint.QUERY, layer], heard[HookPoint.KEY, layer]
    return torch.stack(
        [(q[:, h] @ k[:, h].T / math.sqrt(q.shape[-1])).softmax(-1) for h in range(q.shape[1])]
    )


def relation(x_NHK, heads):
    flat = x_NHK.reshape(len(x_NHK), -1)
    width = flat.shape[1] // heads
    parts = [flat[:, head * width : (head + 1) * width] for head in range(heads)]
    return torch.stack([(part @ part.T / math.sqrt(width)).softmax(-1) for part in parts])


def by_hand(objective, example):
    """Sums of every term by loops over texts, tokens and heads."""
    spec, sums = objective.spec, dict.fromkeys(("words", "masked", "cosine", "attention", "relations"), 0.0)
    batch = example.batch
    for sequence in range(example.sequences):
        rows = batch.layout.rows(sequence)
        text = batch.ids_T[rows], batch.token_type_ids_T[rows]
        (ours, our_logits), (theirs, their_logits) = (
            run_alone(one, *text) for one in (objective.student, objective.teacher)
        )
        for place in range(rows.stop - rows.start):
            chosen = example.chosen_M.tolist()
            if rows.start + place in chosen or spec.tokens == "all":
                t = spec.temperature
                p, q = ((logits[place] / t).softmax(-1) for logits in (their_logits, our_logits))
                sums["words"] = sums["words"] + t * t * (p * (p / q).log()).sum()
            if rows.start + place in chosen:
                target = example.targets_M[chosen.index(rows.start + place)]
                sums["masked"] = sums["masked"] - our_logits[place].softmax(-1)[target].log()
            for number, (mine, its) in enumerate(objective.state_layers):
                x, y = ours[HookPoint.LAYER, mine][place], theirs[HookPoint.LAYER, its][place]
                if len(x) != len(y):
                    x = objective.projections[number].weight @ x
                cosine = (x @ y) / (x @ x).sqrt() / (y @ y).sqrt()
                sums["cosine"] = sums["cosine"] + (1 - cosine) / len(objective.state_layers)
        for mine, its in objective.attention_layers:
            p_HNN, q_HNN = maps(theirs, its), maps(ours, mine)
            share = 1 / p_HNN.shape[0] / len(objective.attention_layers)
            for p, q in zip(p_HNN.flatten(0, 1), q_HNN.flatten(0, 1), strict=True):
                sums["attention"] = sums["attention"] + share * kl(p, q)
            for what in (HookPoint.QUERY, HookPoint.KEY, HookPoint.VALUE):
                p_HNN, q_HNN = (
                    relation(heard[what, layer], 3) for heard, layer in ((theirs, its), (ours, mine))
                )
                for p, q in zip(p_HNN.flatten(0, 1), q_HNN.flatten(0, 1), strict=True):
                    sums["relations"] = sums["relations"] + share / 3 * kl(p, q)
    return sums


@pytest.mark.parametrize("tokens", ["chosen", "all"])
@pytest.mark.parametrize(
    "student", [shallow(TEACHER), NARROW, PRE_NORM], ids=["shallow", "narrow", "pre-norm"]
)
def test_every_term_and_gradient_is_that_of_the_formulas(student, tokens, monkeypatch):
    monkeypatch.setattr(matching, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(matching, "LOGITS_AT_ONCE", 9 * 97)
    spec = replace(EVERYTHING, tokens=tokens)
    encoders = (
        random_encoder(student, seed=1, dtype=torch.float64),
        random_encoder(TEACHER, dtype=torch.float64),
    )
    objective = Distillation(*encoders, vocabulary(), spec).double()
    example = objective.prepare(chunks(TEXTS, range(4)), np.random.default_rng(0), 0.0)
    totals = {"words": 17, "masked": 19, "cosine": 23, "attention": 29, "relations": 31}
    outcome = objective(example, totals)
    sums = by_hand(objective, example)
    for term, value in sums.items():
        torch.testing.assert_close(outcome.sums[f"{term}/loss"], value.detach(), rtol=1e-11, atol=0, msg=term)
        assert value > 0.1
    expected = sum(getattr(spec, term) * value / totals[term] for term, value in sums.items())
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-11, atol=0)
    ours, theirs = gradients(outcome.loss, objective), gradients(expected, objective)
    assert not any(name.startswith("_teacher") or "teacher" in name for name in ours)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=0, atol=1e-10, msg=name)
    assert ("projections.0.weight" in ours) == (student is NARROW)


def test_counts_are_tokens_or_chosen_tokens():
    encoders = random_encoder(NARROW), random_encoder(TEACHER)
    for tokens in ("chosen", "all"):
        objective = Distillation(*encoders, vocabulary(), replace(EVERYTHING, tokens=tokens))
        example = objective.prepare(chunks(TEXTS, range(4)), np.random.default_rng(0), 0.0)
        chosen = len(example.chosen_M)
        assert example.tokens == sum(TEXTS) + 8
        assert example.counts == {
            "words": chosen if tokens == "chosen" else example.tokens,
            "masked": chosen,
            "cosine": example.tokens,
            "attention": example.tokens,
            "relations": example.tokens,
        }
        assert example.predicted == example.counts["words"]
    plain = Distillation(*encoders, vocabulary(), replace(MINILM_V2, relation_heads=3))
    example = plain.prepare(chunks(TEXTS, range(4)), np.random.default_rng(0), 0.0)
    assert example.counts == {"relations": example.tokens}
    assert 4 not in example.batch.ids_T


@pytest.mark.parametrize("name", ["alibi-shared", "disentangled", "disentangled-own", "relative"])
def test_recorded_attention_is_all_that_a_layer_mixed_by(name):
    encoder, heard = random_encoder(SPECS[name], dtype=torch.float64), {}
    batch = PackedBatch.of_ids([[5, 9, 9, 20, 6, 7, 31] * 3, [8, 4]], None)
    encoder.encode(batch, hook=lambda place, layer, tensor: heard.setdefault((place, layer), tensor))
    found = record_states(encoder, batch, attention_layers=(0, 1)).attention
    for layer, parts in found.items():
        tensors = (parts.queries_THK, parts.keys_THK, parts.values_THK)
        mixed = ReferenceKernel().attend(*tensors, batch.layout, pattern=parts.pattern, bias=parts.bias)
        torch.testing.assert_close(mixed.o_THK, heard[HookPoint.MIXED, layer], rtol=0, atol=1e-12)


COMPARED = [name for name in SPECS if name not in ("linear", "performer", "sinks")]  # which are refused


@pytest.mark.parametrize("name", COMPARED)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(name):
    spec = with_heads(SPECS[name])
    if name == "windows-globals":  # the others have projections of global tokens
        spec = replace(spec, layers=spec.layers[2:])
    encoder = random_encoder(spec, dtype=torch.float64)
    same = random_encoder(spec, dtype=torch.float64)
    every = tuple((layer, layer) for layer in range(len(spec.layers)))
    settings = replace(
        EVERYTHING, masked=0.0, relation_heads=None, state_layers=every, attention_layers=every
    )
    objective = Distillation(encoder, same, vocabulary(), settings)
    example = objective.prepare(chunks((30, 3, 12), range(3)), np.random.default_rng(0), 0.0)
    outcome = objective(example, example.counts)
    assert outcome.loss.abs() < 1e-11
    assert max(grad.abs().max() for grad in gradients(outcome.loss, objective).values()) < 1e-9
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    outcome = objective(example, example.counts)
    assert all(outcome.sums[f"{term}/loss"] > 1e-4 for term in settings.terms)
    assert all(torch.isfinite(grad).all() for grad in gradients(outcome.loss, objective).values())


@pytest.mark.parametrize("spec", [ROTARY_WINDOWS, BLOCKS, DISENTANGLED, ALIBI_SHARED])
def test_attention_compared_is_attention_computed(spec):
    """Compared maps, times values, are what the kernel mixed."""
    encoder = random_encoder(spec, dtype=torch.float64)
    batch = PackedBatch.of_ids([[7] * 3 + list(range(5, 36)), [9, 8, 7]])
    mixed = {}

    def listen(place, layer, x):
        if place is HookPoint.MIXED:
            mixed[layer] = x

    with torch.no_grad():
        encoder.encode(batch, hook=listen)
        heard = record_states(encoder, batch, (), range(len(spec.layers)))
        for layer, parts in heard.attention.items():
            for tile, rows, sight in matching._tiles(batch.layout, parts.queries_THK.shape[1]):
                log_HRC, _ = matching._log_attention(parts, tile, rows, sight)
                found = torch.einsum("hrc,chk->rhk", log_HRC.exp(), parts.values_THK[rows])
                torch.testing.assert_close(found, mixed[layer][rows], rtol=0, atol=1e-11)


def test_gradients_of_windows_are_finite_differences():
    spec = with_heads(ROTARY_WINDOWS)
    student, teacher = (random_encoder(spec, seed=seed, dtype=torch.float64) for seed in (1, 2))
    settings = replace(MINILM, relations=0.0, attention_layers=((0, 0), (1, 1)))
    objective = Distillation(student, teacher, vocabulary(), settings)
    example = objective.prepare(chunks((12, 5), range(2)), np.random.default_rng(0), 0.0)
    ours = gradients(objective(example, example.counts).loss, student)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in student.named_parameters():
        if "attention" not in name:
            continue
        along = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        losses = []
        for step in (1e-5, -2e-5):
            parameter.data += step * along
            losses.append(objective(example, example.counts).loss.item())
        parameter.data += 1e-5 * along
        slope = (losses[0] - losses[1]) / 2e-5
        assert (ours[name] * along).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-8), name


def test_distilberts_defaults():
    spec = DistillationSpec()
    assert (spec.words, spec.masked, spec.cosine, spec.temperature) == (5.0, 2.0, 1.0, 2.0)
    assert spec.terms == ("words", "masked", "cosine")
    assert DISTILBERT_LAYERS == (0, 2, 4, 7, 9, 11)


def test_training_leaves_the_teacher_as_it_is():
    student, teacher = random_encoder(NARROW), random_encoder(TEACHER).train()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    objective = Distillation(student, teacher, vocabulary(), EVERYTHING)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    draw, losses = np.random.default_rng(0), []
    example = objective.train().prepare(chunks(TEXTS, range(4)), draw, 0.0)
    for _ in range(12):
        outcome = objective(example, example.counts)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        losses.append(outcome.loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert not any(part.training for part in teacher.modules())
    assert not any(one.requires_grad for one in teacher.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert not any("teacher" in name for name in objective.state_dict())
    assert objective.encoders() == {"": student}


@pytest.mark.parametrize("name", SPECS)
def test_a_student_of_equal_depth_begins_as_its_teacher(name):
    spec = with_heads(SPECS[name])
    teacher, student = (random_encoder(spec, seed=seed, dtype=torch.float64) for seed in (1, 2))
    assert init_from_teacher(student, teacher, range(len(spec.layers))) == ()
    batch = PackedBatch.of_ids([[7, 8, 9, 33], [5] * 11])
    with torch.no_grad():
        x, y = (one.logits("masked", one.encode(batch), batch.layout) for one in (student, teacher))
    assert torch.equal(x, y)


@pytest.mark.parametrize("tasks", [0, 3])
def test_a_student_without_token_types_and_tasks_begins_as_its_teacher_reads_the_first(tasks):
    embedding = replace(TEACHER.embedding, tasks=tasks)
    teacher = random_encoder(replace(TEACHER, embedding=embedding), dtype=torch.float64)
    spec = replace(TEACHER, pooler=None, embedding=replace(TEACHER.embedding, segments=0))
    student = random_encoder(spec, seed=3, dtype=torch.float64)
    assert init_from_teacher(student, teacher, (0, 1, 2)) == ()
    batch = PackedBatch.of_ids([[7, 8, 9, 33], [5] * 11])
    with torch.no_grad():
        torch.testing.assert_close(student.encode(batch), teacher.encode(batch), rtol=0, atol=1e-12)


def test_some_layers_of_the_teacher():
    deep = replace(TEACHER, layers=TEACHER.layers[:1] * 12)
    teacher, student = random_encoder(deep), random_encoder(replace(TEACHER, layers=deep.layers[:6]), seed=1)
    init_from_teacher(student, teacher)
    for mine, its in enumerate((0, 2, 4, 7, 9, 11)):
        for name, tensor in student.layers[mine].state_dict().items():
            assert torch.equal(tensor, teacher.layers[its].state_dict()[name])
    shared = random_encoder(with_heads(replace(ALIBI_SHARED, layers=ALIBI_SHARED.layers[:2], sharing=(0, 0))))
    teacher = random_encoder(with_heads(ALIBI_SHARED), seed=5)
    init_from_teacher(shared, teacher, (1, 3))
    assert torch.equal(shared.layers[0].attention.qkv.weight, teacher.layers[0].attention.qkv.weight)


def test_what_cannot_be_inherited_is_refused():
    teacher = random_encoder(TEACHER)
    with pytest.raises(InvalidRequest, match="6 layers are named for a student of 3"):
        init_from_teacher(random_encoder(TEACHER), teacher)
    with pytest.raises(InvalidRequest, match="layers names 3; the teacher has layers 0 to 2"):
        init_from_teacher(random_encoder(shallow(TEACHER)), teacher, (0, 3))
    with pytest.raises(InvalidRequest, match="differ in their heads"):
        init_from_teacher(random_encoder(NARROW), teacher, (0, 2))
    words = replace(shallow(TEACHER), embedding=replace(TEACHER.embedding, vocabulary=50))
    with pytest.raises(InvalidRequest, match=r"embedding.words.weight has shape \(50, 24\)"):
        init_from_teacher(random_encoder(words), teacher, (0, 2))
    bare = random_encoder(replace(TEACHER, heads=()))
    student = random_encoder(shallow(TEACHER))
    left = init_from_teacher(student, bare, (0, 2))
    assert left
    assert all(name.startswith("heads.masked.") for name in left)


@pytest.mark.parametrize(
    ("student", "teacher", "changes", "sentence"),
    [
        (
            replace(NARROW, embedding=replace(NARROW.embedding, vocabulary=50)),
            TEACHER,
            {},
            "50 words and the",
        ),
        (replace(NARROW, heads=()), TEACHER, {}, "no head that predicts masked words"),
        (NARROW, replace(TEACHER, heads=()), {}, "no head that predicts masked words"),
        (NARROW, TEACHER, {"state_layers": ((2, 0),)}, "layer 2 of the student, which has layers 0 to 1"),
        (NARROW, TEACHER, {"attention_layers": ((0, -4),)}, "layer -4 of the teacher"),
        (NARROW, TEACHER, {"relation_heads": 4}, "15 and 24 features in all"),
        (with_heads(LINEAR), TEACHER, {}, "must be softmax attention"),
        (with_heads(ROTARY_WINDOWS), TEACHER, {}, "use relations instead"),
    ],
)
def test_what_cannot_be_compared_is_refused(student, teacher, changes, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        Distillation(
            random_encoder(student), random_encoder(teacher), vocabulary(), replace(EVERYTHING, **changes)
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"cosine": -1.0},
        {"words": 0.0, "masked": 0.0, "cosine": 0.0},
        {"tokens": "some"},
        {"related": ()},
        {"state_layers": ()},
    ],
)
def test_a_spec_out_of_range_is_refused(changes):
    with pytest.raises(InvalidRequest):
        DistillationSpec(**changes)


def test_the_text_is_the_one_given():
    chunk = Chunk(np.array([7, 8, 9]), 0)
    objective = Distillation(random_encoder(NARROW), random_encoder(TEACHER), vocabulary(), MINILM)
    example = objective.prepare([chunk], np.random.default_rng(0), 0.0)
    assert example.batch.ids_T.tolist() == [2, 7, 8, 9, 3]
    assert functional.relu(objective(example, example.counts).loss) > 0


def test_objectives_of_a_run_file(tmp_path):
    folder = write_checkpoint(tmp_path / "teacher", tiny_bert("BertForMaskedLM"))
    teacher = build(read_checkpoint(find(folder)))
    spec = replace(teacher.spec, layers=teacher.spec.layers[:2])
    words = vocabulary(size=spec.embedding.vocabulary)
    table = {
        "kind": "distillation",
        "teacher": str(folder),
        "init_from_teacher": [0, 2],
        "attention": 1,
        "state_layers": [[0, 1], [-1, -1]],
        "masking": {"rate": 0.3},
    }
    student = random_encoder(spec)
    objective = build_objective(table, student, words)
    assert isinstance(objective, Distillation)
    assert objective.state_layers == ((0, 1), (1, 2))
    assert torch.equal(student.layers[1].attention.qkv.weight, teacher.layers[2].attention.qkv.weight)
    with pytest.raises(InvalidRequest, match="objective needs teacher"):
        build_objective({"kind": "distillation"}, student, words)
    pairs = random_encoder(replace(spec, heads=(*spec.heads, Classifier("sentence_order", 2, "first"))))
    segments = build_objective({"kind": "sentence_pairs", "task": "sentence_order"}, pairs, words)
    assert isinstance(segments, SentencePairs)
    positions = LearnedPositions(9, added=False)
    embedding = replace(spec.embedding, positions=positions)
    decoding = random_encoder(with_heads(replace(spec, embedding=embedding), enhanced=True))
    found = build_objective({"kind": "masked", "rate": 0.2}, decoding, words)
    assert isinstance(found, EnhancedMaskedLanguageModel)
    assert found.masking.rate == 0.2
