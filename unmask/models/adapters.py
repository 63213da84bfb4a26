"""One model with several adapters, which read texts together: each text with its own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from unmask.base.arguments import check_choice, listed
from unmask.base.optional import has_torch
from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest, quoted
from unmask.families import Compat
from unmask.models.model import Model
from unmask.models.source import LoadedSource, LoadOptions
from unmask.spec import Classifier
from unmask.spec.global_tokens import pack
from unmask.spec.heads import is_per_token
from unmask.spec.roles import ROLES
from unmask.tasks import Progress, answer, classify, tag
from unmask.tasks.answer import Answers
from unmask.tasks.batches import TOKENS_PER_PASS, batches, require_finite
from unmask.tasks.classify import Classification
from unmask.tasks.reader import Name, Reader, Ready
from unmask.tasks.tag import Tagging
from unmask.text import Encoding, PackedBatch
from unmask.text.special import SpecialTokens
from unmask.text.tokenizer import numbered
from unmask.weights import find, read_checkpoint
from unmask.weights.adapters.adapter import adapted, find_adapter
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import DTYPE_NAMES

if TYPE_CHECKING:
    from unmask.engines.native.engine import NativeEngine
    from unmask.engines.routed import RoutedEngine
    from unmask.engines.static import StaticEngine
    from unmask.engines.torch_engine import TorchEngine

Prediction = Classification | Tagging | Answers
"""What an adapter predicts, by the role of its head."""


def load_adapters(
    source: str | Path,
    adapters: Sequence[str | Path] | Mapping[str, str | Path],
    *,
    dtype: str = "float32",
    device: str | None = None,
    kernel: str | None = None,
    compat: Compat = "published",
    revision: str | None = None,
    special_tokens: SpecialTokens = "parse",
    ignore_tensors: Sequence[str] = (),
) -> "AdapterModel":
    """Load a model once, with several adapters.

    They share its weights in torch. Where torch is not installed, each has a copy in the native engine.

    Args:
        source: the model, as for `unmask.load`.
        adapters: folders or names, as for the argument ``adapter`` of `unmask.load`; or a dictionary, whose
            keys are then the names to choose them by.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"float64"``.
        device: a torch device name; None is the CPU.
        kernel: the attention kernel; None uses the first that supports the model.
        compat: see `unmask.load`.
        revision: see `unmask.load`.
        special_tokens: see `unmask.load`.
        ignore_tensors: see `unmask.load`.

    Raises:
        CheckpointError: the model or an adapter cannot be found or read.
        InvalidRequest: an adapter belongs to another model, or two have the same name.
    """
    if not isinstance(source, str | Path) or not str(source):
        raise InvalidRequest(f"source is {quoted(source)}; name a model as for unmask.load")
    check_choice("dtype", dtype, DTYPE_NAMES)
    check_choice("compat", compat, get_args(Compat))
    check_choice("special_tokens", special_tokens, get_args(SpecialTokens))
    ignored = listed("ignore_tensors", ignore_tensors)
    base = read_checkpoint(find(source, revision), compat, ignore_tensors=ignored).reading(special_tokens)
    if isinstance(adapters, Mapping):
        folders = {name: find_adapter(adapter) for name, adapter in adapters.items()}
    else:
        each = [find_adapter(adapter) for adapter in listed("adapters", adapters)]
        folders = {adapter.name: adapter for adapter in each}
        if len(folders) < len(each):
            raise InvalidRequest(
                f"two adapters have one name ({', '.join(adapter.name for adapter in each)}); "
                "give a dictionary"
            )
    if not folders:
        raise InvalidRequest("adapters is empty; name at least one")
    checkpoints = {name: adapted(base, adapter, compat) for name, adapter in folders.items()}
    heads = {}
    for name, checkpoint in checkpoints.items():
        if checkpoint.label_head is not None:
            raise InvalidRequest(
                f"the adapter {name} finds entities of labels that are named with the text; load it alone "
                "with unmask.load(..., adapter=...) and call tag"
            )
        (head,) = checkpoint.spec.heads
        assert isinstance(head, Classifier)
        if head.role == "choice":
            raise InvalidRequest(
                f"the adapter {name} answers with one of several choices; load it alone with "
                "unmask.load(..., adapter=...) and call choose"
            )
        heads[name] = head
    options: LoadOptions = {
        "dtype": dtype,
        "device": device,
        "kernel": kernel,
        "compat": compat,
        "backend": None,
    }
    return AdapterModel(base, _engine(base, list(checkpoints.values()), options), heads, checkpoints, options)


def _engine(
    base: Checkpoint, adapted: Sequence[Checkpoint], options: LoadOptions
) -> "RoutedEngine | SeparateEngines":
    if not has_torch():
        return SeparateEngines(adapted, options)
    from unmask.engines.routed import RoutedEngine

    return RoutedEngine(
        base, adapted, dtype=options["dtype"], device=options["device"], kernel=options["kernel"]
    )


class SeparateEngines:
    """A native engine for each adapter, in place of a `RoutedEngine`, which needs torch."""

    one_pass = False
    """Each adapter's sequences are read in a pass of their own."""

    def __init__(self, adapted: Sequence[Checkpoint], options: LoadOptions) -> None:
        self._engines = [LoadedSource(checkpoint, options).engine()[0] for checkpoint in adapted]

    def engine(self, adapter: int) -> "NativeEngine | TorchEngine | StaticEngine":
        """The engine of an adapter."""
        return self._engines[adapter]

    def logits(self, groups: Sequence[tuple[int, PackedBatch]], roles: Sequence[str]) -> list[Floats]:
        """See `RoutedEngine`."""
        return [self._engines[adapter].logits(batch, roles[adapter]) for adapter, batch in groups]


