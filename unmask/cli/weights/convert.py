"""``unmask convert``: a copy of a checkpoint as safetensors, in another dtype, or in shards."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import Dtype, IgnoreOption, JsonOption, RevisionOption
from unmask.cli.output import print_json
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.weights import Checkpoint


def convert(
    source: Annotated[
        str, Parameter(help="a checkpoint folder (its weights may be pickled), a hub id, or default")
    ],
    out: Annotated[Path, Parameter(help="the folder to write, which must not exist")],
    *,
    revision: RevisionOption = None,
    dtype: Annotated[
        Dtype | None, Parameter(help="dtype to write; default: the dtype of the word embedding")
    ] = None,
    shard_megabytes: Annotated[
        int | None,
        Parameter(
            help="maximum size of a weights file in megabytes (10^6 bytes); a larger tensor gets its own file"
        ),
    ] = None,
    ignore_tensor: IgnoreOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a checkpoint as safetensors, in another dtype or in shards.

    Pickled weights are copied as they are, without running any code in the pickle.
    """
    from unmask.weights.tensors import only_pickled

    if shard_megabytes is not None and shard_megabytes < 1:
        raise InvalidRequest(f"--shard-megabytes is {shard_megabytes}; it must be at least 1")

    if only_pickled(Path(source)):
        from unmask.weights.write.convert import convert_pickled

        if dtype is not None or shard_megabytes is not None or ignore_tensor:
            raise InvalidRequest(
                f"{source} holds pickled weights, which are copied as they are; "
                "convert the copy again for another dtype or shards, or without a tensor"
            )
        convert_pickled(Path(source), out)
    else:
        from unmask.weights import find, read_checkpoint

        checkpoint = read_checkpoint(find(source, revision), ignore_tensors=ignore_tensor or ())
        _rewrite(checkpoint, dtype, shard_megabytes, out)
    if json:
        print_json({"folder": str(out)})
    else:
        print(f"{out} is ready; see: unmask inspect {out}")


def _rewrite(checkpoint: "Checkpoint", dtype: Dtype | None, shard_megabytes: int | None, out: Path) -> None:
    from unmask.weights.build import build
    from unmask.weights.read.checkpoint_tensors import stored_dtype
    from unmask.weights.write.save import save

    encoder = build(checkpoint, dtype=dtype or stored_dtype(checkpoint))
    shard_bytes = None if shard_megabytes is None else shard_megabytes * 1_000_000
    save(encoder, checkpoint, out, shard_bytes=shard_bytes)
