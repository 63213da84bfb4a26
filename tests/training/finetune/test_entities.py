"""Training of a head that finds entities of any label.

`OF_GLINER` was computed by the package gliner 0.2.24 in float64 on the folders that `write_gliner` writes,
without dropout, for the texts and labels of `ITEMS`.
"""

import json

import numpy as np
import pytest
import torch

import unmask
from tests.support.tiny import VOCABULARY, tiny_bert, write_checkpoint
from tests.tasks.test_labels import write_gliner
from tests.training.finetune.test_finetune import place
from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks.label_network import label_network
from unmask.tasks.label_spans import PromptEncoder
from unmask.tasks.reader import Reader
from unmask.training.finetune.entities import EntityRun, _tensors
from unmask.training.finetune.entity_records import word_spans
from unmask.training.finetune.records import Labeled
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.objectives.entities import EntityObjective, EntityText, LabelLayers
from unmask.training.objectives.specs import EntitySpec
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks
from unmask.training.run.trainer import Trainer
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

pytestmark = pytest.mark.long

__all__ = ["place"]

ITEMS = [
    (
        ["ada", "met", "bob", "in", "rome", "."],
        [(0, 0, "person"), (2, 2, "person"), (4, 5, "city"), (0, 1, "drug")],
        ["person", "city"],
    ),
    (["the", "bobs", "met"], [(0, 1, "city")], ["city", "the drug", "person"]),
    (["rome"], [], ["drug"]),
]
OF_GLINER = {
    ("markerV0", 0, None): (19.606329, 62.419694, {"prompt_rep_layer.3.weight": 34.779007}),
    ("markerV0", 1, 0.75): (
        7.317757,
        78.19544,
        {
            "rnn.lstm.weight_hh_l0": 0.624076,
            "token_rep_layer.projection.weight": 100.767682,
            "span_rep_layer.span_rep_layer.project_end.0.bias": 11.317273,
            "span_rep_layer.span_rep_layer.out_project.0.bias": 9.600928,
        },
    ),
    ("token_level", 1, None): (
        40.587823,
        24.925532,
        {"rnn.lstm.bias_hh_l0": 3.501779, "scorer.proj_label.weight": 41.121215},
    ),
    ("token_level", 0, 0.75): (6.454284, 11.563095, {"scorer.out_mlp.0.bias": 4.097917}),
}
"""The loss, the norm of the encoder's gradient, and those of some tensors of the head, by the mode, the
layers of the LSTM, and the alpha of a focal loss with gamma 2."""


def objective_of(folder, **spec):
    begun = read_checkpoint(Source(folder, "model"))
    encoder = build(begun, dtype="float64").requires_grad_(True)
    layers = LabelLayers(begun.label_head, encoder.spec.width, 0.4).double()
    layers.load_state_dict(_tensors(label_network(begun)))
    objective = EntityObjective(
        encoder,
        layers,
        prompts=PromptEncoder(Reader(begun, "model"), begun.label_head),
        spec=EntitySpec(**spec),
        max_tokens=40,
    )
    return objective.eval()


def item_of(objective, words, spans):
    pieces = objective.prompts.pieces(words, "a text")
    return EntityText(
        pieces.ids,
        np.zeros_like(pieces.ids),
        np.empty(0),
        pieces=pieces,
        spans=tuple(spans),
        labels=("city", "drug", "person"),
    )


@pytest.mark.parametrize("case", OF_GLINER)
def test_loss_and_gradients_of_a_step_are_those_of_gliner(tmp_path, monkeypatch, case):
    mode, layers, alpha = case
    folder = write_gliner(tmp_path / "model", span_mode=mode, num_rnn_layers=layers)
    focal = {} if alpha is None else {"focal_alpha": alpha, "focal_gamma": 2.0}
    objective = objective_of(folder, **focal)
    drawn = iter(labels for _, _, labels in ITEMS)
    monkeypatch.setattr(objective, "_drawn", lambda item, draw: next(drawn))
    items = [item_of(objective, words, spans) for words, spans, _ in ITEMS]
    example = objective.prepare(items, np.random.default_rng(0), 0.0)
    output = objective(example, {"entities": 3})
    (3 * output.loss).backward()
    loss, of_encoder, of_head = OF_GLINER[case]
    assert 3 * output.loss.item() == pytest.approx(loss, abs=1e-5)
    assert output.sums["entities/loss"].item() == pytest.approx(loss, abs=1e-5)
    grads = [part.grad for part in objective.encoder.parameters() if part.grad is not None]
    assert torch.sqrt(sum((grad**2).sum() for grad in grads)).item() == pytest.approx(of_encoder, abs=1e-5)
    named = dict(objective.layers.named_parameters())
    assert {name: named[name].grad.norm().item() for name in of_head} == pytest.approx(of_head, abs=1e-5)


