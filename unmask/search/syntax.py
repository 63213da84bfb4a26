"""Definitions and statements of source code, from the syntax trees of tree-sitter.

A grammar names every kind of node its own way. What is read here is common to all of them: a definition has
the fields ``name`` and ``body``, and statements stand in blocks. Source with errors has a tree, too, in which
what cannot be read is left out.
"""

import bisect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmask.base.optional import installed, require
from unmask.search.options import CodeRule
from unmask.text.lines import COMPRESSED

if TYPE_CHECKING:
    from tree_sitter import Language, Node

_ENDINGS: Mapping[tuple[str, str], str] = {
    ("tree_sitter_python", "language"): ".py .pyi",
    ("tree_sitter_javascript", "language"): ".js .jsx .mjs .cjs",
    ("tree_sitter_typescript", "language_typescript"): ".ts",
    ("tree_sitter_typescript", "language_tsx"): ".tsx",
    ("tree_sitter_java", "language"): ".java",
    ("tree_sitter_go", "language"): ".go",
    ("tree_sitter_rust", "language"): ".rs",
    ("tree_sitter_c", "language"): ".c",
    ("tree_sitter_cpp", "language"): ".cc .cpp .cxx .h .hh .hpp",
    ("tree_sitter_ruby", "language"): ".rb",
    ("tree_sitter_php", "language_php"): ".php",
    ("tree_sitter_c_sharp", "language"): ".cs",
}

GRAMMARS = {ending: grammar for grammar, endings in _ENDINGS.items() for ending in endings.split()}
"""The module and the function of the grammar for each ending of a file."""

LONGEST_SOURCE = 2_000_000
"""Characters of a document that is parsed; a longer one is generated, or data."""

_INNER = "statement_list preproc_if preproc_ifdef preproc_else preproc_elif ERROR"
_OUTER = (
    "annotation_type_body begin block body_statement case_statement class_body compound_statement "
    "constructor_body declaration_list do do_block else ensure enum_body enum_body_declarations "
    "field_declaration_list interface_body match_block rescue statement_block switch_block switch_body "
    "switch_section then"
)
_TRANSPARENT = frozenset(_INNER.split())
"""Blocks whose statements are those of the block around them."""
_BLOCKS = _TRANSPARENT | frozenset(_OUTER.split())

_HOLDING = "class enum impl interface mod module namespace record struct trait type union"
_CONTAINERS = frozenset(_HOLDING.split())
"""What is part of the names of definitions that hold others; those in others are part of a function."""

_LEADERS = frozenset(("decorator", "attribute_item", "attribute_list"))
"""What stands before a definition and belongs to it, beside comments."""

_WRAPPERS = frozenset(("decorated_definition", "export_statement", "template_declaration"))
"""Nodes that begin with what belongs to a definition, and end with it."""

_UNNAMED = frozenset(("impl_item", "function_definition", "namespace_definition"))
"""Definitions whose name is in another field, or that need none."""

_MEMBERS = frozenset(("enum_variant", "enum_constant"))
"""Nodes with a name and a body that are values of a type."""

_ASSIGNED = {
    "variable_declarator": "value",
    "field_definition": "value",
    "public_field_definition": "value",
    "pair": "value",
    "assignment_expression": "right",
}
"""The field in which a node gives its name to a function or a class."""

_LINE_OF_WORDS = re.compile(rb"[^\n\r]*[^\W\d_][^\n\r]*")


class Range(NamedTuple):
    """Characters of a document: the first, and the one after the last."""

    start: int
    end: int


@dataclass(frozen=True)
class Definition:
    """A function, a method, a class or the like, with the comments and decorators before it."""

    start: int
    end: int
    header: tuple[Range, ...]
    """Its signature, and the first line of its documentation if it has any."""
    parent: int
    """The number of the definition that holds it; -1 for none."""
    whole: bool
    """Whether it was read without an error, so that it ends where it seems to."""


