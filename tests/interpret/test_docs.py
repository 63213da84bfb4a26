"""docs/interpret.md: its Python, run as it stands, and the values that it says come out."""

import ast
import re

import numpy as np
import pytest

from tests.support.places import REPOSITORY

pytestmark = pytest.mark.long

PAGE = REPOSITORY / "docs" / "interpret.md"
NEAR = 0.015
"""What the last digit of a rounded figure may differ by from machine to machine."""

BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def said(line):
    """The value that stands behind a line's last ``#``, and whether there is one."""
    try:
        return ast.literal_eval(line.rpartition("  # ")[2]), "  # " in line
    except (SyntaxError, ValueError):
        return None, False


def steps(block):
    """Its statements: code, and for an expression with a value behind it that value."""
    lines = block.splitlines()
    for part in ast.parse(block).body:
        value, there = said(lines[part.end_lineno - 1])
        yield ast.get_source_segment(block, part), isinstance(part, ast.Expr) and there, value


def close(found, value):
    """Whether they are equal, numbers that are not whole but for `NEAR`."""
    if isinstance(value, tuple | list):
        return len(found) == len(value) and all(map(close, found, value))
    if isinstance(value, float):
        return abs(found - value) <= NEAR
    return found == value


@pytest.fixture(scope="module")
def compared(default_model):
    """Every value the page says, beside what comes out."""
    names, pairs = {}, []
    for block in BLOCKS:
        for code, has_value, value in steps(block):
            if has_value:
                pairs.append((code, eval(code, names), value))
            else:
                exec(code, names)
    return pairs


def test_what_the_page_says_comes_out(compared):
    wrong = [(code, found, value) for code, found, value in compared if not close(found, value)]
    assert wrong == []
    assert len(compared) >= 30


def test_a_wrong_value_would_be_seen():
    (whole,) = steps("1 + 1  # 3\n")
    assert whole == ("1 + 1", True, 3)
    assert not close(2, 3)
    assert not close((0.5, "a"), (0.52, "a"))
    assert close((np.float64(0.5), "a"), (0.51, "a"))


def test_every_page_it_links_to_is_there():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target


def test_every_array_of_statistics_is_explained():
    from dataclasses import fields

    from unmask.interpret import LayerStatistics

    text = PAGE.read_text(encoding="utf-8")
    unsaid = {one.name for one in fields(LayerStatistics) if f"`{one.name}`" not in text} - {"kind", "heads"}
    assert unsaid == set()
