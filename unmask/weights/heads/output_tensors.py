"""The output that a folder defines, and the stored tensors of its layers. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from unmask.errors import CorruptCheckpoint, TensorMismatch, UnsafeCheckpoint
from unmask.spec import CheckpointOutput, EncoderSpec
from unmask.spec.embedding_head import output_layers, pooled_width
from unmask.weights.heads.sentence_modules import layer_shapes
from unmask.weights.tensors import WEIGHTS, StoredTensor, tensors_of_file

PICKLED = "pytorch_model.bin"

STANFORD_TENSOR = "linear.weight"
"""The projection in the files of a ColBERT checkpoint by Stanford's code, beside the encoder's tensors."""


@dataclass(frozen=True)
class StoredOutput:
    """The output that a folder defines, and where its weights are."""

    head: CheckpointOutput
    folders: tuple[str, ...] = ()
    """The folder of the weights of each of its layers; "" for the encoder's own files."""


def output_tensors(
    folder: Path, output: StoredOutput, spec: EncoderSpec, encoder_tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Our name of each tensor of the output's layers, and where it is stored.

    Args:
        folder: the checkpoint's.
        output: its output.
        spec: its encoder.
        encoder_tensors: the tensors in the encoder's files.

    Raises:
        CorruptCheckpoint: a file is missing or damaged.
        UnsafeCheckpoint: a module's weights are pickled.
        TensorMismatch: a tensor is missing, has another shape than the folder says, or is not known.
    """
    tensors: dict[str, StoredTensor] = {}
    layers = output_layers(output.head)
    shapes = layer_shapes(layers, pooled_width(output.head, spec))
    for index, (shapes_of_layer, inside) in enumerate(zip(shapes, output.folders, strict=True)):
        if not shapes_of_layer:
            continue
        stored = encoder_tensors if inside == "" else _module_tensors(folder, inside)
        if inside != "":
            unknown = sorted(stored.keys() - shapes_of_layer.keys())
            if unknown:
                raise TensorMismatch(
                    f"{inside}/{WEIGHTS} holds {unknown[0]}, which its config.json does not ask for"
                )
        for name, shape in shapes_of_layer.items():
            where = str(PurePosixPath(inside, WEIGHTS))
            if name not in stored:
                raise TensorMismatch(f"{where} lacks the tensor {name}, which its config.json asks for")
            if stored[name].shape != shape:
                has, asked = (" x ".join(map(str, sizes)) for sizes in (stored[name].shape, shape))
                raise TensorMismatch(f"{name} in {where} has shape {has}, and the folder asks for {asked}")
            tensors[f"output.{index}.{name}"] = replace(stored[name], key=stored[name].key or name)
    return tensors


def _module_tensors(folder: Path, inside: str) -> Mapping[str, StoredTensor]:
    path = folder / inside / WEIGHTS
    if path.exists():
        return tensors_of_file(path)
    if (path.parent / PICKLED).exists():
        raise UnsafeCheckpoint(
            f"{path.parent} holds only pickled weights, which can run code when opened; "
            f"make a safe copy with: unmask convert {folder} NEW_FOLDER"
        )
    raise CorruptCheckpoint(f"modules.json names {inside}, whose {WEIGHTS} is not in the folder")
