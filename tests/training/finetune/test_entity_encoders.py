"""Training of a head whose labels are read by an encoder of their own, and of adapters with such a head."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.tasks.test_labels import ENCODER, write_gliner
from tests.training.finetune.test_entities import item_of, objective_of, quiet, settings
from tests.training.finetune.test_finetune import Heard, place
from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch
from unmask.models.adapters import load_adapters
from unmask.tasks.label_network import label_network
from unmask.training.finetune.entities import EntityRun
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks
from unmask.training.run.trainer import Trainer
from unmask.weights import Source, read_checkpoint

pytestmark = pytest.mark.long

__all__ = ["place"]

TEXT = "the river is muddy"
TWO = {"labels_encoder": "labels", "labels_encoder_config": ENCODER}
APART = {"max_width": 3, "width": 24, "labels_encoder": "tiny"}
ADAPTED = {
    "entities": APART,
    "adapter": {"r": 4, "lora_alpha": 8},
    "optimizer": {"learning_rate": 1e-2, "head_learning_rate": 1e-2},
}


def entities_of(model, **options):
    found = model.tag([TEXT, "muddy bank"], labels=["water", "metal"], threshold=0.02, **options)
    return [(e.label, e.start, e.end, e.score) for result in found for e in result.entities]


def assert_same(ours, theirs, tolerance):
    assert ours
    assert [entity[:3] for entity in ours] == [entity[:3] for entity in theirs]
    assert [entity[3] for entity in ours] == pytest.approx([entity[3] for entity in theirs], abs=tolerance)


@pytest.fixture(scope="module")
def adapter_run(place, tmp_path_factory):
    """A finished run of an adapter whose base reads the labels."""
    return finetune(
        settings(tmp_path_factory.mktemp("adapter") / "run", **ADAPTED), base=place, callback=quiet
    )


@pytest.mark.parametrize("mode", ["markerV0", "token_level"])
@pytest.mark.parametrize("width", [6, 8])
def test_logits_of_training_are_those_of_the_model(tmp_path, mode, width):
    """In float64, with a projection of the labels' vectors or without, and with an LSTM that is not used."""
    folder = write_gliner(tmp_path / "model", span_mode=mode, hidden_size=width, **TWO)
    objective = objective_of(folder, max_negative_ratio=9)
    item = item_of(objective, ["ada", "met", "bob", "in", "rome"], [(0, 0, "person"), (2, 4, "city")])
    example = objective.prepare([item], np.random.default_rng(0), 0.0)
    assert example.tokens == 7, "labels take no room"
    losses = objective(example, {"entities": 1})
    losses.loss.backward()
    trained = {name for name, part in objective.layers.named_parameters() if part.grad is not None}
    everything = {name for name, _ in objective.layers.named_parameters()}
    assert everything - trained == {name for name in everything if name.startswith("rnn.")}
    assert not any(part.requires_grad for part in objective.layers.rnn.parameters())
    # The model's own path, in numpy, from the same states.
    network = label_network(read_checkpoint(Source(folder, "model")))
    states = objective.encoder.encode(example.batch).detach().numpy()
    words = network.project(states[example.words_at])
    logits = network.logits(words, network.project_labels(example.labels.astype(np.float64)))
    scored = logits[np.isfinite(logits)].reshape(-1)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.from_numpy(logits.reshape(-1)[np.isfinite(logits.reshape(-1))]),
        torch.from_numpy(_by_first_word(example, logits)),
        reduction="sum",
    )
    assert len(scored) == example.targets[0].size
    assert losses.loss.item() == pytest.approx(expected.item(), rel=1e-6)


def _by_first_word(example, logits):
    """The targets in the order of the finite logits."""
    targets = np.full(logits.shape, np.nan)
    if logits.ndim == 3 and example.scored[0].ndim == 2:
        for (first, last), row in zip(example.scored[0], example.targets[0], strict=True):
            targets[first, last - first] = row
    else:
        targets[:] = example.targets[0]
    return targets.reshape(-1)[np.isfinite(logits.reshape(-1))]


