"""A retriever's run knows its queries, documents, dev data and teacher by their contents."""

import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.training.retrieval.runs import table
from unmask.errors import InvalidRequest
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.retrieval.records import read_texts, teacher_vectors

CHANGED = "texts or labels of the data files have changed since the run began"


@pytest.fixture
def data(place, tmp_path):
    return shutil.copytree(place, tmp_path / "data")


def train_again(folder):
    path = folder / "model.safetensors"
    save_file({name: one + 0.01 for name, one in load_file(path).items()}, path, {"format": "pt"})


@pytest.mark.parametrize("several", [{}, {"seeds": [1, 2]}], ids=["one run", "seeds"])
def test_other_documents_are_refused(data, place, tmp_path, several):
    given = table(tmp_path / "run", epochs=0.2, **several)
    finetune(given, base=data)
    for name in ("train.jsonl", "dev.jsonl"):
        path = data / name
        path.write_text(path.read_text().replace("river", "River", 1))  # the same to the tokenizer
        with pytest.raises(InvalidRequest, match=CHANGED):
            finetune(given, base=data)
        shutil.copy(place / name, path)
    finetune(given, base=data)


def test_other_vectors_of_the_teacher_are_refused(data, tmp_path):
    shutil.copytree(data / "tiny", data / "teacher")
    run = table(tmp_path / "run", {"kind": "distillation", "teacher": "teacher"}, epochs=0.2)
    finetune(run, base=data)
    texts = read_texts(["train.jsonl"], settings_of_table(run).data, data)

    def vectors():
        return np.array(teacher_vectors("teacher", texts, data, tmp_path / "run", lambda _: None))

    before = vectors()
    train_again(data / "teacher")
    assert np.abs(vectors() - before).max() > 1e-4, "they are not those that are kept under its name"
    with pytest.raises(InvalidRequest, match="vectors of the teacher have changed since the run began"):
        finetune(run, base=data)
