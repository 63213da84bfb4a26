"""Passages of source code by its syntax: where they begin, and what is embedded before them."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unmask
from tests.support.tiny import write_prompts
from unmask.base import optional
from unmask.errors import EmptyText, InvalidRequest, MissingExtra
from unmask.search.adding import fitted, readers_of
from unmask.search.documents.values import Document
from unmask.search.index import Index
from unmask.search.passages import context_of, cut_in_two, passage_encodings, passages_of, words_of
from unmask.search.syntax import GRAMMARS, LONGEST_SOURCE, code_notice, grammar_of, syntax_of

pytest.importorskip("tree_sitter", reason="the code extra is not installed")

PYTHON = '''# Licence of é.

# A stack
@final
class Stack(Base):
    """
    Last in, first out.
    """
    limit = 100  # of items

    # Puts one
    @checked
    def push(self, item,
             where=None):
        """Adds an item.

        It is the last."""
        if item:
            check(item)
            # always
            self.items.append(item)
        return item
    def pop(self): return self.items.pop()
    size = 2

def main():
    def inner():
        return 1
    return inner, [1, 2, 3]
run(main, with_, many, words, to, be, long, enough)
'''

TYPESCRIPT = """/** Doc */
@Component({a: 1})
export class A<T> implements B {
  x: number;
  // lead
  @Hook()
  f(a: string): void {
    g();
  }
  @Get() all() {
    return 1;
  }
}
const g = async (x) => {
  return 2;
};
"""

OTHERS = {
    "a.go": (
        "package a\n\n// F is.\nfunc (t *T) F(a int) int {\n\treturn a\n}\n",
        "// F is.",
        "func (t *T) F(a int) int",
    ),
    "a.rs": (
        "use a;\nimpl S {\n    /// does\n    #[inline]\n    fn f(&self) -> u8 {\n        1\n    }\n}\n",
        "/// does",
        "fn f(&self) -> u8",
    ),
    "a.rb": ("class A < B\n  attr :x\n  # d\n  def f(a)\n    a\n  end\nend\n", "# d", "def f(a)"),
    "a.c": ("int x;\n/* f */\nint f(int a)\n{\n  return a;\n}\n", "/* f */", "int f(int a)"),
    "a.hpp": (
        "namespace n {\n// C\ntemplate <class T>\nclass C : D {\n  int x;\n};\n}\n",
        "// C",
        "class C : D",
    ),
    "A.java": (
        "class A {\n  int x;\n  /** Does. */\n  @Override\n  int f() {\n    return 1;\n  }\n}\n",
        "/** Does. */",
        "@Override\n  int f()",
    ),
    "a.php": (
        "<?php\nclass A {\n  public $x;\n  // f\n  function f($a) {\n    return 1;\n  }\n}\n",
        "// f",
        "function f($a)",
    ),
    "a.cs": (
        "class A {\n  int x;\n  // f\n  public int F(int a) {\n    return 1;\n  }\n}\n",
        "// f",
        "public int F(int a)",
    ),
    "a.js": (
        "var a;\n// f\nexports.f = function (x) {\n  return x;\n};\n",
        "// f",
        "exports.f = function (x)",
    ),
}


def cut(name: str, text: str, tokens: int, overlap: int = 0):
    return passages_of(
        words_of(text), max_tokens=tokens, overlap_tokens=overlap, kind="code", syntax=syntax_of(name, text)
    )


def at(text: str, places) -> list[str]:
    """The beginning of the line of each place."""
    return [text[place:].split("\n", 1)[0] for place in places.tolist()]


def test_comments_and_decorators_belong_to_the_definition_that_follows():
    syntax = syntax_of("a.py", PYTHON)
    assert at(PYTHON, syntax.sections) == [
        "# A stack",
        "# Puts one",
        "def pop(self): return self.items.pop()",
        "size = 2",
        "def main():",
        "run(main, with_, many, words, to, be, long, enough)",
    ]
    assert at(PYTHON, syntax.nested) == ["check(item)", "# always"]
    assert "def inner():" in at(PYTHON, syntax.statements)
    assert at(TYPESCRIPT, syntax_of("a.ts", TYPESCRIPT).sections) == [
        "/** Doc */",
        "// lead",
        "@Get() all() {",
        "const g = async (x) => {",
    ]


def test_headers_are_the_signature_and_the_first_line_of_the_documentation():
    inside = PYTHON.index("check(item)")
    headers = [PYTHON[a:b] for a, b in syntax_of("a.py", PYTHON).headers(inside)]
    signature = "def push(self, item,\n             where=None):"
    assert headers == [signature, '"""Adds an item.', "class Stack(Base):", "    Last in, first out."]
    before = [PYTHON[a:b] for a, b in syntax_of("a.py", PYTHON).headers(PYTHON.index("limit"))]
    assert before == ["class Stack(Base):", "    Last in, first out."]
    within = [PYTHON[a:b] for a, b in syntax_of("a.py", PYTHON).headers(PYTHON.index("Last in"))]
    assert within == ["class Stack(Base):"]
    assert syntax_of("a.py", PYTHON).headers(PYTHON.index("# A stack")) == []
    assert syntax_of("a.py", PYTHON).headers(len(PYTHON) - 4) == []


