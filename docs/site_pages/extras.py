"""The table of extras, made from what the errors about missing packages say."""

from site_pages.markdown import code, table
from unmask.base.optional import EXTRAS


def table_of_extras() -> str:
    """Each extra with its purpose and its packages."""
    rows = (
        (code(name), extra.reason, ", ".join(map(code, dict.fromkeys(extra.packages.values()))))
        for name, extra in sorted(EXTRAS.items())
    )
    return table(("extra", "needed for", "packages"), rows)
