"""TOML tables as dataclasses: every key is accounted for, and each refusal names the key and the way out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from unmask.errors import InvalidRequest
from unmask.training.table import read_table, settings


@dataclass(frozen=True)
class Inner:
    rate: float
    kind: Literal["a", "b"] = "a"
    pair: tuple[float, float] = (0.5, 0.25)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise InvalidRequest(f"rate is {self.rate}; it must be at least 0")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 1
    yes: bool = False
    maybe: float | None = 2.0
    inner: Inner = field(default_factory=lambda: Inner(1.0))
    several: tuple[Inner, ...] = ()
    names: tuple[str, ...] = ()
    free: Mapping[str, Any] = field(default_factory=dict)
    hidden: int = field(default=7, init=False)


def test_what_is_left_out_has_its_default_and_what_is_given_its_type():
    assert read_table(Outer, {"name": "x"}, "run") == Outer("x")
    read = read_table(
        Outer,
        {
            "name": "x",
            "maybe": None,
            "inner": {"rate": 1, "kind": "b", "pair": [1, 0]},
            "several": [{"rate": 0.5}],
            "names": ["p", "q"],
            "free": {"any": [1, {"thing": True}]},
        },
        "run",
    )
    assert read == Outer(
        "x",
        maybe=None,
        inner=Inner(1.0, "b", (1.0, 0.0)),
        several=(Inner(0.5),),
        names=("p", "q"),
        free={"any": [1, {"thing": True}]},
    )
    assert type(read.inner.rate) is float


GOOD: dict[str, Any] = {"name": "x"}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "run needs name, and it is not given"),
        (GOOD | {"coutn": 1}, "run has no key 'coutn'; did you mean count?"),
        (GOOD | {"hidden": 1}, "run has no key 'hidden'"),
        (GOOD | {"zzz": 1}, "it can hold name, count, yes"),
        (GOOD | {"inner": {"rate": 1.0, "knid": "a"}}, "run.inner has no key 'knid'; did you mean kind?"),
        (
            GOOD | {"several": [{"rate": 1.0}, {"rat": 2.0}]},
            "run.several[1] has no key 'rat'; did you mean rate",
        ),
        (GOOD | {"several": [{}]}, "run.several[0] needs rate"),
        (GOOD | {"name": 3}, "run.name is 3; it must be a string in quotes"),
        (GOOD | {"count": 1.0}, "run.count is 1.0; it must be a whole number"),
        (GOOD | {"count": True}, "run.count is True; it must be a whole number"),
        (GOOD | {"count": None}, "run.count is None; it must be a whole number"),
        (GOOD | {"yes": 1}, "run.yes is 1; it must be true or false"),
        (GOOD | {"maybe": "2"}, "run.maybe is '2'; it must be a number"),
        (GOOD | {"maybe": False}, "run.maybe is False; it must be a number"),
        (GOOD | {"maybe": 10**400}, "run.maybe has 401 digits"),
        (GOOD | {"inner": 3}, "run.inner is 3; it must be a table"),
        (GOOD | {"inner": {"rate": 1, "kind": "c"}}, "run.inner.kind is 'c'; it can be a, b"),
        (GOOD | {"inner": {"rate": 1, "kind": ["a"]}}, "run.inner.kind is ['a']; it can be a, b"),
        (GOOD | {"inner": {"rate": 1, "pair": [1]}}, "run.inner.pair is [1]; it must have 2 values"),
        (GOOD | {"inner": {"rate": 1, "pair": [1, "2"]}}, "run.inner.pair is '2'; it must be a number"),
        (GOOD | {"inner": {"rate": -1}}, "run.inner: rate is -1.0; it must be at least 0"),
        (GOOD | {"names": "abc"}, "run.names is 'abc'; it must be a list"),
        (GOOD | {"names": ["a", 1]}, "run.names[1] is 1; it must be a string in quotes"),
        (GOOD | {"free": [1]}, "run.free is [1]; it must be a table"),
        ([1], "run is [1]; it must be a table"),
    ],
)
def test_refusals(table, sentence):
    with pytest.raises(InvalidRequest) as refused:
        read_table(Outer, table, "run")
    assert sentence in str(refused.value)


def test_the_outermost_table_needs_no_name():
    with pytest.raises(InvalidRequest, match=r"^it has no key 'nmae'; did you mean name\?$"):
        read_table(Outer, {"nmae": "x"}, "")
    with pytest.raises(InvalidRequest, match=r"^inner.rate is 'x'; it must be a number$"):
        read_table(Outer, {"name": "x", "inner": {"rate": "x"}}, "")


@settings
class Checked:
    count: int
    rate: float = 0.5
    inner: Inner = field(default_factory=lambda: Inner(1.0))
    names: tuple[str, ...] = ()
    derived: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidRequest(f"count is {self.count}; it must be at least 1")
        object.__setattr__(self, "derived", 2 * self.count)


def test_settings_hold_values_of_the_types_of_their_fields():
    read = Checked(np.int64(3), np.float32(0.5), {"rate": 1}, ["a", "b"])
    assert (read.count, read.rate, read.inner) == (3, 0.5, Inner(1.0))
    assert (read.names, read.derived) == (("a", "b"), 6)
    assert (type(read.count), type(read.rate)) == (int, float)
    inner = Inner(2.0)
    assert Checked(1, inner=inner).inner is inner
    assert hash(Checked(1, names=["a"])) == hash(Checked(1, names=("a",)))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"count": "3"}, "count is '3'; it must be a whole number"),
        ({"count": 3.0}, "count is 3.0; it must be a whole number"),
        ({"count": np.True_}, "it must be a whole number"),
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"count": 1, "rate": "x"}, "rate is 'x'; it must be a number"),
        ({"count": 1, "rate": None}, "rate is None; it must be a number"),
        ({"count": 1, "names": "ab"}, "names is 'ab'; it must be a list"),
        ({"count": 1, "inner": 3}, "inner is 3; it must be a table"),
    ],
)
def test_settings_refuse_values_of_other_types(values, sentence):
    with pytest.raises(InvalidRequest) as refused:
        Checked(**values)
    assert sentence in str(refused.value)
