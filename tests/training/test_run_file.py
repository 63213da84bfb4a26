"""What a run file can say, what it cannot, and what comes of it."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.training.runs import (
    BLOCKS,
    EVERYTHING,
    RUN,
    Heard,
    Instead,
    changed,
    ended,
    same_tensors,
    to_toml,
    write_run,
)
from unmask.errors import InvalidRequest, UnmaskError
from unmask.training import train
from unmask.training.pretrain import pretrain, read_run
from unmask.training.run.settings import BatchSettings

RUN_MODULE = importlib.import_module("unmask.training.run.run")


MODERN = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def thetas(model):
    return {layer.mixer.position.theta for layer in model.spec.layers}


def test_starting_from_the_model_of_a_run(place):
    """Phases: the second begins with the first one's weights and tokenizer, and another rotary base."""
    pretrain(write_run(place, model=Instead(config=MODERN), out="first", steps=2))
    heard = Heard()
    rope = {"rope_theta": 80_000.0, "rope_type": "default"}
    longer = {"rope_parameters": {"full_attention": rope, "sliding_attention": rope}}
    second = {
        "model": Instead(start_from="first/model", config=longer),
        "tokenizer": None,
        "optimizer": {"learning_rate": 1e-12},
        "out": "second",
    }
    pretrain(write_run(place, steps=2, **second), callback=heard)
    one, two = (unmask.load(place / name / "model") for name in ("first", "second"))
    theirs = two.trainable_encoder().state_dict()
    for name, tensor in one.trainable_encoder().state_dict().items():
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-9)
    assert thetas(one) == {160_000.0, 10_000.0}
    assert thetas(two) == {80_000.0}
    assert not any("fresh weights" in sentence or "left out" in sentence for sentence in heard.sentences)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (place / "second/model" / name).read_bytes() == (place / "first/model" / name).read_bytes()
    # Other weights in the folder that it began with are another run.
    weights = place / "first/model/model.safetensors"
    tensors = {name: torch.full_like(one, 7.0) for name, one in load_file(weights).items()}
    save_file(tensors, weights)
    (weights.parent / "unmask_checksums.json").unlink()  # the change is intended
    with pytest.raises(InvalidRequest, match=r"model\.start_from names have changed since the run began"):
        pretrain(write_run(place, steps=3, **second))


def test_a_key_that_another_one_overrules_is_refused(place):
    """ModernBERT's config.json says rotary bases twice, and rope_parameters wins."""
    pretrain(write_run(place, model=Instead(config=MODERN), out="first", steps=1))
    model = Instead(start_from="first/model", config={"global_rope_theta": 10_000.0})
    with pytest.raises(InvalidRequest, match=r"model\.config's global_rope_theta changes nothing"):
        pretrain(write_run(place, model=model, tokenizer=None))


SHORT = {"sources": [{"name": "first", **BLOCKS, "files": ["first.txt"], "max_tokens": 15}], "held_out": []}


def test_starting_from_a_model_with_other_heads_says_what_is_fresh(place, tiny_folder):
    heard = Heard()
    config = {"architectures": ["BertForMaskedLM"]}
    begun = {"steps": 1, "tokenizer": None, "data": SHORT}
    pretrain(
        write_run(place, model=Instead(start_from=str(tiny_folder), config=config), **begun), callback=heard
    )
    assert any("has no heads.masked" in one and "new weights there" in one for one in heard.sentences)
    assert any("pooler" in one and "left out" in one for one in heard.sentences)
    config["max_position_embeddings"] = 20
    path = write_run(place, model=Instead(start_from=str(tiny_folder), config=config), out="other", **begun)
    with pytest.raises(InvalidRequest, match=r"positions\.weight the shape \[20, 30\].*\[23, 30\]"):
        pretrain(path)


def test_a_published_shape(place):
    """Sizes are the published ones but for what config changes; the vocabulary is the tokenizer's."""
    small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    model = Instead(architecture="google-bert/bert-base-uncased", config=small)
    loaded = unmask.load(pretrain(write_run(place, steps=1, model=model)).folder)
    assert (loaded.spec.width, len(loaded.spec.layers), loaded.spec.max_tokens) == (32, 1, 512)
    assert loaded.spec.embedding.vocabulary == 64


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("averaging", [None, {"decay": 0.9}])
def test_the_dtype_of_the_export(kind, averaging, place, monkeypatch):
    """In float32 it is the averages or masters themselves."""
    wanted = {}
    original = RUN_MODULE.export

    def watched(loop, *arguments, **options):
        for name, one in loop.objective.named_parameters():
            values = loop.averages.averages if averaging else {name: loop.optimizer.state[one]["master"]}
            wanted[name.removeprefix("encoder.")] = values[name].clone()
        original(loop, *arguments, **options)

    monkeypatch.setattr(RUN_MODULE, "export", watched)
    settings = changed(EVERYTHING, averaging=averaging)
    result = pretrain(write_run(place, steps=3, **settings, export_dtype=kind))
    stored = load_file(result.folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, kind)}
    loaded = dict(unmask.load(result.folder, dtype="float32").trainable_encoder().named_parameters())
    assert loaded.keys() == wanted.keys()
    for name, tensor in loaded.items():
        assert wanted[name].dtype == torch.float32
        assert torch.equal(tensor, wanted[name].to(getattr(torch, kind)).to(torch.float32)), name


