"""Multiple choice in every family: packed gradients are those of one question at a time, and the exported
head gives the logits of the class of `transformers`; families without such a class refuse it.
"""

import numpy as np
import pytest
import torch
import transformers

from tests.training.runs import write_texts
from tests.training.test_family_objectives import NAMES, WITHOUT_CLASS, config_of
from unmask.errors import InvalidRequest
from unmask.text import PackedBatch, Tokenizer
from unmask.training.data.labeled import LabeledSequence
from unmask.training.objectives.labeled import LabeledObjective
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.heads.classes import with_heads
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder, with_tokenizer
from unmask.weights.write.save import save

WITHOUT = (
    *("deberta", "mosaicbert", "nomicbert", "gte", "neobert", "eurobert", "esm", "esmc", "t5"),
    *("qwen3", "gemma3", "ultrabert", "jina_v3", "nomic_experts", "privacy_filter", "static"),
    "embedding_gemma2",
)
WITH = [name for name in NAMES if name not in (*WITHOUT, "unmask")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}


def config_with_choices(family, tokenizer):
    config = with_heads(config_of(family, "masked"), frozenset({"choice"}))
    config = {key: 0.0 if key.endswith("dropout_prob") else value for key, value in config.items()}
    return with_tokenizer(config, Tokenizer.from_files(tokenizer, config["model_type"]))


@pytest.mark.parametrize("family", WITH)
def test_packed_questions_have_the_gradients_of_each_alone(family, tokenizer, tmp_path):
    checkpoint = new_checkpoint(config_with_choices(family, tokenizer), tokenizer)
    encoder = new_encoder(checkpoint, seed=3).double().eval()
    draw = np.random.default_rng(0)
    items = []
    for lengths, target in (((9, 4), 1), ((5, 12, 3), 0), ((7, 7, 7, 7), 3)):
        ids = draw.integers(5, 40, sum(lengths))
        starts = (0, *np.cumsum(lengths)[:-1].tolist())
        marks = tuple(start + 1 for start in starts) if family == "longformer" else ()
        items.append(LabeledSequence(ids, np.zeros_like(ids), np.array(target), marks, lengths))
    objective = LabeledObjective(encoder, "choice")
    together = objective.prepare(items, draw, 0.0)
    found = []
    for parts in ([items], [[one] for one in items]):
        encoder.zero_grad()
        loss = sum(objective(objective.prepare(part, draw, 0.0), together.counts).loss for part in parts)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
        found.append((loss.item(), gradients))
    (one, theirs), (two, ours) = found
    assert one == pytest.approx(two, abs=1e-10)
    assert any(name.startswith("heads.choice.") for name in ours)
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-10)
    save(encoder.float(), checkpoint, tmp_path / "saved")
    again = build(read_checkpoint(Source(tmp_path / "saved", "saved")))
    if family not in (*WITHOUT_CLASS, "jinabert", "jinabert-code"):  # JinaBERT's classes are code of its own
        check_with_transformers(tmp_path / "saved", again, items[1])


def check_with_transformers(folder, encoder, item):
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    for ids, types, marks in item.sequences():
        batch = PackedBatch.of_ids([ids], [types], [marks] if marks else None)
        with torch.no_grad():
            ours = encoder.logits("choice", encoder.encode(batch), batch.layout)
            inputs = {"input_ids": torch.tensor(ids)[None, None]}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if marks:
                inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
                inputs["global_attention_mask"][..., list(marks)] = 1
            theirs = model(**inputs).logits
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", WITHOUT)
def test_a_family_without_such_a_class_refuses(family, tokenizer):
    with pytest.raises(InvalidRequest, match=f"roles choice, and the family {family} has no class with them"):
        config_with_choices(family, tokenizer)
