"""The table of an objective in a run file."""

from dataclasses import replace

import pytest

from unmask.errors import UnmaskError
from unmask.training.objectives.build import read_objective
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import DEBERTA_V3, ReplacedSpec
from unmask.training.objectives.specs import MINILM, MINILM_V2

TAUGHT = {"kind": "distillation", "teacher": "t"}
ELECTRA = ReplacedSpec(masking=MaskingSpec(rate=0.2, replacement="electra"))


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({"kind": "replaced", "preset": "deberta-v3"}, DEBERTA_V3),
        (
            {"kind": "replaced", "preset": "deberta-v3", "weight": 10.0, "masking": {"rate": 0.2}},
            replace(DEBERTA_V3, weight=10.0, masking=MaskingSpec(rate=0.2, replacement="mask")),
        ),
        (
            {"kind": "replaced", "masking": {"rate": 0.2}},
            ELECTRA,
        ),
        ({**TAUGHT, "preset": "minilm-v2"}, MINILM_V2),
        (
            {"kind": "distillation", "teacher": "t", "preset": "minilm", "cosine": 2.0},
            replace(MINILM, cosine=2.0),
        ),
    ],
)
def test_a_preset_gives_the_values_that_are_not_named(table, wanted):
    _, read = read_objective(table)
    assert (read[0] if isinstance(read, tuple) else read) == wanted


def test_an_unknown_preset_is_refused():
    with pytest.raises(UnmaskError, match=r"objective\.preset is 'bert'; it can be minilm, minilm-v2"):
        read_objective({**TAUGHT, "preset": "bert"})