@dataclass(frozen=True, eq=False)
class Syntax:
    """Where parts of a source begin. Comments and decorators belong to what follows them.

    Every array holds characters, (N,), ascending.
    """

    sections: NDArray[np.int64]
    """Definitions outside of functions, and what follows one in the same block."""
    statements: NDArray[np.int64]
    """Statements of a definition's own block, or of the document's."""
    nested: NDArray[np.int64]
    """Statements of the blocks in these."""
    definitions: tuple[Definition, ...] = ()
    """In order of their starts, a parent before what it holds."""
    _starts: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        starts = np.array([definition.start for definition in self.definitions], dtype=np.int64)
        object.__setattr__(self, "_starts", np.maximum.accumulate(starts).tolist())

    def headers(self, character: int) -> list[Range]:
        """The headers, before a character, of all definitions that it is in, the inmost first."""
        number = bisect.bisect_left(self._starts, character) - 1
        ranges: list[Range] = []
        while number >= 0:
            definition = self.definitions[number]
            if character < definition.end:
                ranges += [part for part in definition.header if part.end <= character]
            number = definition.parent
        return ranges

    def holds(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each place is inside a definition, after its first character, (N,).

        One with an error can hold what stands after it, and is left out.
        """
        tops = [definition for definition in self.definitions if definition.parent < 0 and definition.whole]
        starts = np.array([top.start for top in tops], dtype=np.int64)
        ends = np.array([0, *np.maximum.accumulate([top.end for top in tops] or [0])], dtype=np.int64)
        inside: NDArray[np.bool_] = places < ends[np.searchsorted(starts, places, "left")]
        return inside

    def without_headers(self) -> "Syntax":
        """The same places, for passages that are embedded without their context."""
        bare = tuple(replace(definition, header=()) for definition in self.definitions)
        return replace(self, definitions=bare)


def grammar_of(name: str) -> tuple[str, str] | None:
    """The grammar for a file by the ending of its name; None for other files."""
    path = PurePosixPath(name.lower())
    return GRAMMARS.get(PurePosixPath(path.stem).suffix if path.suffix in COMPRESSED else path.suffix)


def code_notice(rule: CodeRule, names: Iterable[str]) -> str | None:
    """What to install so that passages of these files begin by syntax, if any has a grammar and they do not.

    Args:
        rule: that of the index.
        names: those of its files.
    """
    if rule == "syntax" or installed("code") or not any(map(grammar_of, names)):
        return None
    return (
        "source code is cut where definitions are not indented; pip install 'unmask[code]' and make a new "
        "index to cut it at its functions and methods"
    )


def syntax_of(name: str, text: str) -> Syntax | None:
    """Definitions and statements of a source; None if there is no grammar for it, or if it is too long.

    Args:
        name: that of its file, whose ending says the language.
        text: all of it.

    Raises:
        MissingExtra: there is a grammar, and the packages of the extra ``code`` are not installed.
    """
    grammar = grammar_of(name)
    if grammar is None or len(text) > LONGEST_SOURCE:
        return None
    require("code")
    from tree_sitter import Parser

    code = text.encode()
    return _Reader(code).read(Parser(_language(*grammar)).parse(code).root_node)


@cache
def _language(module: str, function: str) -> "Language":
    from tree_sitter import Language

    return Language(getattr(import_module(module), function)())


class _Leader(NamedTuple):
    """A comment or a decorator."""

    start: int
    end: int
    row: int
    comment: bool


class _Visit(NamedTuple):
    """A node that is to be visited, and what is around it; places are bytes."""

    node: "Node"
    begin: tuple[int, int]
    """Where the outermost node begins that it stands for, such as its decorators: the byte and the line."""
    line: int
    """Where the outermost node begins that begins on its line and is part of its statement."""
    block: int
    """The number of the block around it."""
    direct: bool
    """Whether that block is a definition's own, or the document."""
    owner: int
    """The number of the definition around it; -1 for none."""


class _Statement(NamedTuple):
    begin: tuple[int, int]
    block: int
    direct: bool
    owner: int


class _Defined(NamedTuple):
    node: "Node"
    body: "Node"
    begin: tuple[int, int]
    line: int
    owner: int
    container: bool


class _Reader:
    """Reads one tree: first all nodes, then where the lines of definitions and statements begin."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        lines = self._code.split(b"\n")
        lengths = np.cumsum([0, *(len(line) + 1 for line in lines)])[:-1]
        self._first = [
            int(start) + len(line) - len(line.lstrip()) for start, line in zip(lengths, lines, strict=True)
        ]
        """The first byte of each line that is not white space."""
        self._leaders: dict[int, _Leader] = {}
        """The last comment or decorator that ends on each line."""
        self._defined: list[_Defined] = []
        self._bodies: set[int] = set()
        """The first bytes of bodies of definitions."""
        self._statements: list[_Statement] = []
        self._blocks = 0

    def read(self, root: "Node") -> Syntax:
        """Definitions and statements of a tree."""
        stack = [*self._children(_Visit(root, (0, 0), 0, 0, True, -1), root=True)]
        while stack:
            visit = stack.pop()
            node = visit.node
            if "comment" in node.type or node.type in _LEADERS:
                row = node.end_point[0] - (node.end_point[1] == 0)
                is_comment = "comment" in node.type
                self._leaders[row] = _Leader(node.start_byte, node.end_byte, node.start_point[0], is_comment)
                continue
            if (body := _body(node)) is not None and body.start_byte not in self._bodies:
                container = not _CONTAINERS.isdisjoint(_defining(node).type.split("_"))
                self._defined.append(_Defined(node, body, visit.begin, visit.line, visit.owner, container))
                self._bodies.add(body.start_byte)
                visit = visit._replace(owner=len(self._defined) - 1)
            # No line begins in a node of one line.
            if node.start_point[0] < node.end_point[0] or node.type in _WRAPPERS:
                stack += self._children(visit)
        return self._syntax()

    def _children(self, visit: _Visit, *, root: bool = False) -> Iterator[_Visit]:
        """What is in a node, the last first; statements are recorded."""
        node = visit.node
        block = root or node.type in _BLOCKS
        number, direct = visit.block, visit.direct
        if block:
            if node.type not in _TRANSPARENT:
                direct = root or node.start_byte in self._bodies
            self._blocks += 1
            number = self._blocks
        for child in reversed(node.named_children):
            place = child.start_byte, child.start_point[0]
            begin, line = place, child.start_byte
            if not block and (place[1] == node.start_point[0] or node.type in _WRAPPERS):
                begin = visit.begin
            if not block and place[1] == node.start_point[0]:
                line = visit.line
            if block and "comment" not in child.type and child.type not in _BLOCKS | _LEADERS:
                self._statements.append(_Statement(place, number, direct, visit.owner))
            yield _Visit(child, begin, line, number, direct, visit.owner)

    def _syntax(self) -> Syntax:
        characters_B = np.cumsum([0, *((np.frombuffer(self._code, dtype=np.uint8) & 0xC0) != 0x80)])
        starts = [self._start(*defined.begin) for defined in self._defined]
        definitions, begun = [], set[int]()
        for defined, (start, comment) in zip(self._defined, starts, strict=True):
            if start is not None and not self._in_function(defined.owner):
                begun.add(start)
            place = characters_B[defined.begin[0] if start is None else start]
            header = tuple(Range(*characters_B[[*part]].tolist()) for part in self._header(defined, comment))
            node = defined.node
            end = characters_B[node.end_byte]
            definitions.append(Definition(int(place), int(end), header, defined.owner, not node.has_error))
        sections, statements, nested = {*begun}, set[int](), set[int]()
        follows = dict[int, bool]()
        for statement in sorted(self._statements):
            start, _ = self._start(*statement.begin)
            if start is not None:
                (statements if statement.direct else nested).add(start)
                if follows.get(statement.block):
                    sections.add(start)
            follows[statement.block] = start in begun

        def places(bytes_: set[int]) -> NDArray[np.int64]:
            return np.array(sorted(characters_B[[*bytes_]]), dtype=np.int64)

        return Syntax(places(sections), places(statements), places(nested), tuple(definitions))

    def _in_function(self, number: int) -> bool:
        """Whether a definition is a function or in one; -1 is none."""
        while number >= 0:
            if not self._defined[number].container:
                return True
            number = self._defined[number].owner
        return False

    def _start(self, byte: int, row: int) -> tuple[int | None, _Leader | None]:
        """Where the line of a node begins, or the first comment or decorator that belongs to it, and that
        comment; None for a node that does not begin its line.
        """
        start: int | None = None
        comment: _Leader | None = None
        while True:
            begins_line = byte == self._first[row]
            if begins_line:
                start = byte
            leader = self._leaders.get(row - begins_line)
            if leader is None or leader.start >= byte or self._code[leader.end : byte].strip():
                return start, comment
            byte, row = leader.start, leader.row
            if leader.comment and (byte == self._first[row] or not begins_line):
                comment = leader

    def _header(self, defined: _Defined, comment: _Leader | None) -> Iterator[tuple[int, int]]:
        """The signature and the first line of the documentation of a definition, in bytes."""
        node, body = defined.node, defined.body
        ends = [child.start_byte for child in node.named_children if "comment" in child.type]
        end = min([place for place in ends if place > defined.line] + [body.start_byte])
        if signature := self._code[defined.line : end].rstrip():
            yield defined.line, defined.line + len(signature)
        documentation = _docstring(body) or (comment and (comment.start, comment.end))
        words = _LINE_OF_WORDS.search(self._code, *documentation) if documentation else None
        if words:
            yield words.span()


def _defining(node: "Node") -> "Node":
    """The function or the class that a node gives a name to; else the node."""
    value = node.child_by_field_name(_ASSIGNED[node.type]) if node.type in _ASSIGNED else None
    return node if value is None else value


def _body(node: "Node") -> "Node | None":
    """The body of a definition; None for any other node."""
    kind = node.type
    if kind in _MEMBERS:
        return None
    if kind == "type_spec":
        described = node.child_by_field_name("type")
        return described.named_children[-1] if described and described.named_children else described
    body = _defining(node).child_by_field_name("body")
    named = kind in _ASSIGNED or kind in _UNNAMED or node.child_by_field_name("name") is not None
    return body if named else None


def _docstring(body: "Node") -> tuple[int, int] | None:
    """The bytes of the string that begins a body, in Python."""
    if body.type != "block" or not body.named_children:
        return None
    first = body.named_children[0]
    if first.type != "expression_statement" or not first.named_children:
        return None
    string = first.named_children[0]
    return (string.start_byte, string.end_byte) if string.type == "string" else None
