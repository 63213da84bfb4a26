"""Checkpoints that predict, shared by the tests of the commands."""

import pytest

from tests.support.tiny import tiny_bert, write_tokenizer
from tests.unit.test_embed_command import small_parts  # noqa: F401 - a fixture

TAGS = ["O", "B-PER", "I-PER"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, kind, labels in (
        ("sequence", "BertForSequenceClassification", ["bad", "good"]),
        ("tokens", "BertForTokenClassification", TAGS),
        ("span", "BertForQuestionAnswering", None),
        ("masked", "BertForMaskedLM", None),
        ("choices", "BertForMultipleChoice", None),
    ):
        write_tokenizer(folder / name)
        options = {"id2label": dict(enumerate(labels))} if labels else {}
        tiny_bert(kind, **options).save_pretrained(folder / name)
    return folder
