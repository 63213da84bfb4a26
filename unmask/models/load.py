"""Load a model by name, ready for inference. Torch is imported when something needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, overload

from unmask.base.arguments import check_choice, check_flag, listed
from unmask.engines.backend import Backend
from unmask.errors import CheckpointNotFound, InvalidRequest, KernelError, quoted
from unmask.families import Compat
from unmask.models.model import Model
from unmask.models.source import LoadedSource, LoadOptions
from unmask.text.special import SpecialTokens
from unmask.weights import find, read_checkpoint
from unmask.weights.adapters.adapter import adapted, find_adapter
from unmask.weights.elmo import find_elmo
from unmask.weights.read.checkpoint_tensors import DTYPE_NAMES, with_first_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from unmask.models.elmo import ElmoModel

__all__ = ["HoldsElmo", "Model", "load", "save"]


class HoldsElmo(InvalidRequest):
    """A folder holds an ELMo, and an encoder was to be loaded."""


@overload
def load(
    source: str | Path,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | int | torch.device | None = None,
    kernel: str | None = None,
    compat: Compat = "published",
    revision: str | None = None,
    verify: bool | None = None,
    family: None = None,
    adapter: str | Path | None = None,
    backend: Backend | None = None,
    special_tokens: SpecialTokens = "parse",
    ignore_tensors: Sequence[str] = (),
    layers: int | None = None,
) -> Model: ...


@overload
def load(
    source: str | Path,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | int | torch.device | None = None,
    revision: str | None = None,
    verify: bool | None = None,
    family: Literal["elmo"],
) -> ElmoModel: ...


def load(
    source: str | Path,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | int | torch.device | None = None,
    kernel: str | None = None,
    compat: Compat = "published",
    revision: str | None = None,
    verify: bool | None = None,
    family: Literal["elmo"] | None = None,
    adapter: str | Path | None = None,
    backend: Backend | None = None,
    special_tokens: SpecialTokens = "parse",
    ignore_tensors: Sequence[str] = (),
    layers: int | None = None,
) -> Model | ElmoModel:
    """Load an encoder for inference.

    Args:
        source: ``"default"``, ``"unmask-mini"``, a checkpoint folder, or a hub id such as ``owner/model``;
            ``"variant/alibi"`` and similar names are tiny models that each demonstrate one mechanism.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"float64"``; stored weights are
            converted to it. ``"int8"`` runs linear layers on 8-bit integers, on a CPU only;
            ``unmask bench accuracy`` measures the cost in accuracy.
        device: a torch device name, or the number of a GPU; None is the CPU.
        kernel: the attention kernel to use (see ``unmask kernels``); None uses the first
            that supports the model.
        compat: which outputs to reproduce where they differ: those of the authors' own code, or with ``"hf"``
            those of `transformers`.
        revision: a branch, tag or commit on the hub; the commit it resolves to is recorded.
        verify: whether to compare the SHA-256 of every file with the one that was saved with it; None does
            so for folders of up to 64 MB, which takes about 0.15 s. Sizes are always compared.
        family: ``"elmo"`` loads an ELMo, which is not a Transformer, as an `ElmoModel`, from a folder that
            `save_elmo` wrote or one with the authors' ``options.json`` and ``.hdf5``.
        adapter: a folder with an adapter, as `unmask.finetune` or `peft` writes it, or the name of one in the
            package unmask-models (``"sentiment"``, ``"entailment"``, ``"names"`` and ``"answers"``, of the
            model "default"). Its low-rank updates are added to the weights, and its head replaces the
            model's. Of a checkpoint with weights for several tasks (jina-embeddings-v3), the name of one,
            such as ``"retrieval.query"``; the task's prompt is then put before every text.
        backend: ``"native"`` runs the layers in unmask's own library for CPUs, ``"torch"`` in torch; None
            takes the native library where it was built and supports the model, the dtype and the processor
            (see ``unmask kernels``).
        special_tokens: what special tokens typed in a text become, such as ``[SEP]`` or ``</s>``: with
            ``"parse"`` their ids, as in `transformers`; with ``"text"`` ordinary text, for texts of
            strangers. `fill` reads mask tokens in both cases.
        ignore_tensors: names of tensors of the weight files that are left out, such as
            ``["loss_fct.weight"]``; a tensor that the architecture has no place for is refused otherwise.
        layers: how many of the first layers to load; the final norm, the output and the heads then read the
            states of the last of them. None loads all. Half of the layers take half of the time; how much a
            vector changes is small only for models that were trained at several depths (2D Matryoshka, Li et
            al. 2024), so measure it (``unmask evaluate``).

    Raises:
        CheckpointError: the checkpoint cannot be found, read or trusted.
        InvalidRequest: an argument is not one of those above.
        KernelError: there is no such kernel.
        MissingExtra: "default" was requested and its package is not installed.
    """
    check_choice("dtype", _dtype_name(dtype), (*DTYPE_NAMES, "int8"))
    number_format = str(_dtype_name(dtype))
    check_choice("compat", compat, get_args(Compat))
    if revision is not None and not isinstance(revision, str):
        raise InvalidRequest(f"revision is {quoted(revision)}; give a branch, a tag or a commit")
    check_flag("verify", verify)
    _check_kernel(kernel)
    if backend is not None:
        check_choice("backend", backend, get_args(Backend))
    check_choice("special_tokens", special_tokens, get_args(SpecialTokens))
    place = _device_name(device)
    folder_source = find(_checked_source(source), revision)
    elmo = find_elmo(folder_source.folder)
    if family is not None:
        check_choice("family", family, ("elmo",))
        if elmo is None:
            raise CheckpointNotFound(
                f"{folder_source.folder} holds no ELMo; leave family out to load an encoder"
            )
        if (
            kernel is not None
            or compat != "published"
            or number_format == "int8"
            or adapter is not None
            or backend
            or special_tokens != "parse"
            or ignore_tensors
            or layers is not None
        ):
            raise InvalidRequest(
                "an ELMo has no attention kernel, compat, adapter, backend, special_tokens, "
                "ignore_tensors, layers or int8; leave them out"
            )
        from unmask.models.elmo import ElmoModel
        from unmask.weights.build import DTYPES, device_named

        network = elmo.read(verify).to(device_named(place), DTYPES[number_format])
        return ElmoModel(network, folder_source.name, folder_source.folder)
    if elmo is not None:
        raise HoldsElmo(
            f"{folder_source.folder} holds an ELMo, which is not a Transformer; "
            "load it in Python with unmask.load(folder, family='elmo'); on the command line, unmask "
            "geometry, unmask senses and unmask explore read it"
        )
    checkpoint = read_checkpoint(
        folder_source, compat, verify=verify, ignore_tensors=listed("ignore_tensors", ignore_tensors)
    )
    checkpoint = checkpoint.reading(special_tokens)
    if checkpoint.tasks and adapter is not None:
        checkpoint = checkpoint.of_task(str(adapter))
    elif adapter is not None:
        checkpoint = adapted(checkpoint, find_adapter(adapter), compat)
    checkpoint = with_first_layers(checkpoint, layers)
    options: LoadOptions = {
        "dtype": number_format,
        "device": place,
        "kernel": kernel,
        "compat": compat,
        "backend": backend,
    }
    return Model(LoadedSource(checkpoint, options))


def save(model: Model, folder: str | Path, *, shard_bytes: int | None = None) -> None:
    """Write a loaded model as a checkpoint folder; see `Model.save`.

    Raises:
        InvalidRequest: ``model`` is no loaded model; and see `Model.save`.
        OutputError: the folder cannot be written.
    """
    if not isinstance(model, Model):
        raise InvalidRequest(f"model is {quoted(model)}; give what unmask.load returned")
    model.save(folder, shard_bytes=shard_bytes)


def _checked_source(source: object) -> str | Path:
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str) or not str(source):
        raise InvalidRequest(
            f"source is {quoted(source)}; name a checkpoint folder, a hub id such as owner/model, "
            "'unmask-mini' or 'default'"
        )
    path = os.fspath(source)
    try:
        os.stat(path)
    except FileNotFoundError:
        pass  # "default", a hub id, or a mistake that `find` explains
    except (OSError, ValueError) as error:  # the name is too long or contains a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointNotFound(f"{quoted(path)} cannot be opened: {reason}; name another folder") from None
    return path


def _check_kernel(kernel: object) -> None:
    if kernel is None:
        return
    from unmask.kernels import KERNELS

    names = [kernel_class.capability.name for kernel_class in KERNELS]
    if kernel not in names:
        raise KernelError(f"there is no kernel {quoted(kernel)}; there are {', '.join(names)}")


def _dtype_name(dtype: object) -> object:
    """The name of a type of torch; anything else as it is."""
    return str(dtype).removeprefix("torch.") if _is_of_torch(dtype, "dtype") else dtype


def _is_of_torch(value: object, name: str) -> bool:
    """Whether something is a ``torch.dtype`` or a ``torch.device``, found without importing torch."""
    return (type(value).__module__, type(value).__name__) == ("torch", name)


def _device_name(device: object) -> str | None:
    """The device name as `torch.device` spells it."""
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        device = f"cuda:{device}"
    if device is not None and not isinstance(device, str) and not _is_of_torch(device, "device"):
        raise InvalidRequest(f"device is {quoted(device)}; give one that torch knows, such as cpu or cuda")
    if device is not None and str(device).startswith("meta"):
        raise InvalidRequest("device is meta, which computes nothing; give cpu or cuda")
    return None if device is None else str(device)