def test_weights_are_back_after_the_export(place, monkeypatch):
    seen = {}
    original = RUN_MODULE.export

    def watched(loop, *arguments, **options):
        before = {name: one.clone() for name, one in loop.objective.state_dict().items()}
        identities = [id(one) for one in loop.objective.parameters()]
        original(loop, *arguments, **options)
        same_tensors(before, loop.objective.state_dict())
        assert [id(one) for one in loop.objective.parameters()] == identities
        seen["yes"] = True

    monkeypatch.setattr(RUN_MODULE, "export", watched)
    for number, kind in enumerate((None, "float32", "bfloat16")):
        pretrain(write_run(place, steps=2, **EVERYTHING, export_dtype=kind, out=f"run-{number}"))
    assert seen


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"stpes": 3}, ["run.toml: it has no key 'stpes'; did you mean steps?"]),
        ({"steps": 0}, ["steps is 0; it must be at least 1"]),
        ({"steps": None}, ["it needs steps"]),
        ({"seed": -1}, ["seed is -1"]),
        (
            {"optimizer": {"learning_rte": 1}},
            ["optimizer has no key 'learning_rte'; did you mean learning_rate"],
        ),
        ({"optimizer": {"learning_rate": "x"}}, ["optimizer.learning_rate is 'x'; it must be a number"]),
        ({"optimizer": {"learning_rate": -1}}, ["optimizer: learning_rate must be above 0"]),
        ({"batch": {"micro_tokens": 1000}}, ["batch: micro_tokens is 1000"]),
        ({"batch": {"micro_tokens": 0}}, ["batch: micro_tokens is 0"]),
        ({"checkpoints": {"every": 0}}, ["checkpoints: every is 0; it must be at least 1"]),
        ({"checkpoints": {"keep": 0}}, ["checkpoints: keep is 0"]),
        ({"log": {"every": 0}}, ["log: every is 0"]),
        ({"evaluation": {"tokens": 0}}, ["evaluation: tokens is 0"]),
        ({"averaging": {"decay": 1}}, ["averaging: decay is 1.0"]),
        ({"schedule": {"warmup_steps": 99}}, ["warm-up and decay take"]),
        ({"objective": {"kind": None}}, ["objective needs kind"]),
        ({"objective": {"kind": "maskd"}}, ["objective.kind is 'maskd'"]),
        ({"objective": {"rat": 0.2}}, ["objective has no key 'rat'; did you mean rate"]),
        ({"data": {"sources": []}}, ["data: sources is empty"]),
        ({"data": {"sources": [{"name": "a", "fils": []}]}}, ["data.sources[0] has no key 'fils'"]),
        ({"data": {"sources": [{"name": "a", "files": ["no.txt"]}]}}, ["no.txt", "no such file"]),
        (
            {"data": {"sources": [{"name": "a", "files": ["first.txt"]}]}},
            ["source a has a chunk", "max_tokens"],
        ),
        ({"tokenizer": {"train": "bpe"}}, ["tokenizer needs either folder or train"]),
        ({"tokenizer": {"folder": None}}, ["tokenizer needs either folder or train"]),
        ({"tokenizer": {"folder": "no"}}, ["tokenizer.folder names", "which holds none of"]),
        (
            {"model": {"architecture": "bert-base-uncased", "start_from": "x"}},
            ["model: architecture and start_from"],
        ),
        ({"model": Instead()}, ["model: the encoder is not specified"]),
        ({"model": {"start_from": "x"}}, ["leave tokenizer out"]),
        (
            {"tokenizer": None, "model": Instead(start_from="no/such/model")},
            ["model is not a folder"],
        ),
        ({"model": {"config": {"hidden_sise": 3}}}, ["hidden_sise"]),
        ({"model": {"config": {"architectures": ["BertModel"]}}}, ["name BertForMaskedLM"]),
        ({"model": {"initialization": "other"}}, ["model.initialization is 'other'"]),
        ({"card": "no.md"}, ["no.md", "card"]),
        ({"device": "tpu"}, ["device is 'tpu'; it can be auto, cpu, cuda"]),
        ({"export_shard_bytes": 0}, ["export_shard_bytes is 0"]),
    ],
)
def test_a_run_file_that_cannot_be(changes, parts, place):
    ran = run_here("pretrain", write_run(place, **changes))
    assert ran.code == 1
    assert "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("unmask: ")
    for part in parts:
        assert part in last


