"""Read the stored tensors of a checkpoint's files."""

from collections.abc import Collection, Mapping

from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.weights.read.checkpoint_tensors import damaged
from unmask.weights.tensors import StoredTensor


def read_tensors(stored: Mapping[str, StoredTensor], names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of these names.

    Raises:
        CorruptCheckpoint: a file cannot be read.

    A tensor with an update is read in float32, with the update; its factors are in the same file.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted({stored[name].file for name in names}):
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    if stored[name].file == path:
                        tensors[name] = file.get_tensor(stored[name].key or name)
                        update = stored[name].update
                        if update is not None:
                            factors = (update.left, update.right)
                            left_NR, right_RK = (
                                file.get_slice(str(one.key))[update.index].float() for one in factors
                            )
                            tensors[name] = tensors[name].float() + update.scale * (left_NR @ right_RK)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return tensors