def test_labels_of_a_text_are_its_own_and_others(tmp_path):
    folder = write_gliner(tmp_path / "model")
    objective = objective_of(folder, max_negative_ratio=1, max_types=2)
    own, none = (item_of(objective, ["ada", "in"], spans) for spans in ([(0, 0, "city")], []))
    draws = [objective._drawn(own, np.random.default_rng(seed)) for seed in range(40)]
    assert all("city" in labels for labels in draws if len(labels) < 2)
    assert {len(labels) for labels in draws} == {1, 2}
    assert {label for labels in draws for label in labels} == {"city", "drug", "person"}
    assert {labels.index("city") for labels in draws if len(labels) == 2} == {0, 1}, "the order is random"
    assert draws[7] == objective._drawn(own, np.random.default_rng(7))
    assert all(len(objective._drawn(none, np.random.default_rng(seed))) == 1 for seed in range(9))


def test_words_that_do_not_fit_are_left_out_with_their_entities(tmp_path):
    objective = objective_of(write_gliner(tmp_path / "model", max_len=384), max_negative_ratio=0)
    words = ["ada", "in"] * 40
    item = item_of(objective, words, [(0, 0, "city"), (79, 79, "city")])
    example = objective.prepare([item], np.random.default_rng(0), 0.0)
    assert example.tokens == 40
    assert example.targets[0].sum() == 1
    assert objective(example, {"entities": 1}).loss.isfinite()


ADA = ("Ada", "met", "Bob", "Lee", ".")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (ADA, ["B-PER", "O", "B-PER", "I-PER", "O"]),
        (ADA, [[0, 0, "PER"], [2, 3, "PER"]]),
        ("Ada met Bob Lee.", [[0, 3, "PER"], {"start": 8, "end": 15, "label": "PER"}]),
    ],
)
def test_entities_of_data_in_three_forms(text, label):
    words, spans = word_spans(Labeled("line 1", text, None, label), {"PER": "person"})
    assert words == list(ADA)
    assert spans == [(0, 0, "person"), (2, 3, "person")]


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("Ada met Bob.", [[0, 2, "PER"]], "'Ad', which does not begin and end with words"),
        (ADA, [[0, 5, "PER"]], "from word 0 to word 5, and 5 words"),
        (ADA, [[1, 0, "PER"]], "from word 1 to word 0"),
        (ADA, ["O", "B-PER"], "5 words and 2 labels"),
        (ADA, [[0, 1]], r"give \[start, end, label\]"),
        (ADA, [[0, 1, " "]], r"give \[start, end, label\]"),
        (ADA, "PER", "give a list"),
    ],
)
def test_damaged_entities_are_named(text, label, message):
    with pytest.raises(InvalidText, match=f"^line 1 has .*{message}"):
        word_spans(Labeled("line 1", text, None, label), {})


RIVER = {"train": ["train.conll"], "dev": ["dev.conll"], "rename_labels": {"W": "water"}}


def settings(out, **changes):
    return {
        "name": "rivers",
        "task": "tagging",
        "epochs": 12,
        "batch_size": 8,
        "out": str(out),
        "model": {"start_from": "tiny", "head_dropout": 0.1},
        "data": RIVER,
        "optimizer": {"learning_rate": 3e-3, "head_learning_rate": 1e-2},
        "evaluation": {"metric": "f1"},
        "entities": {"max_width": 3, "width": 24},
    } | changes


def quiet(event):
    pass