@pytest.mark.parametrize("content", [b"steps = ", b"\xff", b"a = 1" + b"0" * 5000, b"a = " + b"[" * 5000])
def test_a_file_that_is_no_toml(content, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    assert_one_sentence(run_here("pretrain", path), "run.toml is not TOML")


def test_no_file_at_all(tmp_path):
    assert_one_sentence(run_here("pretrain", tmp_path / "run.toml"), "cannot read", "No such file")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(place):
    assert_one_sentence(
        run_here("pretrain", write_run(place, device="cuda")), "no CUDA device", "cpu or auto"
    )


def test_paths_begin_at_the_run_file(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    assert pretrain(Path("place") / write_run(place, steps=1).name).folder == Path("place/run/model")
    (place.parent / "old").mkdir()
    path = write_run(place, tokenizer=None, model=Instead(start_from="old"), out="b")
    with pytest.raises(UnmaskError, match="paths in a run file are relative to the file's folder"):
        pretrain(path)


def test_a_date_in_a_condition_of_a_source(place, monkeypatch):
    """TOML has dates and JSON, in which a checkpoint keeps settings, has not."""
    (place / "dated.jsonl").write_text('{"text": "the river", "day": "x"}\n' * 3)
    path = write_run(
        place,
        steps=2,
        data={"sources": [{"name": "a", "files": ["dated.jsonl"]}], "held_out": []},
    )
    text = path.read_text()
    path.write_text(text.replace('"name" = "a"', '"name" = "a", where = {day = ["x", 2020-01-01]}'))
    ended(path, monkeypatch, 1)
    assert pretrain(path).steps == 2


def test_a_tokenizer_trained_by_the_run_is_kept(place, monkeypatch):
    path = write_run(
        place,
        steps=2,
        tokenizer={"folder": None, "train": "bpe", "vocabulary": 300, "sample_bytes": 4000},
        checkpoints={"every": 1},
    )
    ended(path, monkeypatch, 1)
    kept = {file.name: file.read_bytes() for file in (place / "run/tokenizer").glob("*.json")}
    result = pretrain(path)
    made = {name: (result.folder / name).read_bytes() for name in kept}
    own, exported = (json.loads(files.pop("tokenizer_config.json")) for files in (kept, made))
    assert made == kept
    # What is exported also says how long a text may be; see tests/training/test_export_for_others.py.
    assert own | {"model_max_length": 64} == exported
    assert unmask.load(result.folder).spec.embedding.vocabulary == 320  # 300, rounded up


def test_every_default_of_a_run_file_is_a_run(place):
    """The smallest file there is."""
    table = {key: RUN[key] for key in ("name", "model", "tokenizer", "objective", "steps")}
    table["data"] = {"sources": [RUN["data"]["sources"][0]]}
    table["batch"] = {"tokens": 300, "micro_tokens": 300}
    table["optimizer"] = {}
    (place / "small.toml").write_text(to_toml(table | {"steps": 1}))
    assert read_run(place / "small.toml").out == "."
    assert pretrain(place / "small.toml").folder == place / "model"


def test_a_batch_grows_from_its_first_step_to_the_end_of_its_ramp():
    batch = BatchSettings(tokens=500, micro_tokens=10, start_tokens=100, ramp_share=0.4)
    counts = [batch.micro_batches(step, 10) for step in range(10)]
    assert counts == [10, 20, 30, 40, 50, 50, 50, 50, 50, 50]


def test_a_run_whose_gradients_are_not_clipped(place):
    path = write_run(place, steps=2, optimizer={"clip": 0})
    assert read_run(path).optimizer.clip is None
    train(path)
    assert train(path).steps == 2  # what the checkpoint has stored is the same


OLD = {
    "optimiser": "optimizer",
    "initialisation": "initialization",
    "instead": "replacement",
    "unit": "mask_unit",
    "copies": "static_masks",
    "pieces": "split_by",
}
"""Names of keys before they were renamed."""


def noted(notes):
    return {line.split()[4]: None for line in notes}.keys()


def test_a_key_under_both_names_is_refused(place):
    path = write_run(place)
    path.write_text("optimiser = {}\n" + path.read_text())
    with pytest.raises(InvalidRequest, match="it has no key 'optimiser'; did you mean optimizer"):
        train(path)
