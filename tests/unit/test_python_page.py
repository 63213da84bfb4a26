"""docs/python.md: its Python, run as it stands, and the names that it mentions."""

import re
from pathlib import Path
from pkgutil import resolve_name

import numpy as np

import unmask

NO_NAMES = {
    "unmask.NAME",
    "unmask.SharedQueryTransformer",
    "unmask.inference_time_ms",
    "unmask.queue_time_ms",
    "unmask.truncated_inputs",
}
"""A placeholder, a type in modules.json, and attributes of spans."""

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_runs_and_says_the_truth():
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "python.md", "exec"), names)
    tokens, width = len(names["encoding"]), names["model"].width
    assert names["vectors"].shape == (2, width)
    np.testing.assert_allclose(np.diag(names["scores"]), 1, rtol=0, atol=1e-5)
    assert (names["last"].shape, names["every"].shape) == ((tokens, width), (7, tokens, width))
    np.testing.assert_allclose(names["ids"][0], names["last"], rtol=0, atol=1e-5)
    assert len(names["words"]) == 3
    assert names["logits"].shape == (tokens, names["model"].spec.embedding.vocabulary)
    assert names["model"].encoder is names["encoder"]
    assert names["encoder"].layers[0].attention.qkv.weight.grad is not None


def test_members_of_a_model_on_the_page_exist():
    for name in set(re.findall(r"`model\.([a-z_]+)", PAGE)) - {"checkpoint", "engine"}:
        assert hasattr(unmask.Model, name), name


def test_dotted_names_of_the_package_exist():
    """In the documents and in docstrings, wherever a name begins with unmask; records of the past aside."""
    root = Path(__file__).parents[2]
    past = (root / "docs" / "log", root / "docs" / "decisions")
    written = [page for page in (root / "docs").rglob("*.md") if not {*past} & {*page.parents}]
    missing = []
    for page in (root / "README.md", *written, *(root / "unmask").rglob("*.py")):
        for name in set(re.findall(r"`(unmask(?:\.\w+)+)[`(]", page.read_text(encoding="utf-8"))) - NO_NAMES:
            try:
                resolve_name(name)
            except (AttributeError, ImportError):
                missing.append(f"{page.relative_to(root)}: {name}")
    assert not missing
