"""Tables of what the program declares: attention kernels, and extras with what their errors say."""

from importlib.util import find_spec

from site_pages.markdown import code, table
from unmask.base.optional import EXTRAS

FEATURES = {
    "gradients": "gradients",
    "dropout": "dropout",
    "log_sum_exp": "log-sum-exp",
    "dilation": "dilation",
}


def table_of_kernels() -> str:
    """The kernels in the order in which `choose` asks them, or why they are not shown."""
    if find_spec("torch") is None:
        return "The table of kernels is left out, because this site was built without torch.\n"
    from unmask.kernels import KERNELS
    from unmask.spec import NoPosition

    rows = []
    for record in (kernel.capability for kernel in KERNELS):
        supports = [name for field, name in FEATURES.items() if getattr(record, field)]
        rows.append(
            (
                f"{code(record.name)}: {record.computes}",
                f"{' and '.join(sorted(record.devices))}: {', '.join(sorted(record.dtypes))}",
                ", ".join(sorted(kind.__name__ for kind in record.patterns)),
                ", ".join(sorted(kind.__name__ for kind in record.positions - {NoPosition})),
                ", ".join(supports),
            )
        )
    return table(("kernel", "runs on", "attention", "terms of scores", "supports"), rows)


def table_of_extras() -> str:
    """Each extra with its purpose and its packages."""
    rows = (
        (code(name), extra.reason, ", ".join(map(code, dict.fromkeys(extra.packages.values()))))
        for name, extra in sorted(EXTRAS.items())
    )
    return table(("extra", "needed for", "packages"), rows)
