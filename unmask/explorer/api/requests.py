"""All requests of the page."""

from unmask.explorer.api import (
    analysis_schemas,
    attention_schemas,
    change_schemas,
    corpus_schemas,
    pretraining_schemas,
    search_schemas,
    session_schemas,
    task_schemas,
    word_schemas,
)
from unmask.explorer.api.page_request import PageRequest

SCHEMAS = (
    session_schemas,
    attention_schemas,
    word_schemas,
    task_schemas,
    analysis_schemas,
    change_schemas,
    corpus_schemas,
    pretraining_schemas,
    search_schemas,
)

REQUESTS: tuple[type[PageRequest], ...] = tuple(
    value
    for schema in SCHEMAS
    for value in vars(schema).values()
    if isinstance(value, type) and issubclass(value, PageRequest) and value.__module__ == schema.__name__
)
"""Those that the schemas declare, in their order."""
