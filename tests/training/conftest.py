"""Places where tiny runs can be made."""

import shutil

import pytest

from tests.training.runs import EVERYTHING, write_run, write_texts


@pytest.fixture(scope="session", autouse=True)
def _quick_peak():
    """The machine's peak is not measured, which takes every run 0.3 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.training.run.flops.peak_flops", lambda *_: 1e12)
        yield


@pytest.fixture(scope="session")
def run_texts(tmp_path_factory):
    """Texts, tokenizer, shards, and two finished runs, ``plain`` and ``everything``; to be copied."""
    from unmask.training.pretrain import pretrain

    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    pretrain(write_run(folder, out="plain"))
    pretrain(write_run(folder, **EVERYTHING, out="everything"))
    return folder


@pytest.fixture
def place(run_texts, tmp_path):
    """A folder with texts and two finished runs, where others may be made."""
    return shutil.copytree(run_texts, tmp_path / "place")
