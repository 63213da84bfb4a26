"""docs/python.md: its Python, run as it stands, and the names that it mentions."""

import re
from pathlib import Path
from pkgutil import resolve_name

import numpy as np

import unmask

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


def test_names_on_the_page_exist():
    for name in set(re.findall(r"`(?:model|unmask)\.([a-z_]+(?:\.[a-z_]+)*)", PAGE)):
        if hasattr(unmask.Model, name.split(".")[0]) or name.split(".")[0] in ("checkpoint", "engine"):
            continue
        resolve_name(f"unmask.{name}")
