"""``unmask kernels``: what each attention kernel can do, and which run on this machine."""

from typing import TYPE_CHECKING

from unmask.cli.options import JsonOption
from unmask.cli.output import console, plain, print_json, table

if TYPE_CHECKING:
    from unmask.model.kernels import Capability


def kernels(*, json: JsonOption = False) -> None:
    """List the attention kernels, fastest first: what each can do, and where it runs here."""
    import torch

    from unmask.model.kernels import KERNELS

    devices = {"cpu"} | ({"cuda"} if torch.cuda.is_available() else set())
    records = [kernel.capability for kernel in KERNELS]
    here = [sorted(record.devices & devices) for record in records]
    if json:
        print_json(
            {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "devices_here": sorted(devices),
                "kernels": [
                    _record(plain_record, usable) for plain_record, usable in zip(records, here, strict=True)
                ],
            }
        )
        return
    shown = table(
        None,
        "kernel",
        "computes",
        "runs here on",
        "dtypes",
        "reach",
        "score terms",
        "gradients",
        "dropout",
        "log-sum-exp",
    )
    for record, usable in zip(records, here, strict=True):
        shown.add_row(
            record.name,
            record.computes,
            ", ".join(usable) or "nothing",
            ", ".join(sorted(record.dtypes)),
            ", ".join(sorted(kind.__name__ for kind in record.reaches)),
            ", ".join(sorted(kind.__name__ for kind in record.positions)),
            *("yes" if can else "no" for can in (record.gradients, record.dropout, record.log_sum_exp)),
        )
    screen = console()
    screen.print(shown)
    screen.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"devices here: {', '.join(sorted(devices))}. "
        "The first that can do what a model needs is used; --kernel names another."
    )


def _record(record: "Capability", usable: list[str]) -> dict[str, object]:
    kinds = {name: sorted(k.__name__ for k in getattr(record, name)) for name in ("reaches", "positions")}
    return {**plain(record), **kinds, "devices_here": usable}