@pytest.mark.parametrize("scores", ["spans", "words"])
def test_a_run_learns_and_leaves_a_folder_of_gliner(place, tmp_path, scores):
    entities = {"scores": scores, "max_width": 3, "width": 24}
    result = finetune(settings(tmp_path / "run", entities=entities), base=place, callback=quiet)
    assert result.dev["dev/f1"] == result.dev["dev/f1[water]"] > 0.95
    model = unmask.load(result.folder)
    (found,) = model.tag(["the river is muddy"], labels=["water"])
    assert [entity.text for entity in found.entities] == ["river"]
    assert model.tag("the river", labels=["a label that no text had"], threshold=0).entities
    config = json.loads((result.folder / "gliner_config.json").read_text())
    ids = {token: model.tokenizer.token_to_id(token) for token in ("[FLERT]", "<<ENT>>", "<<SEP>>")}
    size, last = model.spec.embedding.vocabulary, model.tokenizer.vocabulary_size
    assert list(ids.values()) == [last - 3, last - 2, last - 1]
    assert config["class_token_index"] == ids["<<ENT>>"]
    assert config["vocab_size"] == config["encoder_config"]["vocab_size"] == size
    assert config["span_mode"] == {"spans": "markerV0", "words": "token_level"}[scores]
    assert config["model_name"] == "tiny"
    card = (result.folder / "README.md").read_text()
    assert "entities of 1 label" in card
    assert "model.tag(" in card


def test_the_head_of_the_best_step_is_written(place, tmp_path, monkeypatch):
    heads = []

    def falling(run):
        heads.append({name: tensor.clone() for name, tensor in run.objective.layers.state_dict().items()})
        return {"precision": 0.5, "recall": 0.5, "f1": 1 / len(heads)}

    monkeypatch.setattr(EntityRun, "dev_figures", falling)
    changes = {
        "max_steps": 3,
        "evaluation": {"every": 1, "metric": "f1"},
        "entities": {},
    }
    result = finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)
    assert (result.steps, result.best_step) == (3, 1)
    written = _tensors(label_network(read_checkpoint(Source(result.folder, "run"))))
    assert all(torch.equal(written[name], tensor) for name, tensor in heads[0].items())
    assert not all(torch.equal(written[name], tensor) for name, tensor in heads[2].items())


def test_vectors_of_new_tokens_begin_as_the_mean_of_the_others(tmp_path):
    write_checkpoint(tmp_path / "tiny", tiny_bert(vocab_size=len(VOCABULARY)), sentence=False)
    data = {"train": [{"text": ["river"], "label": ["B-W"]}]}
    changes = {"max_steps": 1, "evaluation": {}, "frozen": True, "data": data}
    result = finetune(settings(tmp_path / "run", **changes), base=tmp_path, callback=quiet)
    old, new = (
        build(read_checkpoint(Source(folder, "x"))).embedding.words.weight.detach()
        for folder in (tmp_path / "tiny", result.folder)
    )
    assert torch.equal(new[: len(old)], old), "frozen"
    torch.testing.assert_close(new[len(old) :], old.mean(0).expand(3, -1))


def test_a_word_without_a_token_moves_no_entity(tmp_path):
    folder = write_gliner(tmp_path / "model")
    rows = [{"text": ["\u200b", "ada", "in", "rome"], "label": ["O", "B-person", "O", "B-city"]}]
    changes = {"model": {"start_from": str(folder)}, "evaluation": {}, "entities": {}, "max_steps": 1}
    run_settings = settings_of_table(settings(tmp_path / "run", data={"train": rows, "dev": rows}) | changes)
    run = EntityRun(run_settings, tmp_path, tmp_path / "run", Ranks(), Callback())
    (item,) = run.training.items
    assert item.spans == ((0, 0, "person"), (2, 2, "city"))


def test_precision_and_recall(place, tmp_path):
    """A model that finds every span of a label has a recall of 1 and a low precision."""
    entities = {"max_width": 2, "width": 8, "threshold": 0.0}
    rows = [{"text": ["river"], "label": ["B-W"]}, {"text": ["bank"], "label": ["O"]}]
    changes = {"max_steps": 1, "entities": entities, "data": {"train": rows, "dev": rows}}
    result = finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)
    assert (result.dev["dev/precision"], result.dev["dev/recall"]) == (0.5, 1.0)


