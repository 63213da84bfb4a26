"""What is kept between calls has a bound: a server and a long job see ever new texts."""

import ast
import gc
import weakref

import pytest

import unmask
from tests.support.places import REPOSITORY
from unmask.interpret.attention import view as attention
from unmask.text import tokenizer as reading

FINITE = {
    "training/finetune/metrics.py:_library": "names of modules in this package's source",
    "kernels/gpu/flex.py:_flex_attention": "kinds of devices",
    "kernels/interface.py:_importable": "names of modules in this package's source",
    "kernels/products.py:onednn_takes": "dtypes",
    "search/syntax.py:_language": "grammars named in this package's source",
    "spec/plain.py:_fields": "classes of the spec",
}
"""Functions that remember all their results, and what their arguments are."""


def decorators():
    """The decorators of functions of the package that remember results, with the function."""
    root = REPOSITORY / "unmask"
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for one in node.decorator_list:
                    yield f"{path.relative_to(root).as_posix()}:{node.name}", node, one


def name_of(node):
    called = node.func if isinstance(node, ast.Call) else node
    return getattr(called, "attr", getattr(called, "id", ""))


def test_functions_that_remember_all_results_have_few_arguments():
    found = {name for name, node, one in decorators() if name_of(one) == "cache" and ast.unparse(node.args)}
    assert found == FINITE.keys()


def test_other_caches_have_a_size():
    for name, _, one in decorators():
        if name_of(one) == "lru_cache":
            (size,) = [keyword.value for keyword in one.keywords if keyword.arg == "maxsize"]
            assert ast.unparse(size) != "None", name


@pytest.mark.parametrize("length", [10, 1000])
def test_long_texts_share_nothing(length):
    """Of 4,096 lengths up to 8,192 tokens, shared token types could take 134 MB; longer ones, any amount."""
    tokenizer = unmask.load("unmask-mini").tokenizer
    one, other = (tokenizer.encode_batch(["river " * length])[0].token_type_ids for _ in range(2))
    short = len(one) <= reading.SHARED_LENGTH
    assert (one is other) == short
    kept = weakref.ref(one)
    del one, other
    gc.collect()
    assert (kept() is not None) == short


def test_a_view_keeps_statistics_of_few_sizes():
    view = unmask.load("unmask-mini").attention("the river bank")
    first = view.open_statistics()
    for size in range(1, 9):
        made = view.open_statistics(top_k=size, maps=1)
        assert view.open_statistics(top_k=size, maps=1) is made
        assert len(view._statistics) <= attention.KEPT_STATISTICS
    again = view.open_statistics()
    assert again is not first
    assert view.open_statistics() is again