class AdapterModel:
    """A model with several adapters, see `load_adapters`."""

    def __init__(
        self,
        base: Checkpoint,
        engine: "RoutedEngine | SeparateEngines",
        heads: Mapping[str, Classifier],
        adapted: Mapping[str, Checkpoint],
        options: LoadOptions,
    ) -> None:
        self.checkpoint = base
        """The base model's checkpoint."""
        self.engine = engine
        """What runs."""
        self.heads = dict(heads)
        """The head of each adapter, by the adapter's name."""
        self._adapted, self._options = adapted, options
        self._readers = {
            name: Reader(checkpoint, checkpoint.source.name) for name, checkpoint in adapted.items()
        }

    def model(self, adapter: str | None = None) -> Model:
        """One adapter as a `Model`, or the model without an adapter. Weights are shared, and not copied.

        Results are those of ``unmask.load(source, adapter=adapter)`` up to the last digits. No module has the
        weights of one adapter, so its attention cannot be looked at.

        Raises:
            InvalidRequest: there is no adapter of that name.
        """
        if adapter is None:
            source, routed = LoadedSource(self.checkpoint, self._options), self.engine
            if isinstance(routed, SeparateEngines) or not routed.one_pass:
                return Model(source)
            return Model(source, routed.engine(None))
        (number,) = self._chosen([""], [adapter])
        return Model(LoadedSource(self._adapted[adapter], self._options), self.engine.engine(number))

    def predict(
        self,
        texts: Sequence[str],
        adapter_names: Sequence[str],
        pairs: Sequence[str | None] | None = None,
        *,
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Prediction]:
        """What each text's adapter predicts, all texts packed together.

        Args:
            texts: the texts; for an adapter that answers questions, the questions.
            adapter_names: the name of each text's adapter.
            pairs: the second text of each, or its context; None for those without one.
            overlap_tokens: tokens shared by neighboring windows of a long text.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.

        Returns:
            A `Classification`, `Tagging` or `Answers` for each text, as of `Model.classify`, `Model.tag` and
            `Model.answer` with their defaults.

        Raises:
            TextError: a text is empty, or not Unicode text.
            InvalidRequest: there is no adapter of that name, or the numbers of texts and names differ.
            NonFiniteResult: a logit is infinity or NaN.
        """
        inputs = listed("texts", texts)
        numbers = self._chosen(inputs, listed("adapter_names", adapter_names))
        seconds = [None] * len(inputs) if pairs is None else listed("pairs", pairs)
        if len(seconds) != len(inputs):
            raise InvalidRequest(
                f"{len(seconds)} pairs were given for {len(inputs)} texts; give one for each"
            )
        tasks = [
            self._prepared(text, second, adapter, overlap_tokens, partial(_always, name(index)))
            for index, (text, second, adapter) in enumerate(zip(inputs, seconds, adapter_names, strict=True))
        ]
        owners = [index for index, ready in enumerate(tasks) for _ in ready.encodings]
        values = iter(
            self._logits(
                [encoding for ready in tasks for encoding in ready.encodings],
                [numbers[owner] for owner in owners],
                progress,
                lambda place: name(owners[place]),
            )
        )
        return [ready.finish([next(values) for _ in ready.encodings])[0] for ready in tasks]

    def _prepared(
        self, text: str, second: str | None, adapter: str, overlap_tokens: int | None, name: Name
    ) -> Ready[Any]:
        """The task of an adapter for one text, whose results are those of the logits of its windows."""
        reader = self._readers[adapter]
        match self.heads[adapter].role:
            case "tokens":
                return tag.prepare(reader, [text], overlap_tokens=overlap_tokens, name=name)
            case "span":
                if second is None:
                    raise InvalidRequest(f"{name(0)} is a question without a context; give that in pairs")
                return answer.prepare(
                    reader, [text], [[second]], overlap_tokens=overlap_tokens, name=name, context_name=name
                )
            case _:
                pairs = None if second is None else [second]
                return classify.prepare(reader, [text], pairs, overlap_tokens=overlap_tokens, name=name)

    def _chosen(self, texts: Sequence[str], names: Sequence[str]) -> list[int]:
        """The number of each text's adapter."""
        if len(names) != len(texts):
            raise InvalidRequest(
                f"{len(names)} adapter_names were given for {len(texts)} texts; give one for each"
            )
        loaded = list(self.heads)
        for name in names:
            if name not in loaded:
                raise InvalidRequest(f"there is no adapter {quoted(name)}; loaded are {', '.join(loaded)}")
        return [loaded.index(name) for name in names]

    def _logits(
        self,
        encodings: Sequence[Encoding],
        adapters: Sequence[int],
        progress: Progress | None,
        name: Callable[[int], str],
    ) -> list[Floats]:
        """The logits of every text by its adapter's head."""
        heads, dtype = list(self.heads.values()), self._options["dtype"]
        roles = [head.role for head in heads]
        values: dict[int, Floats] = {}
        lengths = [len(encoding) for encoding in encodings]
        for group, _ in batches(lengths, lambda chosen: chosen, TOKENS_PER_PASS, progress):
            readers: dict[int, list[int]] = {}
            for index in group.tolist():
                readers.setdefault(adapters[index], []).append(index)
            packed = [
                (
                    number,
                    pack(
                        self.checkpoint.spec, [encodings[i] for i in mine], ROLES[roles[number]].global_tokens
                    ),
                )
                for number, mine in readers.items()
            ]
            for (number, batch), logits in zip(packed, self.engine.logits(packed, roles), strict=True):
                mine, per_token = readers[number], is_per_token(heads[number])
                rows = batch.layout.sequence_of_T if per_token else np.arange(len(mine))
                require_finite(logits, np.array(mine), rows, "a logit", name=name, dtype=dtype)
                for place, index in enumerate(mine):
                    values[index] = logits[batch.layout.rows(place) if per_token else place]
        return [values[index] for index in range(len(encodings))]


def _always(called: str, _: int) -> str:
    """The name of the only text of a call."""
    return called
