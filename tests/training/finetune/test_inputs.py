"""A finished or resumed run knows its texts, labels and first weights by their contents, not their names."""

import os
import shutil
import signal

import pytest
from safetensors.torch import load_file, save_file

from tests.training.finetune.test_finetune import Heard, place, table
from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.runs import TaskFiles, scored_run
from unmask.training.finetune.result import UNCHANGED
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.run.trainer import Stopped, Trainer

__all__ = ["place"]

CHANGED = "texts or labels of the data files have changed since the run began; restore the files"
OTHER_WEIGHTS = "the checkpoint that model.start_from names have changed since the run began"


@pytest.fixture
def data(place, tmp_path):
    """A folder whose files may be changed."""
    return shutil.copytree(place, tmp_path / "data")


def mend_a_label(folder, name="train.tsv"):
    """As many texts as before, in a file of the same size."""
    path = folder / name
    path.write_text(path.read_text().replace("\twet\t", "\tdry\t", 1))


def train_the_first_checkpoint_again(folder):
    path = folder / "tiny" / "model.safetensors"
    save_file({name: one + 0.01 for name, one in load_file(path).items()}, path, {"format": "pt"})


@pytest.mark.parametrize(
    "several",
    [{"seeds": [1, 2]}, {"sweep": {"optimizer.learning_rate": [1e-3, 1e-4]}}],
    ids=["seeds", "a sweep"],
)
def test_finished_runs_of_other_data_are_no_result(data, tmp_path, several, monkeypatch):
    given = table(tmp_path / "run", epochs=0.2, **several)
    finetune(given, base=data)
    heard = Heard()
    with monkeypatch.context() as patch:
        patch.setattr(FinetuneRun, "__init__", lambda *_: pytest.fail("a finished run was begun again"))
        finetune(given, base=data, callback=heard)
    assert heard.said.count(UNCHANGED) == 2
    mend_a_label(data)
    with pytest.raises(InvalidRequest, match=CHANGED):
        finetune(given, base=data)


def test_rows_in_memory_are_known_by_their_contents(place, tmp_path):
    rows = [{"text": "river bank", "label": "wet"}, {"text": "a text", "label": "dry"}] * 8
    other = [*rows[:-1], {"text": "a text", "label": "wet"}]

    def given(train):
        return table(tmp_path / "run", epochs=0.2, seeds=[1, 2], evaluation={}, data={"train": train})

    finetune(given(rows), base=place)
    heard = Heard()
    finetune(given(list(rows)), base=place, callback=heard)
    assert heard.said.count(UNCHANGED) == 2
    with pytest.raises(InvalidRequest, match=r"texts or labels|was started with other settings"):
        finetune(given(other), base=place)


def test_a_scored_run_of_a_protocol_knows_its_data(data, tmp_path):
    settings = settings_of_table(table(tmp_path / "run", epochs=0.2))
    shutil.copy(data / "dev.tsv", data / "also.tsv")
    files = TaskFiles(data / "train.tsv", data / "dev.tsv", {"also": data / "also.tsv"})
    first = scored_run(settings, data, files, Heard(), keep_model=False)
    heard = Heard()
    assert scored_run(settings, data, files, heard, keep_model=False) == first
    assert heard.said[1] == UNCHANGED
    mend_a_label(data, "also.tsv")
    with pytest.raises(InvalidRequest, match="labels of the further dev files have changed"):
        scored_run(settings, data, files, Heard(), keep_model=False)
    shutil.copy(data / "dev.tsv", data / "also.tsv")
    mend_a_label(data)
    with pytest.raises(InvalidRequest, match=CHANGED):
        scored_run(settings, data, files, Heard(), keep_model=False)


def test_a_stopped_run_knows_its_first_checkpoint(data, tmp_path, monkeypatch):
    step = Trainer._step

    def stop(self, reporter):
        step(self, reporter)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stop)
        with pytest.raises(Stopped):
            finetune(table(tmp_path / "run"), base=data)
    train_the_first_checkpoint_again(data)
    with pytest.raises(InvalidRequest, match=OTHER_WEIGHTS):
        finetune(table(tmp_path / "run"), base=data)


def test_a_new_run_in_an_old_place_replaces_the_model(data, tmp_path):
    """Name, steps, tokens and figures are the same; only the weights and the card tell the models apart."""
    given = table(tmp_path / "run", epochs=0.2, data={"train": ["train.tsv"]}, evaluation={})
    first = finetune(given, base=data).folder / "model.safetensors"
    before = first.read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    path = data / "train.tsv"
    swapped = path.read_text().replace("\twet\t", "\t?\t").replace("\tdry\t", "\twet\t")
    path.write_text(swapped.replace("\t?\t", "\tdry\t"))
    assert (finetune(given, base=data).folder / "model.safetensors").read_bytes() != before
    (data / "card.md").write_text("another card")
    again = finetune(given | {"card": "card.md"}, base=data)
    assert (again.folder / "README.md").read_text() == "another card"


def test_a_run_that_ended_early_says_so(place, tmp_path):
    given = table(tmp_path / "run", epochs=9, evaluation={"metric": "accuracy", "patience": 1, "every": 1})
    steps = finetune(given | {"optimizer": {"learning_rate": 1.0}}, base=place).steps
    assert steps < 9 * 8
    heard = Heard()
    finetune(given | {"optimizer": {"learning_rate": 1.0}}, base=place, callback=heard)
    assert f"the run ended early, after step {steps} of 72; nothing is trained again" in heard.said
    assert UNCHANGED in heard.said