@pytest.mark.parametrize("name", OTHERS)
def test_every_language_has_definitions(name):
    text, comment, signature = OTHERS[name]
    syntax = syntax_of(name, text)
    assert text.index(comment) in syntax.sections
    last = syntax.definitions[-1]
    assert [text[a:b].strip() for a, b in last.header] == [signature, comment]
    assert last.whole


def test_every_grammar_is_read():
    for grammar in set(GRAMMARS.values()):
        ending = next(ending for ending, value in GRAMMARS.items() if value == grammar)
        assert syntax_of(f"a{ending}", "x\n") is not None


def test_methods_begin_passages_and_a_long_one_is_cut_at_statements_with_its_headers():
    text = (
        long_method().text
        + "\n    def empty(self):\n        self.items = []\n        return self.items[1:2]\n"
    )
    passages = cut("a.py", text, 120)
    starts = [text[one.start :].split("(", 1)[0] for one in passages]
    assert starts[0] == "class Stack"
    assert set(starts[1:-1]) == {"self.items.append"}
    assert starts[-1] == "def empty"
    contexts = [context_of(text, one.context) for one in passages]
    holding = 'class Stack(Base):\n"""Holds items."""\n'
    assert contexts == ["", *[holding + 'def fill(self):\n"""Fills it."""\n'] * (len(passages) - 2), holding]
    assert cut("a.py", text, 16)[3].context[0][1] - cut("a.py", text, 16)[3].context[0][0] < len(
        "def fill(self)"
    )


def test_values_after_a_definition_begin_a_passage_and_inner_functions_do_not():
    starts = [PYTHON[one.start :].split("(", 1)[0].split("\n", 1)[0] for one in cut("a.py", PYTHON, 500)]
    assert starts == ["# Licence of é.", "# Puts one", "def pop", "def main", "run"]


def test_a_long_loop_is_cut_at_its_statements_and_a_text_in_it_is_not_cut_at_the_margin():
    loop = (
        "def f(x):\n    for item in x:\n" + "        call(\n            a,\n            b,\n        )\n" * 30
    )
    assert {loop[one.start :].split("(", 1)[0] for one in cut("a.py", loop, 60)[1:]} == {"call"}
    text = (
        'def f(x):\n    text = """'
        + "some words\n" * 8
        + "\n"
        + "more words\n" * 12
        + '"""\n    return text\n'
    )
    assert len(cut("a.py", text, 500)) == 1


def test_context_leaves_room_for_what_neighbors_share():
    words = 'return """' + "some words " * 40 + '"""'
    check_cut("a.py", f"def f(x):\n    {words}", 24, 20)
    check_cut("a.py", f"class A:\n  def f(x): {words}", 14, 12)