def test_a_checkpoint_of_gliner_is_trained_further(place, tmp_path):
    folder = write_gliner(tmp_path / "gliner", span_mode="token_level")
    rows = [{"text": "Ada met Bob.", "label": [[0, 3, "person"], [8, 11, "person"]]}]
    changes = {
        "model": {"start_from": str(folder)},
        "data": {"train": rows},
        "evaluation": {},
        "optimizer": {"learning_rate": 1e-12},
        "entities": {},
        "max_steps": 1,
    }
    result = finetune(settings(tmp_path / "run", **changes), callback=quiet)
    before, after = (
        unmask.load(model).tag("Ada met Bob in Rome.", labels=["person", "city"], threshold=0.1)
        for model in (folder, result.folder)
    )
    assert before.entities
    assert [(e.label, e.start, e.end) for e in after.entities] == [
        (e.label, e.start, e.end) for e in before.entities
    ]
    assert [e.score for e in after.entities] == pytest.approx([e.score for e in before.entities], abs=1e-5)


def test_a_stopped_run_resumes(place, tmp_path, monkeypatch):
    changes = {"epochs": 1, "checkpoints": {"every": 3}}
    whole = finetune(settings(tmp_path / "whole", **changes), base=place, callback=quiet)
    step = Trainer._step

    def stop_once(self, reporter):
        step(self, reporter)
        if self.loop.step == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_step", stop_once)
    with pytest.raises(KeyboardInterrupt):
        finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)
    monkeypatch.undo()
    resumed = finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)
    one, other = ((run.folder / "model.safetensors").read_bytes() for run in (whole, resumed))
    assert one == other
    again = finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)
    assert again.dev == resumed.dev


def test_micro_batches_change_nothing(place, tmp_path):
    model = {"start_from": "tiny", "head_dropout": 0.0}
    model["config"] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folders = []
    for count in (1, 4):
        entities = {"width": 8, "max_negative_ratio": 0}
        changes = {"max_steps": 2, "micro_batches": count, "model": model, "entities": entities}
        out = tmp_path / str(count)
        folders.append(finetune(settings(out, **changes), base=place, callback=quiet).folder)
    one, other = (build(read_checkpoint(Source(folder, "x"))).state_dict() for folder in folders)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=2e-4, rtol=0, msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "classification"}, r"\[entities\] is for the task tagging"),
        ({"entities": {"labels_encoder": "tiny", "rnn_layers": 1}}, "rnn_layers is 1"),
        ({"entities": {"labels_encoder": ""}}, "labels_encoder"),
        ({"label_smoothing": 0.1}, "label_smoothing has no meaning"),
        ({"data": RIVER | {"long_texts": "window"}}, "long_texts is window"),
        ({"evaluation": {"metric": "accuracy"}}, "metric is 'accuracy'|accuracy"),
        ({"entities": {"width": 7}}, "entities.width is 7"),
        ({"entities": {"threshold": 2}}, "threshold is 2"),
        ({"entities": {"focal_gamma": -1}}, "focal_gamma is -1"),
        ({"data": {"train": [{"text": ["a"], "label": ["O"]}]}, "evaluation": {}}, "have no entities"),
        ({"data": {"train": [{"text": ["a"], "label": ["B-<<SEP>>"]}]}, "evaluation": {}}, "<<SEP>>"),
    ],
)
def test_what_cannot_be_is_one_sentence(place, tmp_path, changes, message):
    with pytest.raises(InvalidRequest, match=message):
        finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)


def test_what_a_checkpoint_of_gliner_cannot_change(tmp_path):
    spans = write_gliner(tmp_path / "spans")
    rows = {"train": [{"text": ["ada"], "label": ["B-person"]}]}
    for folder, entities, message in (
        (spans, {"scores": "words"}, "entities.scores is words and the head of spans has spans"),
        (spans, {"labels_encoder": str(spans)}, "spans has a head of labels"),
    ):
        model = {"start_from": str(folder)}
        changes = {"model": model, "data": rows, "evaluation": {}, "entities": entities}
        with pytest.raises(InvalidRequest, match=message):
            finetune(settings(tmp_path / "run", **changes), callback=quiet)
    with pytest.raises(InvalidRequest, match="metrics and test are for labels"):
        finetune(settings(tmp_path / "run"), test="a.conll", callback=quiet)
