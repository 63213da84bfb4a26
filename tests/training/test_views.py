"""Views of pretraining against `transformers` and against the objectives that train."""

import json

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

import unmask
from tests.support.command import run_here
from tests.support.tiny import VOCABULARY, tiny_bert, write_checkpoint, write_tokenizer
from unmask.errors import InvalidRequest, TextTooLong, UnmaskError
from unmask.training.data.stream import Chunk
from unmask.training.objectives.language_modeling import MaskedLanguageModel
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import ReplacedSpec, ReplacedTokenDetection
from unmask.training.view.steps import draw_of, frequency_losses, vocabulary_of

TEXT = "the river bank was muddy, a text was another text!"
SIZES = {
    "vocab_size": len(VOCABULARY),
    "embedding_size": 10,
    "hidden_size": 20,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "initializer_range": 0.5,
}


def saved(folder, model):
    model.eval().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def electra(kind, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, kind)(transformers.ElectraConfig(**SIZES))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A random BertForMaskedLM, by `transformers` and loaded."""
    theirs = tiny_bert("BertForMaskedLM", max_position_embeddings=40)
    folder = write_checkpoint(tmp_path_factory.mktemp("masked"), theirs, sentence=False)
    return theirs, unmask.load(folder)


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """A random ELECTRA and its generator, by `transformers` and loaded."""
    folder = tmp_path_factory.mktemp("electra")
    theirs = electra("ElectraForPreTraining", 1)
    generator = saved(folder / "generator", electra("ElectraForMaskedLM", 2))
    return theirs.eval(), unmask.load(saved(folder / "detector", theirs)), generator


def read_ids(view):
    return torch.tensor([[one.corrupted_id for one in view.tokens]])


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
def test_losses_are_those_of_transformers(masked, unit):
    theirs, model = masked
    kinds = set()
    for epoch in range(1, 9):
        masking = MaskingSpec(rate=0.4, mask_unit=unit)
        view = model.masked_view(TEXT, seed=3, epoch=epoch, masking=masking, top_k=4)
        assert [one.id for one in view.tokens] == model.tokenize(TEXT).ids.tolist()
        labels = torch.tensor([one.id for one in view.tokens])
        with torch.no_grad():
            logits = theirs(read_ids(view)).logits[0]
        losses = functional.cross_entropy(logits, labels, reduction="none")
        for one in view.tokens:
            kinds.add(one.corruption)
            if not one.target:
                assert (one.corrupted_id, one.loss, one.predictions) == (one.id, None, None)
                continue
            assert one.loss == pytest.approx(float(losses[one.token]), abs=1e-4)
            assert one.probability == pytest.approx(np.exp(-float(losses[one.token])), abs=1e-5)
            best = logits[one.token].softmax(-1).topk(4)
            assert [guess.id for guess in one.predictions] == best.indices.tolist()
            assert one.rank == 1 + int((logits[one.token] > logits[one.token, one.id]).sum())
            expected = {"masked": VOCABULARY.index("[MASK]"), "kept": one.id}.get(one.corruption)
            assert expected in (None, one.corrupted_id)
        whole = torch.full_like(labels, -100)
        chosen = [one.token for one in view.targets]
        whole[chosen] = labels[chosen]
        assert view.loss == pytest.approx(float(functional.cross_entropy(logits, whole)), abs=1e-4)
    assert kinds == {"none", "masked", "random", "kept"}


def test_the_loss_is_that_of_the_objective_that_trains(masked):
    _, model = masked
    words, masking = vocabulary_of(model.tokenizer), MaskingSpec(rate=0.3, mask_unit="word")
    objective = MaskedLanguageModel(model.trainable_encoder(replace=False), words, masking)
    chunk = Chunk(model.tokenize(TEXT).ids[1:-1], 0)
    for epoch in (1, 2, 3):
        example = objective.prepare([chunk], draw_of(5, epoch), 0.0)
        view = model.masked_view(TEXT, seed=5, epoch=epoch, masking=masking)
        assert [one.token for one in view.targets] == example.chosen_M.tolist()
        assert read_ids(view)[0].tolist() == example.batch.ids_T.tolist()
        assert view.loss == pytest.approx(float(objective(example, example.counts).loss.detach()), rel=1e-5)


def test_epochs_show_the_masks_of_the_view(masked):
    _, model = masked
    epochs = model.mask_epochs(TEXT, epochs=30, static_masks=3, seed=7)
    for number, targets in enumerate(epochs.dynamic.epochs, 1):
        view = model.masked_view(TEXT, seed=7, epoch=number)
        assert targets == tuple(one.token for one in view.targets)
    static = model.masked_view(TEXT, seed=7, epoch=4, masking={"static_masks": 3})
    assert epochs.static.epochs[3] == tuple(one.token for one in static.targets)
    assert len(set(epochs.static.epochs)) == epochs.static.different <= 3 < epochs.dynamic.different
    count = len(model.tokenize(TEXT)) - 2
    for row in (epochs.static, epochs.dynamic):
        seen = [len(set().union(*row.epochs[:stop])) / count for stop in range(1, 31)]
        assert row.ever == pytest.approx(seen)
    assert epochs.dynamic.ever[-1] > epochs.static.ever[-1]
    assert epochs.expected[1] == pytest.approx(1 - 0.85**2)


def test_frequencies_are_a_distribution(masked):
    _, model = masked
    size = model.spec.embedding.vocabulary
    losses = frequency_losses(model.tokenizer, np.arange(size), size)
    assert np.exp(-losses).sum() == pytest.approx(1)
    assert losses[VOCABULARY.index("the")] < losses[VOCABULARY.index("muddy")]


def test_scores_of_the_readers_replacement(detector):
    theirs, model, _ = detector
    view = model.replaced_view("the river bank was muddy", "the text bank was muddy")
    assert [one.replaced for one in view.tokens] == [False, False, True, False, False, False, False]
    assert (view.tokens[2].piece, view.tokens[2].corrupted_piece) == ("river", "text")
    ids = read_ids(view)
    labels = torch.tensor([[int(one.replaced) for one in view.tokens]])
    with torch.no_grad():
        out = theirs(ids, labels=labels)
    np.testing.assert_allclose(
        [one.probability for one in view.tokens], out.logits[0].sigmoid().numpy(), atol=1e-5
    )
    assert view.loss == pytest.approx(float(out.loss), abs=1e-5)
    assert view.constant_loss == pytest.approx(-(np.log(1 / 7) / 7 + 6 * np.log(6 / 7) / 7))
    longer = model.replaced_view("the river bank", "the muddy text river bank")
    assert [one.replaced for one in longer.tokens] == [False, False, True, True, False, False, False]
    assert model.replaced_view("the river").source == "nothing"


def test_a_generators_samples_are_those_of_training(detector):
    _, model, folder = detector
    generator = unmask.load(folder)
    spec = ReplacedSpec(sharing="none")
    objective = ReplacedTokenDetection(
        model.trainable_encoder(replace=False),
        vocabulary_of(model.tokenizer),
        spec,
        generator.trainable_encoder(replace=False),
    )
    chunk = Chunk(model.tokenize(TEXT).ids[1:-1], 0)
    changed = 0
    for epoch in (1, 2, 3):
        view = model.replaced_view(TEXT, generator=folder, seed=2, epoch=epoch)
        example = objective.prepare([chunk], draw_of(2, epoch), 0.0)
        sums = objective(example, example.counts).sums
        assert [one.token for one in view.tokens if one.target] == example.chosen_M.tolist()
        assert view.loss * len(view.tokens) == pytest.approx(float(sums["replaced/loss"]), rel=1e-5)
        assert view.accuracy * len(view.tokens) == pytest.approx(int(sums["replaced/accuracy"]))
        assert sum(one.replaced for one in view.tokens) == int(sums["replaced/true"])
        changed += int(sums["replaced/true"])
    assert changed > 0


def albert():
    return transformers.AlbertForPreTraining(transformers.AlbertConfig(**SIZES, num_labels=2))


def bert():
    return tiny_bert("BertForNextSentencePrediction", max_position_embeddings=40)


@pytest.mark.parametrize(
    ("make", "task"), [(bert, "next_sentence"), (albert, "sentence_order")], ids=["bert", "albert"]
)
def test_sentence_pairs_in_both_orders(tmp_path, make, task):
    theirs = make().eval()
    model = unmask.load(saved(tmp_path / "pairs", theirs))
    first, second = "the river bank was muddy.", "a text, another!"
    view = model.sentence_pair_view(first, second)
    assert (view.task, len(view.unrelated)) == (task, 16)
    for order in (view.given, view.swapped):
        encoding = model.tokenize(order.first, order.second)
        with torch.no_grad():
            out = theirs(
                torch.tensor(encoding.ids[None]), token_type_ids=torch.tensor(encoding.token_type_ids[None])
            )
        logits = out.sop_logits if task == "sentence_order" else out.logits
        assert order.probability == pytest.approx(float(logits[0].softmax(-1)[0]), abs=1e-5)
    assert (view.given.first, view.swapped.first) == (first, second)
    assert view.given.probability != view.swapped.probability
    with pytest.raises(TextTooLong, match="together"):
        model.sentence_pair_view("a " * 30, "the " * 30)


def test_bad_input_is_one_sentence(masked, detector):
    _, model = masked
    asked = (
        lambda: model.masked_view(["the"]),
        lambda: model.masked_view(""),
        lambda: model.masked_view("the", epoch=0),
        lambda: model.masked_view("the", seed=-1),
        lambda: model.masked_view("the", top_k=0),
        lambda: model.masked_view("the", masking={"rat": 0.2}),
        lambda: model.masked_view("the", masking={"rate": 2.0}),
        lambda: model.mask_epochs("the", epochs=0),
        lambda: model.mask_epochs("the", static_masks=0),
        lambda: model.replaced_view("the"),
        lambda: model.sentence_pair_view("the", "a"),
        lambda: detector[1].masked_view("the"),
        lambda: detector[1].replaced_view("the", "a", generator=detector[2]),
        lambda: detector[1].replaced_view("the", generator="no/where"),
    )
    for ask in asked:
        with pytest.raises(UnmaskError) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_generator_of_another_vocabulary_is_refused(detector):
    with pytest.raises(InvalidRequest, match="vocabulary"):
        detector[1].replaced_view("the", generator=unmask.load("unmask-mini"))


def test_the_command(masked, detector):
    _, model = masked
    folder = str(model.checkpoint.source.folder)
    ran = run_here("watch", TEXT, "--model", folder, "--epoch", "2", "--json")
    assert (ran.code, ran.err) == (0, "")
    found, view = json.loads(ran.out), model.masked_view(TEXT, epoch=2, top_k=3)
    assert (found["view"], found["loss"]) == ("masked", pytest.approx(view.loss, abs=1e-5))
    assert [one["corrupted_id"] for one in found["masked"]["tokens"]] == read_ids(view)[0].tolist()
    assert "by word frequency alone" in " ".join(run_here("watch", TEXT, "--model", folder).out.split())
    assert "dynamic masks" in run_here("watch", TEXT, "--model", folder, "--epochs", "3").out
    theirs = str(detector[1].checkpoint.source.folder)
    shown = run_here("watch", TEXT, "--model", theirs, "--generator", str(detector[2]))
    assert (shown.code, shown.err) == (0, "")
    assert "Replaced by: generator" in shown.out
    for wrong in (["a", "--epochs", "2"], ["--top", "0"], ["--rate", "1.5"], ["a"]):
        ran = run_here("watch", TEXT, *wrong, "--model", folder)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
