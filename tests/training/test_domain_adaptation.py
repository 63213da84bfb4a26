"""docs/domain-adaptation.md: its example runs, on tiny text."""

import json
import re
import tomllib

import numpy as np
import pytest

import unmask
from tests.support.places import REPOSITORY
from tests.training.runs import SENTENCE, Heard, changed, to_toml
from unmask.training.pretrain import pretrain

pytestmark = pytest.mark.long

PAGE = (REPOSITORY / "docs" / "domain-adaptation.md").read_text()


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The page's run with two steps, its folder, and what was said."""
    place = tmp_path_factory.mktemp("adapted")
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    for folder in ("texts", "held-out"):
        (place / folder).mkdir()
        (place / folder / "one.txt").write_text(f"{SENTENCE.capitalize()}.\n\n" * 30)
    small = {"steps": 2, "batch": {"tokens": 512, "micro_tokens": 512}, "evaluation": {"tokens": 500}}
    path = place / "adapt.toml"
    path.write_text(to_toml(changed(tomllib.loads(example), **small)))
    heard = Heard()
    return pretrain(path, callback=heard), heard, place


def test_it_begins_with_the_weights_and_a_fresh_head(adapted):
    result, heard, _ = adapted
    said = " ".join(heard.sentences)
    assert "has no heads.masked" in said
    assert "pooling of" in said
    before, after = unmask.load("default"), unmask.load(result.folder)
    assert {*after.encoder.heads} == {"masked"}
    ours, theirs = (one.encoder.embedding.words.weight for one in (before, after))
    assert 0 < (ours - theirs).abs().max() < 0.01


def test_pooling_is_kept(adapted):
    result, _, _ = adapted
    before, after = unmask.load("default"), unmask.load(result.folder)
    assert after.checkpoint.head == before.checkpoint.head
    assert after.checkpoint.max_tokens == before.checkpoint.max_tokens
    rows = after.embed(["the river bank was muddy", "a boat went down"])
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-5)
    # Two steps hardly move the encoder, so embeddings are nearly those of before.
    assert (rows * before.embed(["the river bank was muddy", "a boat went down"])).sum(1).min() > 0.9


def test_held_out_text_is_evaluated_before_and_after(adapted):
    result, _, place = adapted
    events = map(json.loads, (place / "runs/adapted/log.jsonl").read_text().splitlines())
    losses = {event["step"]: event["masked/loss"] for event in events if event["event"] == "held_out"}
    assert losses.keys() == {0, 2}
    assert losses[0] == pytest.approx(np.log(30522), abs=1.0)
    assert losses[2] == pytest.approx(result.held_out["masked/loss"])
    assert losses[2] < losses[0]
