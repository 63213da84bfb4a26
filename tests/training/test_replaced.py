"""Replaced-token detection against numpy in float64, `transformers`, and finite differences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp, softmax
from scipy.stats import chisquare

from tests.support import plain
from tests.support.specs import ALIBI_SHARED, DISENTANGLED, POST_NORM, ROTARY_WINDOWS, SPECS, random_encoder
from tests.training.toy import SPECIAL, chunks, vocabulary
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.families import deberta_v2, electra
from unmask.families.heads import pretrained
from unmask.spec import LearnedPositions, Transform
from unmask.training.objectives import replaced
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.generator import (
    ShiftedTable,
    discriminator_spec,
    export,
    generator_spec,
    shared_parts,
)
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import ReplacedSpec, ReplacedTokenDetection, draw_words
from unmask.training.optim.build import place_parameters

SIZE = 97
TINY = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
    "max_position_embeddings": 40,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "vocab_size": SIZE,
}
ELECTRA = pretrained(
    electra.ELECTRA.from_config(
        **TINY, num_hidden_layers=2, hidden_size=16, intermediate_size=20, embedding_size=12
    ),
    electra.HEADS,
    "replaced",
)
DEBERTA = deberta_v2.DEBERTA_V2.from_config(
    **TINY,
    **deberta_v2.DISENTANGLED | {"position_biased_input": True},
    num_hidden_layers=3,
    hidden_size=12,
    intermediate_size=18,
    max_relative_positions=9,
    norm_rel_ebd="layer_norm",
    position_buckets=6,
    share_att_key=True,
)
KEPT = replace(
    DEBERTA,
    embedding=replace(DEBERTA.embedding, positions=LearnedPositions(40, added=False)),
)
"""As DeBERTa v3 has it: absolute positions for the generator's decoder alone."""
DESIGNS = {
    "bert": POST_NORM,
    "electra": ELECTRA,
    "deberta": DEBERTA,
    "kept": KEPT,
    "modernbert": ROTARY_WINDOWS,
    "albert": ALIBI_SHARED,
}
HALF = ReplacedSpec(width_share=0.5, layers_share=0.5, masking=MaskingSpec(rate=0.4, replacement="electra"))
MODES = ("none", "tied", "gradient_disentangled")


def objective(spec, mode="tied", setting=HALF, seed=0, dtype=torch.float64):
    """With random weights, biases and norms too, and shifts that are not 0."""
    encoder = random_encoder(discriminator_spec(spec), seed=seed, dtype=dtype)
    setting = replace(setting, sharing=mode)
    generator = random_encoder(replaced._fresh_generator(encoder, setting).spec, seed=seed + 1, dtype=dtype)
    made = ReplacedTokenDetection(encoder, vocabulary(), setting, generator).eval()
    noise = torch.Generator().manual_seed(seed + 2)
    for module in made.modules():
        if isinstance(module, ShiftedTable):
            module.shift.data.normal_(std=0.3, generator=noise)
    return made


def example(made, lengths=(9, 4, 1), seed=3):
    return made.prepare(chunks(lengths, range(len(lengths)), seed), np.random.default_rng(seed), 0.0)


def run(made, prepared):
    return made(prepared, prepared.counts)


