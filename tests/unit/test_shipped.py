"""The encoder that comes with the package: its files, its card, and what it predicts."""

import json
import re

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from unmask.weights.read.find import SHIPPED, VARIANTS, shipped_folder

MODELS = sorted(name for name in SHIPPED if not name.startswith("variant/"))
TEXT = "The old man opened the [MASK] and went into the house."


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_files_are_small_and_hold_bfloat16(name):
    folder = shipped_folder(name)
    for path in folder.iterdir():
        assert path.stat().st_size < 16_000_000, path
    assert unmask.load(name).parameter_count <= 33_000_000
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", MODELS)
def test_the_card_says_what_a_user_must_know(name):
    card = (shipped_folder(name) / "README.md").read_text()
    wanted = ("## Data", "## Training", "## Scores", "## Limits", "CC BY 4.0", "public domain", "recipes/")
    for part in wanted:
        assert part in card
    tokens = re.search(r"\*\*([\d,]+)\*\* tokens", card)
    assert tokens is not None
    assert int(tokens[1].replace(",", "")) > 10_000_000
    assert f"{unmask.load(name).parameter_count:,} parameters" in card


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_tiny_and_its_card_says_what_it_is_not(name):
    folder = shipped_folder(f"variant/{name}")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    card = (folder / "README.md").read_text()
    assert card.startswith(f"# variant/{name}\n")
    for part in ("scripts/variants.py", "public", "Masked loss", "not a useful language model"):
        assert part in card
    assert unmask.load(f"variant/{name}").name == f"variant/{name}"


def test_transformers_reads_it_and_agrees():
    transformers = pytest.importorskip("transformers")
    folder = shipped_folder("unmask-mini")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        wanted = theirs(**ids).logits[0]
    ours = unmask.load("unmask-mini")
    (encoding,) = ours.tokenize([TEXT])
    assert encoding.ids.tolist() == ids["input_ids"][0].tolist()
    masked = int(np.flatnonzero(encoding.ids == ours.tokenizer.mask_id)[0])
    best = wanted[masked].softmax(-1).topk(5)
    (found,) = ours.fill(TEXT)
    assert [one.id for one in found.predictions] == best.indices.tolist()
    assert [one.probability for one in found.predictions] == pytest.approx(best.values.tolist(), rel=1e-4)


def test_fill_takes_it_where_no_model_is_named():
    answer = json.loads(run_here("fill", TEXT, "--json").out)
    assert answer["model"] == "unmask-mini"
    words = {one["text"].strip() for one in answer["masks"][0]["predictions"]}
    assert words & {"door", "gate", "window"}
