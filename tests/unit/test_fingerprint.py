"""A resumed run knows by a fingerprint whether its model still gives the same results."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import unmask
from tests.support.command import run_here
from tests.support.extraction import write_gliner2
from tests.support.pruning import write_open
from tests.support.tiny import change_json, change_tensors, write_prompts
from tests.tasks.test_labels import write_gliner
from tests.tasks.test_named_classes import write_gliclass
from unmask.base.resume import ResumableFile
from unmask.weights.read.fingerprint import fingerprint

PROMPTS = {"query": "the cat ", "document": "the mat "}


def dense(folder):
    """Add a projection after pooling, in a file of its own."""
    modules = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": kind})
    (folder / "modules.json").write_text(json.dumps([part | {"idx": n} for n, part in enumerate(modules)]))
    (folder / "2_Dense").mkdir()
    config = {"in_features": 30, "out_features": 3, "bias": False}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / "2_Dense/config.json").write_text(json.dumps(config))
    new_weights(folder, 1)


def new_weights(folder, factor):
    weights = {"linear.weight": np.full((3, 30), factor, np.float32)}
    save_file(weights, folder / "2_Dense/model.safetensors")


def pooling(folder):
    change_json(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)


def prompts(folder):
    change_json(folder / "config_sentence_transformers.json", prompts=PROMPTS | {"query": "the dog "})


def longest(folder):
    change_json(folder / "sentence_bert_config.json", max_seq_length=12)


def epsilon(folder):
    change_json(folder / "config.json", layer_norm_eps=1e-5)


def vocabulary(folder):
    path = folder / "vocab.txt"
    path.write_text(path.read_text().replace("the\n", "that\n"))


def weights(folder):
    def double(tensors):
        tensors["embeddings.word_embeddings.weight"] *= 2

    change_tensors(folder, double)


def checkpoint_of(folder):
    return unmask.load(str(folder)).checkpoint


@pytest.fixture
def folder(tmp_path):
    written = write_prompts(tmp_path / "model", PROMPTS)
    dense(written)
    return written


@pytest.mark.parametrize(
    "change", [pooling, prompts, longest, epsilon, vocabulary, weights, lambda folder: new_weights(folder, 2)]
)
def test_each_file_that_results_depend_on_changes_it(folder, change):
    before = fingerprint(checkpoint_of(folder), ())
    assert fingerprint(checkpoint_of(folder), ()) == before
    change(folder)
    assert fingerprint(checkpoint_of(folder), ()) != before


def test_the_rule_by_which_documents_are_pruned_changes_it(tmp_path):
    folders = [tmp_path / "model", tmp_path / "other"]
    for folder, threshold in zip(folders, (0.1, 0.2), strict=True):
        write_open(folder, threshold=threshold)
    assert len({fingerprint(checkpoint_of(folder), ()) for folder in folders}) == 2


@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (write_gliclass, {"pooling_strategy": "avg"}),
        (write_gliner, {"max_width": 2}),
        (write_gliner2, {"token_pooling": "mean"}),
    ],
)
def test_the_head_of_named_labels_changes_it(write, changes, tmp_path):
    before = fingerprint(checkpoint_of(write(tmp_path / "model")), ())
    assert fingerprint(checkpoint_of(write(tmp_path / "same")), ()) == before
    assert fingerprint(checkpoint_of(write(tmp_path / "other", **changes)), ()) != before


def test_a_setting_that_a_later_version_adds_does_not_change_it(folder):
    checkpoint = checkpoint_of(folder)

    def settings(**later):
        @dataclass(frozen=True)
        class Settings:
            batch: int
            file: Path = Path("x")
            ratio: float | None = None
            parts: tuple[object, ...] = ()
            loaded: object = field(default=None, repr=False)
            __annotations__ |= dict.fromkeys(later, int)
            locals().update(later)

        return Settings

    before, after = settings(), settings(added=3)
    assert fingerprint(checkpoint, before(4)) == fingerprint(checkpoint, after(4))
    assert fingerprint(checkpoint, before(4)) == fingerprint(checkpoint, before(4, loaded=object()))
    seen = [before(5), after(4, added=1), before(4, Path("y")), before(4, parts=(before(4),))]
    seen += [before(4, parts=(before(5),)), before(4, parts=(before(4), before(4)))]
    assert len({fingerprint(checkpoint, value) for value in [before(4), *seen]}) == 7


def test_rows_are_not_resumed_with_another_pooling(folder, tmp_path, monkeypatch):
    texts, output = tmp_path / "texts.txt", tmp_path / "rows.jsonl"
    texts.write_text("".join(f"the cat sat {'on ' * (n % 3)}\n" for n in range(300)))
    append = ResumableFile.append

    def stopped(self, content, rows):
        append(self, content, rows)
        raise KeyboardInterrupt

    command = ("embed", texts, "-m", folder, "-o", output)
    with monkeypatch.context() as patched:
        patched.setattr(ResumableFile, "append", stopped)
        assert run_here(*command).code != 0
    pooling(folder)
    refused = run_here(*command)
    assert refused.code != 0
    assert "--restart" in refused.err, refused
    change_json(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=True, pooling_mode_cls_token=False)
    assert json.loads(run_here(*command, "--json").out)["resumed_texts"] > 0
