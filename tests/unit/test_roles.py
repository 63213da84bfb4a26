"""The table of roles: complete, and what is read from it."""

from typing import get_args

import pytest

import unmask.cli
from unmask.models.model import Model
from unmask.spec import ROLES
from unmask.spec.roles import ClassifierRole, LabeledRole, RoleName, Targets
from unmask.training.finetune.settings import Task
from unmask.training.finetune.tasks import TASKS


def names(literal):
    """The values of a union of literals."""
    return {name for part in get_args(literal) for name in (get_args(part) or (part,))}