def gradients(loss, made):
    """By parameter that is trained; of zeros where the loss does not depend on it."""
    named = {name: parameter for name, parameter in made.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


# --- the whole loss, in numpy ------------------------------------------------------------------------


def numbers(encoder, tables=None):
    """An encoder's tensors, as numpy; with the tables that the test itself put together."""
    state = {name: tensor.numpy().copy() for name, tensor in encoder.state_dict().items()}
    for name, table in (tables or {}).items():
        del state[name.replace("weight", "shift")]
        state[name] = table
    return state


def transformed(x, transform: Transform | None, weights, at):
    if transform is None:
        return x
    activations = {**plain.ACTIVATIONS, "tanh": np.tanh}
    y = activations[transform.activation](plain.linear(x, weights, at + ".dense"))
    return y if transform.norm is None else plain.norm(y, transform.norm, weights, at + ".norm")


def states(spec, weights, ids, segments, layout):
    parts = [
        plain.encode(spec, weights, ids[rows], segments[rows], np.zeros(rows.stop - rows.start, bool))[-1]
        for rows in map(layout.rows, range(layout.sequence_count))
    ]
    return np.concatenate(parts)


def word_logits(spec, weights, prepared):
    batch, (head,) = prepared.batch, spec.heads
    x = states(spec, weights, batch.ids_T, batch.token_type_ids_T, batch.layout)[prepared.chosen_M]
    x = transformed(x, head.transform, weights, "heads.masked.transform")
    return x @ weights["embedding.words.weight"].T + weights["heads.masked.bias"]


def words_by_hand(logits, prepared, temperature=1.0):
    """Walk through the probabilities until they exceed the draw."""
    words = []
    for row, draw in zip(softmax(logits / temperature, axis=-1), prepared.draws_M, strict=True):
        word, total = 0, row[0]
        while total <= draw:
            word += 1
            total += row[word]
        words.append(word)
    return np.array(words)


def masked_by_hand(spec, weights, prepared):
    logits = word_logits(spec, weights, prepared)
    right = logits[np.arange(len(logits)), prepared.targets_M]
    return (logsumexp(logits, axis=-1) - right).sum()


def detected_by_hand(spec, weights, prepared, words):
    """The loss, the logits and the truth of every token."""
    batch, (head,) = prepared.batch, spec.heads
    ids, truth = batch.ids_T.copy(), np.zeros(len(batch.ids_T))
    for place, word, target in zip(prepared.chosen_M, words, prepared.targets_M, strict=True):
        ids[place], truth[place] = word, word != target
    x = states(spec, weights, ids, batch.token_type_ids_T, batch.layout)
    if head.reads == "tokens_and_first":
        x = x + np.repeat(x[batch.layout.offsets[:-1]], batch.layout.lengths, axis=0)
    if head.input_norm is not None:
        x = plain.norm(x, head.input_norm, weights, "heads.replaced.norm")
    x = transformed(x, head.transform, weights, "heads.replaced.transform")
    logits = plain.linear(x, weights, "heads.replaced.out")[:, 0]
    p = expit(logits)
    return -(truth * np.log(p) + (1 - truth) * np.log(1 - p)).sum(), logits, truth


def tables_of(made):
    """What the discriminator reads of shifted tables, added up here."""
    return {
        f"embedding.{part}.weight": (getattr(made.generator.embedding, part).weight + module.shift)
        .detach()
        .numpy()
        for part, module in made.discriminator.embedding.named_children()
        if isinstance(module, ShiftedTable)
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in DESIGNS if name != "kept"])
def test_loss_and_figures_are_those_of_the_formulas(name, mode):
    made = objective(DESIGNS[name], mode)
    prepared = example(made)
    outcome = made(prepared, {"masked": 11, "replaced": 50})
    theirs, ours = numbers(made.generator), numbers(made.discriminator, tables_of(made))
    words = words_by_hand(word_logits(made.generator.spec, theirs, prepared), prepared)
    assert (made.propose(prepared)[2].numpy() == words).all()
    masked = masked_by_hand(made.generator.spec, theirs, prepared)
    detected, logits, truth = detected_by_hand(made.discriminator.spec, ours, prepared, words)
    assert float(outcome.loss.detach()) == pytest.approx(masked / 11 + 50 * detected / 50, rel=1e-10)
    sums = {figure: float(value) for figure, value in outcome.sums.items()}
    assert sums["masked/loss"] == pytest.approx(masked, rel=1e-10)
    assert sums["replaced/loss"] == pytest.approx(detected, rel=1e-10)
    assert sums["replaced/true"] == truth.sum() > 0
    assert sums["replaced/said"] == (logits > 0).sum()
    assert sums["replaced/found"] == ((logits > 0) & (truth == 1)).sum()
    assert sums["replaced/accuracy"] == ((logits > 0) == (truth == 1)).sum()


