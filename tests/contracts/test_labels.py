"""Names of classes and the kind of task go through a checkpoint folder, and `transformers` reads them."""

import json

import pytest
import transformers

from tests.contracts.cases import Case, cases
from tests.contracts.test_transformers import random_model, write_vocabulary
from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

ENDS = ("ForSequenceClassification", "ForTokenClassification")
CLASSES = {case.model: case for case in reversed(cases()) if case.model.endswith(ENDS)}
NAMES = {0: "no", 1: "perhaps", 2: "yes"}


def written(case, folder, **keys):
    settings = {key: value for key, value in case.settings.items() if key != "num_labels"}
    model = random_model(Case(case.model, settings | keys, vocabulary=case.vocabulary))
    model.save_pretrained(folder)
    write_vocabulary(folder, case.vocabulary)
    return read_checkpoint(Source(folder, "tiny"), case.compat)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_labels_survive_and_are_read_by_transformers(name, tmp_path):
    case = CLASSES[name]
    given = {"problem_type": "multi_label_classification"}
    kind = given if "Sequence" in name else {}  # what a token is has no kind
    numbers = {label: number for number, label in NAMES.items()}
    first = written(case, tmp_path / "theirs", id2label=NAMES, label2id=numbers, **given)
    (head,) = first.spec.heads
    assert (head.labels, head.problem_type) == (("no", "perhaps", "yes"), kind.get("problem_type"))
    save(build(first), first, tmp_path / "ours")
    again = read_checkpoint(Source(tmp_path / "ours", "ours"), case.compat)
    assert again.spec == first.spec
    assert again.unread_config == ()
    # Without the keys that were kept from theirs.
    (tmp_path / "ours" / "config.json").write_text(json.dumps(dict(again.family.write(again.spec))))
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert (config.id2label, config.problem_type) == (NAMES, kind.get("problem_type"))
    assert config.label2id == numbers


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_default_names_are_no_names(classes, tmp_path):
    first = written(CLASSES["BertForSequenceClassification"], tmp_path, num_labels=classes)
    assert first.spec.heads[0].labels is None
    config = transformers.BertConfig(**first.family.write(first.spec))
    assert config.id2label == {number: f"LABEL_{number}" for number in range(classes)}


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, CorruptCheckpoint, "the head has 3 classes"),
        ({"id2label": dict(zip("0123", "abcd", strict=True))}, CorruptCheckpoint, "the head has 3 classes"),
        ({"id2label": {"0": "a", "1": "b", "3": "c"}}, CorruptCheckpoint, 'each of "0" to "2"'),
        ({"id2label": {"0": "a", "1": "b", "2": []}}, CorruptCheckpoint, "id2label"),
        ({"id2label": ["a", "b", "c"]}, CorruptCheckpoint, "id2label"),
        ({"problem_type": "ranking"}, UnknownArchitecture, "problem_type is 'ranking'"),
    ],
)
def test_labels_that_are_not_of_the_head_are_refused(keys, error, says, tmp_path):
    case = CLASSES["BertForSequenceClassification"]
    written(case, tmp_path, id2label=NAMES)
    config = json.loads((tmp_path / "config.json").read_text()) | keys
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=says):
        read_checkpoint(Source(tmp_path, "tiny"))