def test_a_passage_that_is_too_long_with_its_context_is_cut_once_more(tmp_path):
    model = unmask.load(write_prompts(tmp_path / "model", {"passage": "another the "}, 60))
    (reader,) = readers_of({"dense": model}, late=False)
    assert reader.context
    encoding = model.tokenizer.encode(long_method().text)
    syntax = syntax_of("a.py", long_method().text)
    passages = passages_of(encoding, max_tokens=60, kind="code", syntax=syntax)
    longest = max(len(alone) for alone in passage_encodings(encoding, passages))
    short = replace(reader, prompt="", max_tokens=longest - 1)
    parts = fitted([short], encoding, passages, "code", syntax)
    assert (
        len(parts) > len(passages) == len(fitted([replace(short, context=False)], encoding, passages, "code"))
    )
    assert max(len(alone) for alone in passage_encodings(encoding, parts)) < longest


SOURCES = [PYTHON, TYPESCRIPT, *(text for text, *_ in OTHERS.values())]


@st.composite
def broken(draw) -> tuple[str, str]:
    """A source from which a part is taken away, into which something is put, with other line ends."""
    text = draw(st.sampled_from(SOURCES)) * draw(st.integers(1, 3))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 60)))
    text = text[:start] + draw(st.text("(){}[]:\"'`#/*\\\t\n\r é𝔸👍界a=;<>@", max_size=20)) + text[end:]
    newline = draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))
    tab = draw(st.sampled_from(["    ", "\t"]))
    return draw(st.sampled_from(sorted(GRAMMARS))), text.replace("    ", tab).replace("\n", newline)


@given(source=broken(), tokens=st.integers(1, 60), overlap=st.integers(0, 10))
def test_passages_hold_every_character_once_and_leave_room_for_their_context(source, tokens, overlap):
    ending, text = source
    overlap = min(overlap, tokens - 1)
    check_cut(f"a{ending}", text, tokens, overlap)


def check_cut(name: str, text: str, tokens: int, overlap: int = 0) -> None:
    try:
        encoding = words_of(text)
    except EmptyText:
        return
    syntax = syntax_of(name, text)
    passages = passages_of(encoding, max_tokens=tokens, overlap_tokens=overlap, kind="code", syntax=syntax)
    covered = np.zeros(len(text), dtype=int)
    for one in passages:
        covered[one.start : one.end] += 1
        assert text[one.start : one.end] == text[one.start : one.end].strip()
        assert list(one.context) == sorted(one.context)
        assert all(0 <= begin < end <= one.start for begin, end in one.context)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(one.context))
    black = np.array([not character.isspace() for character in text])
    assert (covered[black] >= 1).all()
    if not overlap:
        assert (covered[black] == 1).all()
    for alone, one in zip(passage_encodings(encoding, passages), passages, strict=True):
        assert one.tokens <= len(alone) <= tokens
    halves = cut_in_two(
        encoding, passages, {at for at, one in enumerate(passages) if one.tokens > 1}, "code", syntax
    )
    assert sum(one.tokens for one in halves) == sum(one.tokens for one in passages)


def test_a_long_file_garbage_and_deep_nesting_are_cut():
    check_cut("a.py", PYTHON * 400, 256)
    random_ = random.Random(0)
    check_cut("a.cpp", "".join(random_.choice("abc (){}[]:;\"'\n\t#=<>*&") for _ in range(20_000)), 64)
    check_cut("a.js", "(" * 30_000, 256)
    check_cut("a.py", "\n\n \n", 9)


def test_what_stands_after_an_error_is_still_cut_at_the_margin():
    text = "class A:\n  def f(self:\n    x = (1\n\n" + "\n\n".join(
        f"def g{n}(a):\n  return a + a + a + a + a + a + a + a + a" for n in range(3)
    )
    starts = [text[one.start :].split("(", 1)[0] for one in cut("a.py", text, 500)]
    assert starts[-2:] == ["def g1", "def g2"]


def test_files_without_a_grammar_and_very_long_ones_are_cut_by_indentation():
    assert syntax_of("a.sql", "select 1") is None
    assert syntax_of("a.py", "x" * (LONGEST_SOURCE + 1)) is None
    assert grammar_of("src/A.PY.gz") == GRAMMARS[".py"]
    assert grammar_of("a.gz") is None


