"""The table of roles and that of tasks: complete, and what commands, models and documents say of them."""

import inspect
from pathlib import Path
from typing import get_args

import pytest

from unmask.cli.commands import PANELS
from unmask.families import FAMILIES
from unmask.models.model import Model
from unmask.spec import ROLES
from unmask.spec.roles import LabeledRole, RoleName
from unmask.training.finetune.tasks import TASKS, Task

DOCS = Path(__file__).parents[2] / "docs"


def names(literal):
    """The values of a union of literals."""
    return {name for part in get_args(literal) for name in (get_args(part) or (part,))}


def test_every_role_and_every_task_has_its_value():
    assert set(ROLES) == names(RoleName)
    assert set(TASKS) == set(get_args(Task))
    assert {task.role for task in TASKS.values()} == set(get_args(LabeledRole))


def test_roles_that_learn_from_labels_have_targets_and_a_term_of_their_own():
    labeled = {name for name, role in ROLES.items() if role.targets is not None}
    assert labeled == set(get_args(LabeledRole))
    assert len({ROLES[name].targets for name in labeled}) == len(labeled)
    assert len({ROLES[name].term for name in labeled}) == len(labeled)


@pytest.mark.parametrize("name", [name for name, role in ROLES.items() if role.command is not None])
def test_the_command_of_a_role_is_a_command_and_a_method_of_a_model(name):
    command = ROLES[name].command
    assert command in {entry.name for panel in PANELS.values() for entry in panel}
    assert inspect.isfunction(getattr(Model, command))


def test_every_role_is_a_head_of_a_family():
    """A role that no family stores could be neither loaded nor trained."""
    stored = {role for family in FAMILIES for layout in family.head_layouts for role in layout.roles}
    assert stored == set(ROLES)


def test_the_table_of_tasks_in_the_documents_is_that_of_the_code():
    text = (DOCS / "finetune.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    shown = {row[0].strip("| `"): row[3] for row in rows if len(row) == 5 and row[0] != "| `task`"}
    assert shown.keys() == TASKS.keys() - {"retrieval"}
    for name, predict in shown.items():
        assert predict.startswith(f"`model.{TASKS[name].head.command}`")
