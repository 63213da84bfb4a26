"""Options with several values, as people write them."""

from typing import Annotated, Literal

import pytest
from cyclopts import App, CycloptsError

from tests.support.command import run_here
from unmask.base.arguments import comma_separated
from unmask.cli.measure.options import renamed
from unmask.cli.options import listed


@pytest.fixture
def command():
    app = App()

    @app.default
    def go(
        *,
        dtype: Annotated[list[Literal["a", "b"]] | None, listed("dtype", "--dtype")] = None,
        lengths: Annotated[list[int] | None, listed("lengths")] = None,
        rounds: int = 1,
    ):
        return dtype, lengths, rounds

    return lambda *words: app(
        list(words), exit_on_error=False, print_error=False, result_action="return_value"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "a", "b"),
        ("--dtype", "a,b"),
        ("--dtype", "a, b"),
        ("--dtype", "a,", "b"),
        ("--dtype=a,b",),
        ("--dtype", "a", "--dtype", "b"),
    ],
)
def test_values_are_repeated_or_separated(command, words):
    assert command(*words, "--rounds", "3") == (["a", "b"], None, 3)
    assert command("--lengths", "1", "2,3", *words) == (["a", "b"], [1, 2, 3], 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--dtype", "a", "c"), 'Invalid value "c" for --dtype'),
        (("--dtype",), "--dtype requires at least 1"),
        (("--dtype", "--rounds", "2"), "--dtype requires at least 1"),
        (("--dtype", ","), "Invalid value for --dtype"),
        (("--lengths", "1", "z"), "Invalid value for --lengths"),
    ],
)
def test_other_values_are_named(command, words, sentence):
    with pytest.raises(CycloptsError, match=sentence):
        command(*words)


def test_commands_take_lists(tmp_path):
    """Each is refused for its values, which were read, and not for words that nothing takes."""
    for words, said in (
        (("bench", "speed", "--dtype", "float32", "float16x"), 'Invalid value "float16x" for --dtype'),
        (("bench", "kernels", "--lengths", "12", "many"), "--lengths is '12,many'"),
        (("scaling", "--lengths", "12", "many"), "--lengths is '12,many'"),
        (
            (
                "evaluate",
                "glue",
                "--seeds",
                "1",
                "x",
                "--protocol",
                "run_glue",
                "--data",
                tmp_path,
                "-o",
                "o",
            ),
            "--seeds is '1,x'",
        ),
        (("kernels", "--dtype", "float32", "bfloat16"), "nothing takes 'bfloat16'; an option has one value"),
    ):
        ran = run_here(*words)
        assert ran.code != 0
        assert said in ran.err, ran.err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" , ,", []),
        ("a", ["a"]),
        (" big sport ,b,", ["big sport", "b"]),
        ('"city, state",person', ["city, state", "person"]),
        (' "city, state" , "a ""b"", c"', ["city, state", 'a "b", c']),
        ('6" pipe,say "a" twice', ['6" pipe', 'say "a" twice']),
        ('"open, b', ['"open', "b"]),
        ('"",a', ["a"]),
        ("城市,人\nb", ["城市", "人\nb"]),
    ],
)
def test_parts_with_commas_stand_in_quotes(text, parts):
    assert comma_separated(text) == parts


def test_renamed_labels_may_hold_commas():
    assert renamed('"city, state=place",b=c') == {"city, state": "place", "b": "c"}