def test_a_new_head_beside_an_encoder_of_labels(place, tmp_path):
    result = finetune(settings(tmp_path / "run", entities=APART), base=place, callback=quiet)
    assert result.dev["dev/f1"] > 0.95
    config = json.loads((result.folder / "gliner_config.json").read_text())
    assert (config["labels_encoder"], config["num_rnn_layers"]) == ("tiny", 0)
    assert (result.folder / "labels_encoder" / "tokenizer.json").exists()
    model = unmask.load(result.folder)
    assert model.tokenizer.token_to_id("<<ENT>>") is None
    assert [e.text for e in model.tag(TEXT, labels=["water"]).entities] == ["river"]
    before, after = (unmask.load(folder).checkpoint for folder in (place / "tiny", result.folder))
    before, after = (
        {name: array for name, array in stored.items() if "LayerNorm" in name}
        for stored in (
            load_file(before.source.folder / "model.safetensors"),
            load_file(after.source.folder / "model.safetensors"),
        )
    )
    prefix = "token_rep_layer.labels_encoder.model."
    assert all(
        torch.equal(after[prefix + name.removeprefix("bert.")], array) for name, array in before.items()
    )


def test_a_finished_run_sees_that_the_encoder_of_labels_has_changed(place, tmp_path):
    (tmp_path / "labels").mkdir()
    for path in (place / "tiny").iterdir():
        (tmp_path / "labels" / path.name).write_bytes(path.read_bytes())
    entities = APART | {"labels_encoder": str(tmp_path / "labels")}
    table = settings(tmp_path / "run", entities=entities, max_steps=1, evaluation={})
    finetune(table, base=place, callback=quiet)
    weights = load_file(tmp_path / "labels" / "model.safetensors")
    save_file(
        {name: tensor + 1 for name, tensor in weights.items()}, tmp_path / "labels" / "model.safetensors"
    )
    with pytest.raises(unmask.UnmaskError, match=r"entities\.labels_encoder names"):
        finetune(table, base=place, callback=quiet)


def test_a_checkpoint_with_two_encoders_is_trained_further(tmp_path):
    folder = write_gliner(tmp_path / "gliner", **TWO)
    changes = {
        "model": {"start_from": str(folder)},
        "data": {"train": [{"text": "Ada met Bob.", "label": [[0, 3, "person"], [8, 11, "person"]]}]},
        "evaluation": {},
        "optimizer": {"learning_rate": 1e-12},
        "entities": {},
        "max_steps": 1,
    }
    result = finetune(settings(tmp_path / "run", **changes), callback=quiet)
    before, after = (
        [
            (e.label, e.start, e.end, e.score)
            for e in unmask.load(model).tag("Ada met Bob.", labels=["person", "city"], threshold=0).entities
        ]
        for model in (folder, result.folder)
    )
    assert_same(after, before, 1e-5)


def test_others_are_drawn_from_the_labels_of_the_texts_file(place, tmp_path):
    for name, label in (("a", "water"), ("b", "metal")):
        rows = [{"text": ["river", "bank"], "label": [[0, 0, label], [1, 1, f"{label} two"]]}]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = {}
    for negatives in ("all", "file"):
        data = {"train": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]}
        entities = APART | {"negatives": negatives}
        table = settings(tmp_path / "run", data=data, evaluation={}, entities=entities)
        run = EntityRun(settings_of_table(table), place, tmp_path / negatives, Ranks(), Callback())
        labels[negatives] = [item.labels for item in run.training.items]
    both = [("water", "water two"), ("metal", "metal two")]
    assert sorted(labels["file"]) == sorted(both)
    assert labels["all"] == [("metal", "metal two", "water", "water two")] * 2