@pytest.mark.parametrize(
    ("name", "mode"),
    [*(("electra", mode) for mode in MODES), ("deberta", "gradient_disentangled"), ("albert", "tied")],
)
def test_gradients_are_those_of_the_formulas(name, mode):
    """Central differences in numpy of each loss in the encoder's own tensors; sharing decides their sum."""
    made = objective(DESIGNS[name], mode)
    prepared = example(made, lengths=(4, 2))
    theirs, ours = numbers(made.generator), numbers(made.discriminator, tables_of(made))
    words = words_by_hand(word_logits(made.generator.spec, theirs, prepared), prepared)
    losses = (
        (theirs, lambda: masked_by_hand(made.generator.spec, theirs, prepared) / prepared.counts["masked"]),
        (
            ours,
            lambda: (
                50
                * detected_by_hand(made.discriminator.spec, ours, prepared, words)[0]
                / prepared.counts["replaced"]
            ),
        ),
    )
    rng, found = np.random.default_rng(0), gradients(run(made, prepared).loss, made)
    direction = {key: rng.standard_normal(grad.shape) for key, grad in found.items()}
    shared = {f"embedding.{part}." for part in made.shared if mode == "tied"}

    def slope(weights, loss, own, along):
        middle, step, values = weights[own], 1e-5, []
        for sign in (1, -1):
            weights[own] = middle + sign * step * along
            values.append(loss())
        weights[own] = middle
        return (values[0] - values[1]) / (2 * step)

    def named(key):
        """The parameter's name in either encoder's tensors."""
        return key.split(".", 1)[1].replace("shift", "weight")

    for key, grad in found.items():
        own = named(key)
        tied = any(own.startswith(part) for part in shared)
        expected = sum(
            slope(weights, loss, own, direction[key])
            for (weights, loss), of in zip(losses, ("generator", "discriminator"), strict=True)
            if tied or key.startswith(of)
        )
        assert float((grad.numpy() * direction[key]).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-7), (
            name
        )


def test_as_transformers_computes_it():
    transformers = pytest.importorskip("transformers")
    from unmask.weights.write.save import their_tensors

    made = objective(ELECTRA, "tied", replace(HALF, weight=50.0))
    prepared = example(made, lengths=(7, 7))

    def theirs(encoder, kind):
        config = transformers.ElectraConfig(
            **electra.ELECTRA.write(encoder.spec), attn_implementation="eager"
        )
        model = getattr(transformers, kind)(config).double().eval()
        tensors = {name: tensor.clone() for name, tensor in their_tensors(encoder, electra.ELECTRA).items()}
        missing, unexpected = model.load_state_dict(tensors, strict=False)
        assert not unexpected
        assert all("position_ids" in name or "lm_head.weight" in name for name in missing)
        model.tie_weights()
        return model

    ids = torch.from_numpy(prepared.batch.ids_T)
    labels = torch.full_like(ids, -100)
    labels[prepared.chosen_M] = torch.from_numpy(prepared.targets_M)
    words = made.propose(prepared)[2]
    read, truth = ids.clone(), torch.zeros_like(ids)
    read[prepared.chosen_M] = words
    truth[prepared.chosen_M] = (words != torch.from_numpy(prepared.targets_M)).long()
    masked = theirs(made.generator, "ElectraForMaskedLM")(ids.view(2, 9), labels=labels.view(2, 9)).loss
    found = theirs(made.discriminator, "ElectraForPreTraining")(read.view(2, 9), labels=truth.view(2, 9)).loss
    loss = float(run(made, prepared).loss.detach())
    assert loss == pytest.approx(float((masked + 50 * found).detach()), rel=1e-7)


# --- draws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_words_are_drawn_as_often_as_softmax_says(temperature, monkeypatch):
    rng = np.random.default_rng(5)
    state, matrix, bias = (torch.from_numpy(rng.standard_normal(s)).float() for s in ((1, 4), (9, 4), (9,)))
    count = 20_000
    monkeypatch.setattr(replaced, "LOGITS_AT_ONCE", 9 * 700)  # many parts, the last one shorter
    words = draw_words(
        state.expand(count, 4), matrix, bias, torch.from_numpy(rng.random(count)), temperature=temperature
    )
    seen = np.bincount(words.numpy(), minlength=9)
    logits = (state @ matrix.T + bias).double().numpy()[0]
    assert chisquare(seen, count * softmax(logits / temperature)).pvalue > 0.01
    assert chisquare(seen, count * softmax(logits / (1.3 * temperature))).pvalue < 1e-6


