"""What is to be extracted from texts, and what was: schemas of GLiNER2 (Zaratiana et al. 2025), results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unmask.base.arguments import check_flag, check_fraction, listed, whole_number
from unmask.errors import InvalidRequest, quoted
from unmask.tasks.logits import Coverage
from unmask.tasks.tag import Entity

TaskKind = Literal["structures", "entities", "relations", "classifications"]


@dataclass(frozen=True)
class Field:
    """A field of a task: a type of entities, an end of a relation, a field of a record, or a class."""

    name: str
    description: str = ""
    threshold: float | None = None
    """The least probability of its spans; None for that of the call."""
    many: bool = True
    """Whether it may have several values; otherwise the best."""
    choices: tuple[str, ...] = ()
    """Its values, of which some are chosen; empty if they are parts of the text."""


@dataclass(frozen=True)
class SchemaTask:
    """One task of a schema."""

    kind: TaskKind
    name: str
    fields: tuple[Field, ...]
    prompt: str = ""
    """What is said of the task besides its name."""
    multi_label: bool = False
    """Of classes: whether several can apply."""
    threshold: float | None = None
    """The least probability: of several classes that apply, or of both ends of a relation."""
    top_k: int | None = None
    """The most classes that apply; None for any number."""
    examples: tuple[tuple[str, str], ...] = ()
    """Of classes: texts with their class, which are read with the schema."""
    activation: Literal["auto", "sigmoid", "softmax"] = "auto"


TASK_KEYS = ("entities", "relations", "structures", "classifications")
CLASS_KEYS = ("task", "labels", "multi_label", "cls_threshold", "top_k", "prompt", "examples", "class_act")


def schema_of(schema: Mapping[str, Any]) -> tuple[SchemaTask, ...]:
    """The tasks of a schema in the form of `gliner2.Schema.from_dict`: records, entities, relations, classes.

    Keys: ``entities``, a list of types or types with descriptions; ``relations``, likewise; ``structures``,
    the name of each kind of record with ``{"fields": [...]}``, whose fields are names, or objects with
    ``name``, ``description``, ``dtype`` ("list" or "str"), ``choices`` and ``threshold``; and
    ``classifications``, a list of objects with ``task``, ``labels`` (a list, or labels with descriptions),
    ``multi_label``, ``cls_threshold``, ``top_k``, ``prompt``, ``examples`` and ``class_act``.

    Raises:
        InvalidRequest: it is no such mapping, or asks for nothing.
    """
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"the schema is of type {type(schema).__name__}; give a mapping, such as "
                             '{"entities": ["person"]}')  # fmt: skip
    _check_keys("the schema", schema, TASK_KEYS)
    tasks: list[SchemaTask] = []
    for name, value in _named("structures", schema.get("structures")).items():
        tasks.append(_record(name, value))
    if types := _named("entities", schema.get("entities")):
        fields = tuple(
            _field(f"the entity {quoted(name)}", name, value, ("dtype",)) for name, value in types.items()
        )
        tasks.append(SchemaTask("entities", "entities", fields))
    for name, value in _named("relations", schema.get("relations")).items():
        both = _field(f"the relation {quoted(name)}", name, value)
        ends = (Field("head"), Field("tail"))
        tasks.append(SchemaTask("relations", name, ends, both.description, threshold=both.threshold))
    for value in listed("classifications", schema.get("classifications") or []):
        tasks.append(_classes(value))
    if not tasks:
        raise InvalidRequest(f"the schema asks for nothing; give one of {', '.join(TASK_KEYS)}")
    names = [task.name for task in tasks]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidRequest(f"the schema names {quoted(repeated[0])} twice; give each task its own name")
    return tuple(tasks)


def _named(what: str, value: Any) -> Mapping[str, Any]:
    """Names with what is said of them."""
    if value is None:
        return {}
    if isinstance(value, str):
        raise InvalidRequest(f"{what} is a text; give a list of names, or names with descriptions")
    named = value if isinstance(value, Mapping) else dict.fromkeys(listed(what, value))
    for name in named:
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest(f"{what} names {quoted(str(name))}; give a text with letters")
    if not isinstance(value, Mapping) and len(named) < len(value):
        raise InvalidRequest(f"{what} names the same twice; give each once")
    return named


def _field(what: str, name: str, value: Any, keys: Sequence[str] = ()) -> Field:
    """``keys`` are those that it can have besides ``description`` and ``threshold``."""
    if value is None or isinstance(value, str):
        return Field(name, value or "")
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{what} is said to be {quoted(str(value))}; give a description, or an object")
    _check_keys(what, value, ("description", "threshold", *keys))
    threshold, kind = value.get("threshold"), value.get("dtype") or "list"
    if threshold is not None:
        check_fraction(f"threshold of {what}", threshold)
    if kind not in ("list", "str"):
        raise InvalidRequest(f"dtype of {what} is {quoted(str(kind))}; it can be list or str")
    choices = tuple(_named(f"choices of {what}", value.get("choices")))
    return Field(name, _text(what, value, "description"), threshold, kind == "list", choices)


def _text(what: str, value: Mapping[str, Any], key: str) -> str:
    text = value.get(key) or ""
    if not isinstance(text, str):
        raise InvalidRequest(f"{key} of {what} is {quoted(text)}; give a text")
    return text


def _check_keys(what: str, value: Mapping[str, Any], allowed: Sequence[str]) -> None:
    if unknown := [key for key in value if key not in allowed]:
        keys = ", ".join(allowed)
        raise InvalidRequest(f"{what} has the key {quoted(str(unknown[0]))}; it can have {keys}")


def _record(name: str, value: Any) -> SchemaTask:
    what = f"the structure {quoted(name)}"
    if isinstance(value, Mapping):
        _check_keys(what, value, ("fields",))
    fields = value.get("fields") if isinstance(value, Mapping) else value
    checked: list[Field] = []
    for field in listed(f"fields of {what}", fields or []):
        field_name = field.get("name") if isinstance(field, Mapping) else field
        if not isinstance(field_name, str) or not field_name.strip():
            raise InvalidRequest(f"{what} has a field without a name; give names, or objects with one")
        settings = field if isinstance(field, Mapping) else None
        keys = ("name", "dtype", "choices")
        checked.append(_field(f"the field {quoted(field_name)} of {what}", field_name, settings, keys))
    if not checked or len({field.name for field in checked}) < len(checked):
        raise InvalidRequest(f"{what} needs fields, each with its own name")
    return SchemaTask("structures", name, tuple(checked))


def _classes(value: Any) -> SchemaTask:
    if not isinstance(value, Mapping) or not isinstance(value.get("task"), str) or not value["task"].strip():
        raise InvalidRequest("an item of classifications needs task, its name, and labels")
    what = f"the classification {quoted(value['task'])}"
    _check_keys(what, value, CLASS_KEYS)
    labels = _named(f"labels of {what}", value.get("labels"))
    if not labels:
        raise InvalidRequest(f"{what} has no labels; give two or more")
    threshold, top = value.get("cls_threshold", 0.5), value.get("top_k")
    check_fraction(f"cls_threshold of {what}", threshold)
    if top is not None:
        top = whole_number(f"top_k of {what}", top, 1)
    multi_label = value.get("multi_label", False)
    check_flag(f"multi_label of {what}", multi_label)
    examples = [
        tuple(listed(f"an example of {what}", it))
        for it in listed(f"examples of {what}", value.get("examples") or [])
    ]
    if not all(len(it) == 2 and all(isinstance(part, str) for part in it) for it in examples):
        raise InvalidRequest(f"examples of {what} must be pairs of a text and its label")
    activation = value.get("class_act", "auto")
    if activation not in ("auto", "sigmoid", "softmax"):
        raise InvalidRequest(
            f"class_act of {what} is {quoted(str(activation))}; it can be auto, sigmoid or softmax"
        )
    return SchemaTask(
        "classifications",
        value["task"],
        tuple(Field(label, _text(f"the label {quoted(label)}", labels, label)) for label in labels),
        _text(what, value, "prompt"),
        multi_label=multi_label,
        threshold=threshold,
        top_k=top,
        examples=tuple(examples),
        activation=activation,
    )


MARKERS: Mapping[TaskKind, str] = {
    "structures": "[C]",
    "entities": "[E]",
    "relations": "[R]",
    "classifications": "[L]",
}
TASK, DESCRIPTION, EXAMPLE, OUTPUT = "[P]", "[DESCRIPTION]", "[EXAMPLE]", "[OUTPUT]"
BETWEEN, BEFORE_TEXT = "[SEP_STRUCT]", "[SEP_TEXT]"
SIGNS = (*MARKERS.values(), TASK, DESCRIPTION, EXAMPLE, OUTPUT, BETWEEN, BEFORE_TEXT)
"""Tokens of the prompt's own."""