def test_an_adapter_is_the_model_that_it_becomes(place, adapter_run):
    assert adapter_run.dev["dev/f1"] > 0.95
    whole = unmask.load(adapter_run.folder)
    expected = entities_of(whole)
    for backend in ("torch", "native"):
        model = unmask.load(place / "tiny", adapter=adapter_run.adapter, backend=backend)
        assert_same(entities_of(model), expected, 1e-5)
    card = (adapter_run.adapter / "README.md").read_text()
    assert 'unmask.load("tiny", adapter=' in card
    config = json.loads((adapter_run.adapter / "adapter_config.json").read_text())
    assert (config["r"], config["modules_to_save"]) == (4, [])


def test_an_adapted_model_is_saved_as_one_of_gliner(place, adapter_run, tmp_path):
    model = unmask.load(place / "tiny", adapter=adapter_run.adapter)
    model.save(tmp_path / "saved")
    assert_same(entities_of(unmask.load(tmp_path / "saved")), entities_of(model), 1e-6)


def test_the_best_weights_of_an_adapter_hold_its_head(place, tmp_path, monkeypatch):
    heads = []

    def falling(run):
        heads.append({name: tensor.clone() for name, tensor in run.objective.layers.state_dict().items()})
        return {"precision": 0.5, "recall": 0.5, "f1": 1 / len(heads)}

    monkeypatch.setattr(EntityRun, "dev_figures", falling)
    changes = ADAPTED | {"max_steps": 3, "evaluation": {"every": 1, "metric": "f1"}}
    result = finetune(settings(tmp_path / "run", **changes), base=place, callback=quiet)
    assert result.best_step == 1
    written = load_file(result.adapter / "adapter_model.safetensors")
    for name, tensor in heads[0].items():
        assert torch.equal(written[f"base_model.model.label_head.{name}"], tensor)


def test_a_stopped_run_of_an_adapter_resumes(place, tmp_path, monkeypatch):
    changes = ADAPTED | {"epochs": 1, "checkpoints": {"every": 3}}
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
    ours, theirs = ((run.adapter / "adapter_model.safetensors").read_bytes() for run in (whole, resumed))
    assert ours == theirs


def test_without_its_base_as_reader_of_labels_the_model_is_written_alone(place, tmp_path):
    heard = Heard()
    changes = ADAPTED | {"max_steps": 1, "evaluation": {}, "entities": {"max_width": 3, "width": 24}}
    run = settings(tmp_path / "run", **changes)
    result = finetune(run, base=place, callback=heard)
    assert result.adapter is None
    assert any(
        "no adapter is written, because its base must read the labels" in event for event in heard.said
    )
    assert unmask.load(result.folder).tag(TEXT, labels=["water"], threshold=0).entities


def test_several_adapters_refuse_it(place, adapter_run):
    with pytest.raises(InvalidRequest, match="finds entities of labels that are named with the"):
        load_adapters(place / "tiny", {"rivers": adapter_run.adapter})


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ({"width": 0}, CorruptCheckpoint, "width"),
        ({"scores": "letters"}, unmask.UnmaskError, "scores"),
        ({"width": 12}, TensorMismatch, "has shape"),
        ({"max_width": "3"}, CorruptCheckpoint, "max_width"),
    ],
)
def test_a_damaged_description_is_one_sentence(place, adapter_run, tmp_path, labels, error, message):
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in adapter_run.adapter.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    written = json.loads((folder / "unmask_adapter.json").read_text())
    written["labels"] |= labels
    (folder / "unmask_adapter.json").write_text(json.dumps(written))
    with pytest.raises(error, match=message) as caught:
        unmask.load(place / "tiny", adapter=folder).tag(TEXT, labels=["water"])
    assert "\n" not in str(caught.value)


def test_a_missing_tensor_and_another_base_are_named(place, adapter_run, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in adapter_run.adapter.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "adapter_model.safetensors")
    del weights["base_model.model.label_head.prompt_rep_layer.3.bias"]
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(TensorMismatch, match=r"lacks the tensor prompt_rep_layer\.3\.bias"):
        unmask.load(place / "tiny", adapter=folder).tag(TEXT, labels=["water"])
    with pytest.raises(InvalidRequest, match=r"does not fit|was trained on"):
        unmask.load("unmask-mini", adapter=adapter_run.adapter)