def test_draws_at_the_ends_give_words_that_are_possible():
    """A draw just below 1 rounds to 1 in float32; ruled-out words have no width to fall into."""
    logits = torch.tensor([[-200.0, 0.0, 1.0, -200.0], [3.0, 0.0, 0.0, 3.0]]).repeat(2, 1)
    draws = torch.tensor([0.0, 0.0, 1 - 2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    words = draw_words(logits, torch.eye(4), None, draws)
    assert words.tolist() == [1, 0, 2, 3]
    words = draw_words(logits, torch.eye(4), None, draws, never_M=torch.tensor([1, 0, 2, 3]))
    assert words.tolist() == [2, 1, 1, 2]


def test_the_right_word_can_be_ruled_out():
    made = objective(POST_NORM, setting=replace(HALF, disallow_correct=True))
    head = made.generator.heads["masked"]
    prepared = example(made, lengths=(30,))
    # A generator that is sure of one word, which is right at some places.
    sure = int(prepared.targets_M[0])
    head.bias.data[sure] = 100.0
    targets = torch.from_numpy(prepared.targets_M)
    words = made.propose(prepared)[2]
    assert not (words == targets).any()
    assert (words[targets != sure] == sure).all()
    sums = run(made, prepared).sums
    assert int(sums["replaced/true"]) == len(targets)
    made.spec = HALF
    assert int(run(made, prepared).sums["replaced/true"]) == int((targets != sure).sum()) < len(targets)


def test_an_example_decides_everything():
    made = objective(POST_NORM)
    first, again = example(made), example(made)
    assert (first.draws_M == again.draws_M).all()
    torch.manual_seed(1)
    loss = run(made, first).loss
    torch.manual_seed(2)
    assert torch.equal(run(made, again).loss, loss)
    assert not torch.equal(run(made, example(made, seed=4)).loss, loss)
    assert first.counts == {"masked": len(first.chosen_M), "replaced": first.tokens}
    assert first.tokens == 9 + 4 + 1 + 2 * 3


def test_shares_of_micro_batches_add_up():
    """Gradients of two micro-batches under the totals of both are those of one that holds both."""
    made = objective(DEBERTA, "gradient_disentangled")
    parts = [example(made, lengths=(6,), seed=1), example(made, lengths=(9, 2), seed=2)]
    totals = {term: sum(part.counts[term] for part in parts) for term in ("masked", "replaced")}
    outcomes = [made(part, totals) for part in parts]
    sums = {
        term: sum(float(outcome.sums[f"{term}/loss"]) for outcome in outcomes) / totals[term]
        for term in totals
    }
    loss = sum(float(outcome.loss.detach()) for outcome in outcomes)
    assert loss == pytest.approx(sums["masked"] + 50 * sums["replaced"], rel=1e-12)


# --- which loss moves which parameter ----------------------------------------------------------------


def parts_of_loss(made, prepared):
    masked, _, words = made.propose(prepared)
    return masked, made.detect(prepared, words)[0]


@pytest.mark.parametrize("name", DESIGNS)
def test_each_loss_reaches_what_it_may(name):
    for mode in MODES:
        # The decoder's positions are as wide as the generator where it is as wide as the encoder.
        made = objective(DESIGNS[name], mode, replace(HALF, width_share=1.0) if name == "kept" else HALF)
        prepared = example(made)
        masked, detected = (gradients(loss, made) for loss in parts_of_loss(made, prepared))
        reached = {
            of: {name for name, grad in found.items() if grad.any()}
            for of, found in (("masked", masked), ("detected", detected))
        }
        trained = {name for name, parameter in made.named_parameters() if parameter.requires_grad}
        assert reached["masked"] | reached["detected"] == trained
        both = reached["masked"] & reached["detected"]
        if mode == "tied":
            wanted = {
                f"discriminator.embedding.{part}.{name}"
                for part in made.shared
                for name, _ in made.generator.embedding.get_submodule(part).named_parameters()
            } & trained
            unread = {"discriminator.embedding.positions.weight"} if name == "kept" else set()
            assert both == wanted - unread
            assert "discriminator.embedding.words.weight" in both
        else:
            assert not both
            assert all(name.startswith("discriminator.") for name in reached["detected"])
            # A position table that is not read is the generator's, and comes first by the other's name.
            assert {name for name in reached["masked"] if name.startswith("discriminator.")} == (
                {"discriminator.embedding.positions.weight"}
                if name == "kept" and mode == "gradient_disentangled"
                else set()
            )
        if mode == "gradient_disentangled":
            assert "discriminator.embedding.words.shift" in reached["detected"]
            assert "generator.embedding.words.weight" in reached["masked"]
            shifted = {"words", "positions"} if name in ("bert", "electra", "deberta") else {"words"}
            assert {
                part
                for part, module in made.discriminator.embedding.named_children()
                if isinstance(module, ShiftedTable)
            } == shifted


def test_kept_positions_go_through_the_decoder_or_are_frozen():
    made = objective(KEPT, "tied", replace(HALF, width_share=1.0))
    assert made.role == "enhanced"
    assert made.discriminator.embedding.positions is made.generator.embedding.positions
    alone = objective(KEPT, "none")
    assert not alone.discriminator.embedding.positions.weight.requires_grad
    assert alone.generator.embedding.positions.weight.requires_grad
    plainly = objective(KEPT, "tied")
    assert plainly.role == "masked"
    assert not plainly.discriminator.embedding.positions.weight.requires_grad


def test_what_is_shared():
    whole = ("words", "positions", "segments", "norm")
    assert objective(ELECTRA, "tied").shared == whole
    assert objective(ELECTRA, "gradient_disentangled").shared == whole[:2]
    assert objective(ELECTRA, "none").shared == ()
    # DISENTANGLED normalizes after its projection, at a width that the generator has not.
    assert objective(DISENTANGLED, "tied").shared == ("words", "segments")
    other = replace(ELECTRA, embedding=replace(ELECTRA.embedding, positions=LearnedPositions(39), segments=3))
    assert shared_parts(ELECTRA, other, "tied") == ("words", "norm")
    with pytest.raises(InvalidRequest, match=r"97 x 12 and the generator's 97 x 11"):
        shared_parts(ELECTRA, replace(ELECTRA, embedding=replace(ELECTRA.embedding, width=11)), "tied")
    with pytest.raises(InvalidRequest, match="gradient_disentangled"):
        shared_parts(ELECTRA, ELECTRA, "all")


def test_tied_parameters_are_one():
    made = objective(ELECTRA, "tied")
    names = [name for name, _ in made.named_parameters()]
    assert "discriminator.embedding.words.weight" in names
    assert not [
        name for name in names if name.startswith("generator.embedding.") and "projection" not in name
    ]
    encoders = (made.discriminator, made.generator)
    # Words, positions, segments, and the norm's two.
    assert len(names) == sum(len(list(encoder.parameters())) for encoder in encoders) - 5
    with torch.no_grad():
        made.generator.embedding.words.weight[7] = 3.0
    assert (made.discriminator.embedding.words.weight[7] == 3.0).all()
    moved = made.float()
    assert moved.generator.embedding.words.weight is moved.discriminator.embedding.words.weight


def test_what_is_shared_starts_as_the_discriminator_was():
    encoder = random_encoder(ELECTRA, seed=3)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    hidden = encoder.encode(example(objective(ELECTRA)).batch)
    for mode in MODES:
        made = ReplacedTokenDetection(
            random_encoder(ELECTRA, seed=3), vocabulary(), replace(HALF, sharing=mode)
        )
        after = export(made.discriminator).state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items()), mode
        assert torch.equal(made.discriminator.eval().encode(example(made).batch), hidden)


# --- what is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["electra", "deberta", "kept", "modernbert", "albert"])
def test_export_changes_no_output(name, dtype):
    made = objective(DESIGNS[name], "gradient_disentangled", dtype=dtype)
    batch = example(made).batch
    kept = made.encoders()
    assert set(kept) == {"", "generator"}
    encoder = kept[""]
    with torch.no_grad():
        trained, shipped = made.discriminator.encode(batch), encoder.encode(batch)
        assert torch.equal(trained, shipped)
        logits = [one.logits("replaced", trained, batch.layout) for one in (made.discriminator, encoder)]
    assert torch.equal(*logits)
    assert type(encoder.embedding.words) is torch.nn.Embedding
    assert set(encoder.state_dict()) == set(Encoder(made.discriminator.spec).state_dict())
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    # Training goes on without moving what was exported.
    with torch.no_grad():
        made.generator.embedding.words.weight += 1
        made.discriminator.layers[0].attention.out.weight += 1
        assert torch.equal(encoder.encode(batch), shipped)
        assert not torch.equal(made.discriminator.encode(batch), shipped)


def test_random_features_are_exported():
    made = objective(SPECS["performer"], "gradient_disentangled")
    batch = example(made).batch
    assert torch.equal(made.discriminator.encode(batch), export(made.discriminator).encode(batch))


@pytest.mark.parametrize("mode", MODES)
def test_state_goes_round(mode, tmp_path):
    made, other = (objective(DEBERTA, mode, seed=seed) for seed in (0, 10))
    prepared = example(made)
    loss = run(made, prepared).loss
    assert not torch.equal(run(other, prepared).loss, loss)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(run(other, prepared).loss, loss)


def test_a_step_keeps_the_shift_apart():
    """An optimizer over all parameters moves the base by the words' loss and the shift by the other."""
    made = objective(ELECTRA, "gradient_disentangled", dtype=torch.float32).train()
    placed = {place.name: place for place in place_parameters(made)}
    assert placed["discriminator.embedding.words.shift"].parts == 0  # an embedding, no matrix for Muon
    assert placed["discriminator.embedding.words.shift"].decays
    prepared, before = example(made), made.discriminator.embedding.words.weight.detach().clone()
    base = made.generator.embedding.words.weight.detach().clone()
    shift = made.discriminator.embedding.words.shift.detach().clone()
    masked, detected = (gradients(loss, made) for loss in parts_of_loss(made, prepared))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(run(made, prepared).loss)
    torch.optim.SGD(made.parameters(), 0.01).zero_grad()
    run(made, prepared).loss.backward()
    torch.optim.SGD(made.parameters(), 0.01).step()
    words, tokens = prepared.counts["masked"], prepared.counts["replaced"]
    moved = base - 0.01 * masked["generator.embedding.words.weight"] / words
    torch.testing.assert_close(made.generator.embedding.words.weight.detach(), moved)
    shifted = shift - 0.01 * 50 * detected["discriminator.embedding.words.shift"] / tokens
    torch.testing.assert_close(made.discriminator.embedding.words.weight.detach(), moved + shifted)
    assert not torch.equal(made.discriminator.embedding.words.weight.detach(), before)


def test_training_lowers_both_losses():
    torch.manual_seed(0)
    encoder = Encoder(discriminator_spec(replace(POST_NORM, init_std=0.1)))
    made = ReplacedTokenDetection(
        encoder, vocabulary(), replace(HALF, sharing="gradient_disentangled", weight=10)
    )
    optimizer = torch.optim.AdamW(made.parameters(), 3e-3)
    text = [np.tile([7, 8, 9, 10], 5), np.tile([20, 30], 9)]
    rows = []
    for step in range(60):
        some = [replace(chunk, ids=ids) for chunk, ids in zip(chunks((1, 1), (0, 1)), text, strict=True)]
        prepared = made.prepare(some, np.random.default_rng(step), 0.0)
        outcome = run(made, prepared)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        rows.append(
            [float(outcome.sums[f"{term}/loss"]) / prepared.counts[term] for term in ("masked", "replaced")]
        )
    first, last = np.mean(rows[:5], axis=0), np.mean(rows[-10:], axis=0)
    assert last[0] < 0.6 * first[0]
    assert last[1] < 0.6 * first[1]


# --- requests -------------------------------------------------------------------------------------------


def test_requests_out_of_range():
    with pytest.raises(InvalidRequest, match=r"width_share is 1\.5; it must be above 0 and at most 1"):
        generator_spec(POST_NORM, width_share=1.5)
    with pytest.raises(InvalidRequest, match="layers_share is 0"):
        generator_spec(POST_NORM, layers_share=0)
    with pytest.raises(InvalidRequest, match="temperature is 0"):
        ReplacedSpec(temperature=0)
    with pytest.raises(InvalidRequest, match="weight is nan"):
        ReplacedSpec(weight=math.nan)
    with pytest.raises(InvalidRequest, match="no head that predicts masked words"):
        ReplacedTokenDetection(Encoder(ELECTRA), vocabulary(), generator=Encoder(ELECTRA))


def test_a_run_file_builds_it():
    table = {"kind": "replaced", "sharing": "none", "width_share": 1, "masking": {"rate": 0.25}}
    made = build_objective(table, Encoder(POST_NORM), vocabulary())
    assert isinstance(made, ReplacedTokenDetection)
    assert made.spec == ReplacedSpec(
        sharing="none", width_share=1.0, masking=MaskingSpec(rate=0.25, replacement="electra")
    )
    with pytest.raises(InvalidRequest, match="masking is 3; it must be a table"):
        build_objective({"kind": "replaced", "masking": 3}, Encoder(POST_NORM), vocabulary())


def test_special_tokens_are_never_replaced():
    made = objective(POST_NORM)
    prepared = example(made, lengths=(12, 20))
    assert (prepared.targets_M >= SPECIAL).all()