def prompt_of(task: SchemaTask) -> list[str]:
    """The strings that stand for a task before a text, each of which is tokenized by itself."""
    said = f"{task.name}: {task.prompt}" if task.prompt else task.name
    for field in task.fields:
        if field.description:
            said += f" {DESCRIPTION} {field.name}: {field.description}"
    names = {field.name for field in task.fields}
    for text, label in task.examples:
        if label in names:
            said += f" {EXAMPLE} {text} {OUTPUT} {label}"
    fields = [part for field in task.fields for part in (MARKERS[task.kind], field.name)]
    return ["(", TASK, said, "(", *fields, ")", ")"]


def choices_prefix(tasks: Sequence[SchemaTask]) -> list[str]:
    """The words before those of a text: the choices of fields that have any."""
    words: list[str] = []
    for task in tasks:
        inner: list[str] = []
        for field in task.fields:
            if field.choices:
                options = [part for choice in field.choices for part in ("|", choice)][1:]
                inner += [field.name, "(", *options, ")", ","]
        if inner:
            words += ["(", f"{task.name}:", *inner[:-1], ")"]
    return words


@dataclass(frozen=True)
class Value:
    """A part of a text, or a choice."""

    text: str
    score: float
    """The probability of its span, or of the choice."""
    start: int | None
    """The offset of its first character in the text; None for a choice."""
    end: int | None
    """The offset after its last character."""


@dataclass(frozen=True)
class Relation:
    """Two parts of a text that stand in a relation."""

    name: str
    head: Value
    tail: Value


@dataclass(frozen=True)
class Record:
    """One instance of a structure."""

    name: str
    fields: Mapping[str, tuple[Value, ...]]
    """The values of each field, most probable first; of a field with one value, at most one."""


@dataclass(frozen=True)
class Classes:
    """The classes of a text in one classification."""

    labels: tuple[str, ...]
    """Those that apply."""
    scores: Mapping[str, float]
    """The probability of each."""


@dataclass(frozen=True)
class Extraction(Coverage):
    """What was extracted from one text."""

    entities: tuple[Entity, ...]
    """By where they begin."""
    relations: tuple[Relation, ...]
    records: tuple[Record, ...]
    classes: Mapping[str, Classes]
    """By the name of the classification."""