def documents() -> list[Document]:
    return [Document("a.py", PYTHON, kind="code"), Document("b.txt", "Some text about a stack.")]


def long_method() -> Document:
    body = "".join(f"        self.items.append(value_{n} + {n})\n\n" for n in range(40))
    text = (
        f'class Stack(Base):\n    """Holds items."""\n\n    def fill(self):\n        """Fills it."""\n{body}'
    )
    return Document("long.py", text, kind="code")


def test_an_index_keeps_its_rule_and_refuses_to_cut_without_the_extra(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "i", [])
    assert index.settings.passages.code == "syntax"
    index.add(documents())
    assert Index.open(tmp_path / "i").settings.passages.code == "syntax"
    old = Index.create(tmp_path / "old", [], code="indentation")
    old.add(documents())
    assert old.passages < index.passages
    monkeypatch.setattr(optional, "_missing", lambda extra: ["tree-sitter"] if extra == "code" else [])
    assert code_notice("indentation", old.ids)
    assert code_notice("indentation", ["a.sql"]) is code_notice("syntax", old.ids) is None
    with pytest.raises(MissingExtra, match=r"unmask\[code\]"):
        index.add([Document("c.py", PYTHON, kind="code")])
    index.add([Document("c.sql", "select 1", kind="code")])
    with pytest.raises(MissingExtra, match="indentation"):
        Index.create(tmp_path / "new", [], code="syntax")
    assert Index.create(tmp_path / "new", []).settings.passages.code == "indentation"
    with pytest.raises(InvalidRequest, match="code"):
        Index.create(tmp_path / "other", [], code="lines")


def test_settings_of_earlier_formats_mean_indentation(tmp_path):
    from unmask.search.settings import IndexSettings

    stored = Index.create(tmp_path / "i", []).settings.stored()
    del stored["passages"]["code"]
    read = IndexSettings.of_stored(stored | {"format": 4}, "i")
    assert read.passages.code == "indentation"


def test_no_view_but_the_dense_one_has_context(tmp_path):
    index = Index.create(tmp_path / "i", [], passage_tokens=60)
    index.add([long_method()])
    assert index.passages > 3
    assert "contexts" not in index._contents.facts(0)


@pytest.mark.parametrize("prompted", [False, True])
def test_the_vector_of_a_passage_is_that_of_its_context_and_text(prompted, folder, tmp_path):
    prompt = "another the " if prompted else ""
    path = write_prompts(tmp_path / "model", {"passage": prompt}, 60) if prompted else folder
    model = unmask.load(path)
    index = Index.create(tmp_path / "i", model, bm25=False, passage_tokens=48 if prompted else 60)
    added = index.add([long_method(), Document("b.txt", "The river bank.")])
    assert added.dropped_tokens == 0
    hits = index.search("a muddy river", k=100, why=True)
    query = model.embed("a muddy river")
    contexts = index._contents.facts(0)["contexts"]
    assert len(contexts) >= len(hits) - 2 > 3
    text = long_method().text
    for hit in hits:
        ranges = contexts.get(str(hit.start), []) if hit.document == "long.py" else []
        context = context_of(text, ranges)
        assert hit.text == index.document(hit.document).text[hit.start : hit.end]
        assert hit.score == pytest.approx(
            float(query @ model.embed(prompt + context + hit.text, prompt="")), abs=1e-5
        )
        (why,) = hit.why
        assert sum(share.share for share in why.shares) + why.special == pytest.approx(hit.score, abs=1e-6)
        assert [share.label for share in why.shares].count("context") == bool(ranges)
        if ranges:
            for shares in (why.shares, why.attribution):
                assert shares[0].label == "context"
                assert [[*span] for span in shares[0].spans] == ranges
                assert len(shares) > 1
            assert abs(why.shares[0].share) > 1e-4
    index.compact()
    assert index.search("a muddy river", k=100, why=True) == hits
