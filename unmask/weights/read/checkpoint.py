"""A checkpoint as a plain value: everything that a folder declares, before any weight is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.checksums import Verified, check_files
from unmask.base.files import leaves_folder, read_bytes
from unmask.base.json_settings import JsonSettings
from unmask.errors import (
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidRequest,
    UnknownArchitecture,
    quoted,
)
from unmask.families import Compat, Family, family_of
from unmask.families.static import STATIC, TABLE
from unmask.spec import (
    CheckpointOutput,
    ClassHead,
    Classifier,
    ClassifierRole,
    EncoderSpec,
    LabelHead,
    PooledVector,
    Pruning,
    SchemaHead,
)
from unmask.spec.check import require_size
from unmask.spec.config import WITHOUT_EFFECT
from unmask.spec.config_keys import in_range
from unmask.text.build import SENTENCE_PIECE_LAYOUTS
from unmask.text.special import SpecialTokens
from unmask.text.tokenizer import TOKENIZER_FILES, Tokenizer
from unmask.weights.heads.embedding_head import EMBEDDING_FILES, TokenLayers, read_output, read_token_layers
from unmask.weights.heads.label_files import LABEL_CONFIG, LABEL_TOKENIZER, read_configs, with_segments
from unmask.weights.heads.pruning_files import read_pruning
from unmask.weights.heads.schema_files import SCHEMA_ENCODER
from unmask.weights.heads.sentence_modules import (
    STANFORD_TENSOR,
    STATIC_MODULE,
    StoredOutput,
    modules_of,
    output_tensors,
)
from unmask.weights.heads.sparse_files import encoder_folder, query_weights
from unmask.weights.read.find import Source
from unmask.weights.tensor_report import canonical
from unmask.weights.tensors import (
    LowRank,
    StoredTensor,
    TaskUpdates,
    check_stored_file,
    stored_tensors,
    with_rows,
    without_updates,
)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter's folder, without its weights."""

    name: str
    folder: Path
    role: ClassifierRole | None
    """Of its head; None for ``label_head``."""
    config: Mapping[str, Any]
    """The keys of config.json in which the adapted model differs from its base."""
    scale: float
    """The factor of the low-rank updates."""
    tensors: Mapping[str, StoredTensor]
    """The tensors of the head, by the names that they have in a checkpoint of the adapted model."""
    updates: Mapping[str, tuple[StoredTensor, StoredTensor]]
    """A and B of every updated matrix, by its name in a checkpoint."""
    base: str | None
    """The name of its base model."""
    fingerprint: str | None
    """Of the base's weights, see `unmask.weights.adapters.adapter`; None if unknown."""
    label_head: LabelHead | None = None
    """A head that finds entities of labels which the base reads; None if it has another one."""


TASK_KEYS = (
    *("load_trained_adapters", "lora_adaptations", "lora_alpha", "lora_dropout_p"),
    *("lora_main_params_trainable", "lora_rank", "task_instructions"),
)
"""Keys of config.json about updates for tasks, which a copy with one task's weights does not have."""

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCE_PIECE_LAYOUTS)
"""A folder without any of these has no tokenizer; `Tokenizer` decides whether one of them is enough."""

NO_LIMIT = 1_000_000
"""Published tokenizers use a huge number to mean that there is no limit."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A folder that holds an encoder: its spec, tokenizer, embedding head and stored tensors."""

    source: Source
    family: Family
    spec: EncoderSpec
    config: Mapping[str, Any]
    """The contents of config.json."""
    unread_config: tuple[str, ...]
    """Unknown keys of config.json; kept when saving."""
    tensors: Mapping[str, StoredTensor]
    stored_tokenizer: Tokenizer | None
    """The folder's tokenizer; None if it has none, so that only token ids can be used. See `tokenizer`."""
    head: CheckpointOutput
    """The output that it defines for a text."""
    max_tokens: int | None
    """The maximum number of tokens per text, special tokens included; None if there is no limit."""
    trained_tokens: int | None
    """The longest training text, if longer ones can be read; None if unknown."""
    sentence_files: Mapping[str, bytes]
    """The files of `sentence-transformers` that are kept unchanged."""
    verified: Verified | None = None
    """What was compared with the folder's checksums; None if it has none."""
    output_tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Our names of the tensors of the layers that the output adds, and where they are stored."""
    query_weights: NDArray[np.float32] | None = None
    """The weight of each word for queries, if queries are weighted without an encoder."""
    ignored_tensors: tuple[str, ...] = ()
    """Tensors of its files that were left out because the caller named them."""
    adapter: Adapter | None = None
    """The adapter whose head and updates the model has, see `unmask.weights.adapters.adapter.adapted`."""
    tasks: tuple[str, ...] = ()
    """The tasks for which the weight files hold low-rank updates (jina-embeddings-v3)."""
    task_updates: TaskUpdates = field(default_factory=dict)
    unpooled_id: int | None = None
    """The id of tokens that a static model leaves out of a text's mean; None if it leaves none out."""
    first_layers: int | None = None
    """How many of the folder's layers the spec has, see `with_first_layers`; None if it has all of them."""
    task: str | None = None
    """The task whose updates the weights have, see `of_task`."""
    label_head: LabelHead | None = None
    """The head that finds entities of labels named with the text (GLiNER); None if it has none."""
    label_tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    """The tensors of that head, or of `class_head`, by their names in the file."""
    label_config: Mapping[str, Any] = field(default_factory=dict)
    """The contents of the file that describes that head: gliner_config.json, or config.json of gliclass."""
    class_head: ClassHead | None = None
    """The head that scores classes named with the text (GLiClass); None if it has none."""
    schema_head: SchemaHead | None = None
    """The head that extracts what a schema names (GLiNER2); None if it has none."""
    pruning: Pruning | None = None
    """How its head that prunes documents is used; None if it has none."""
    pruning_config: Mapping[str, Any] = field(default_factory=dict)
    """The contents of config.json of OpenProvence, of which ``config`` is a part; empty for other folders."""
    label_encoder: "Checkpoint | None" = None
    """The second encoder, which reads the labels of that head; None if labels stand before the words."""

    def of_task(self, task: str) -> "Checkpoint":
        """With the updates of a task on its weights, and the task's prompt before every text.

        Raises:
            InvalidRequest: there is no such task.
        """
        if task not in self.tasks:
            raise InvalidRequest(
                f"the task is {quoted(task)}; {self.source.name} has weights for {self._named_tasks()}"
            )
        config = JsonSettings("config.json", dict(self.config))
        rank = config.get("lora_rank", 4)
        in_range(config, "lora_rank", rank, require_size)
        scale = config.get("lora_alpha", 1.0) / rank
        index = self.tasks.index(task)
        updated = {
            name: replace(self.tensors[name], update=LowRank(left, right, index, scale))
            for name, (left, right) in self.task_updates.items()
        }
        head = self.head
        if isinstance(head, PooledVector):
            prompts = dict(head.prompts) or config.get("task_instructions", {})
            prompt = JsonSettings("config.json's task_instructions", prompts).get(task, "")
            # The weights are those of one task, for whatever a text is.
            by_name = tuple((name, prompt) for name in (task, "query", "document") if prompt)
            head = replace(head, prompts=by_name, default_prompt=task if prompt else None)
        kept = {key: value for key, value in self.config.items() if key not in TASK_KEYS}
        return replace(self, task=task, tensors={**self.tensors, **updated}, head=head, config=kept)

    def require_task(self) -> None:
        """Refuse to read weights of several tasks as if they were of none.

        Raises:
            InvalidRequest: none of them was chosen.
        """
        if self.tasks and self.task is None:
            raise InvalidRequest(
                f"{self.source.name} has weights for several tasks; choose one with adapter= (--adapter): "
                f"{self._named_tasks()}"
            )

    def _named_tasks(self) -> str:
        return ", ".join(self.tasks) or "no tasks"

    def reading(self, special_tokens: SpecialTokens) -> "Checkpoint":
        """With a tokenizer for which special tokens typed in a text are their ids, or text."""
        stored = self.stored_tokenizer
        return self if stored is None else replace(self, stored_tokenizer=stored.reading(special_tokens))

    def token_layers(self) -> TokenLayers:
        """BGE-M3's layers of words and tokens, read from its folder.

        Raises:
            InvalidRequest: the folder has none.
            CheckpointError: they cannot be read.
        """
        return read_token_layers(self.source.folder, self.spec.state_width, self.source.name)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            CorruptCheckpoint: the folder has none.
        """
        if self.stored_tokenizer is None:
            raise CorruptCheckpoint(
                f"{self.source.folder} holds no tokenizer ({', '.join(VOCABULARIES)}), so no text can be "
                "read; copy the tokenizer's files into it, or give token ids"
            )
        return self.stored_tokenizer


def read_checkpoint(
    source: Source,
    compat: Compat = "published",
    *,
    verify: bool | None = None,
    ignore_tensors: Sequence[str] = (),
) -> Checkpoint:
    """Read everything except the weights themselves.

    Args:
        source: the location of the checkpoint.
        compat: which outputs to reproduce where the authors' code and `transformers` differ.
        verify: whether to compare the SHA-256 of every file with those written when the folder was saved;
            None does so if that takes little time, see `check_files`.
        ignore_tensors: tensors of the weight files that are left out, by their names.

    Raises:
        CheckpointError: the folder is not a valid checkpoint.
        InvalidRequest: ``verify`` is true and the folder has no checksums, or it has no such tensor.
    """
    root, folder = source.folder, encoder_folder(source.folder)
    has_config, first = (folder / "config.json").exists(), _first_module(root)
    has_labels = (folder / LABEL_CONFIG).exists()
    if not (has_config or has_labels) and first != STATIC_MODULE:
        raise _no_config(root, folder)
    verified = check_files(root, verify)
    stated, named = read_configs(
        *(
            JsonSettings.parse(_read(folder / name), name) if (folder / name).exists() else None
            for name in ("config.json", LABEL_CONFIG, SCHEMA_ENCODER)
        )
    )
    config, pruned = read_pruning(stated)
    if first == STATIC_MODULE and "model_type" not in config.values:
        config = JsonSettings(config.name, {"model_type": STATIC.model_types[0], **config.values})
    family = family_of(config.values)
    config = family.encoder_config(config)
    family, spec = with_segments(family, family.read(config, compat), named.class_head)
    stored, of_label_encoder, of_labels = named.split(
        pruned.renamed(_without(stored_tensors(folder), ignore_tensors, folder))
    )
    tensors, updates = without_updates(stored)
    if not spec.layers:
        tensors = with_rows(tensors)
    tasks = _tasks(config, updates)
    shapes = {canonical(name, family.prefixes): tensor.shape for name, tensor in tensors.items()}
    spec, pruning = pruned.of(family.detect_heads(spec, shapes, config), compat)
    sentence_files = {**_present(root, EMBEDDING_FILES), **_present(folder, EMBEDDING_FILES[2:])}
    output = _output(root, sentence_files, config, spec, tensors)
    from_output = output_tensors(root, output, spec, tensors)
    if "" in output.folders:
        tensors = {name: tensor for name, tensor in tensors.items() if name != STANFORD_TENSOR}
    tokenizer = _tokenizer(folder, config)
    if tokenizer is not None and lowers_case(sentence_files):
        tokenizer = tokenizer.lowercased()
    if tokenizer is not None and not spec.layers:
        tokenizer = tokenizer.without_special_tokens()
    if tokenizer is not None and tokenizer.vocabulary_size > spec.embedding.vocabulary:
        tokenizer = replace(tokenizer, known=spec.embedding.vocabulary)
    checkpoint = Checkpoint(
        source=source,
        family=family,
        spec=spec,
        config=config.values,
        unread_config=tuple(sorted(config.unread() - set(WITHOUT_EFFECT))),
        tensors=tensors,
        stored_tokenizer=tokenizer,
        head=output.head,
        max_tokens=max_tokens(spec, sentence_files, tokenizer),
        trained_tokens=trained_tokens(spec, tokenizer),
        sentence_files=sentence_files,
        verified=verified,
        ignored_tensors=tuple(ignore_tensors),
        output_tensors=from_output,
        query_weights=query_weights(root, output, tokenizer),
        tasks=tasks,
        task_updates=updates,
        unpooled_id=_unpooled_id(spec, tokenizer, tensors),
        label_head=named.label_head,
        label_tensors=of_labels,
        label_config=named.stated,
        class_head=named.class_head,
        schema_head=named.schema_head,
        pruning=pruning,
        pruning_config=pruned.stated,
    )
    if named.label_encoder is None:
        return checkpoint
    return _with_label_encoder(checkpoint, named.label_encoder, of_label_encoder, compat)


def _with_label_encoder(
    checkpoint: Checkpoint, config: JsonSettings, tensors: Mapping[str, StoredTensor], compat: Compat
) -> Checkpoint:
    """With the encoder that reads the labels of its head, whose tokenizer is in a folder of its own, or in
    that of the model that gliner_config.json names."""
    family = family_of(config.values)
    shapes = {canonical(name, family.prefixes): tensor.shape for name, tensor in tensors.items()}
    spec = family.detect_heads(family.read(config, compat), shapes, config)
    folder = checkpoint.source.folder / LABEL_TOKENIZER
    named = Path(checkpoint.label_config["labels_encoder"]).expanduser()
    tokenizer = _tokenizer(folder, config) or _tokenizer(named, config)
    of_labels = replace(
        checkpoint,
        source=Source(folder, f"the encoder of labels of {checkpoint.source.name}"),
        family=family,
        spec=spec,
        config=config.values,
        unread_config=tuple(sorted(config.unread() - set(WITHOUT_EFFECT))),
        tensors=tensors,
        stored_tokenizer=tokenizer,
        max_tokens=max_tokens(spec, {}, tokenizer),
        trained_tokens=trained_tokens(spec, tokenizer),
        label_head=None,
        label_tensors={},
        label_config={},
    )
    assert checkpoint.label_head is not None
    head = replace(checkpoint.label_head, labels_width=spec.width)
    return replace(checkpoint, label_head=head, label_encoder=of_labels)


def _tasks(config: JsonSettings, updates: TaskUpdates) -> tuple[str, ...]:
    """The names of the tasks of the weights' updates; none if there are no updates."""
    if not updates:
        return ()
    names = config.get_optional("lora_adaptations", list) or []
    counts = {left.shape[0] for left, _ in updates.values()}
    if counts != {len(names)} or not all(isinstance(name, str) for name in names):
        raise CorruptCheckpoint(
            f"config.json's lora_adaptations names {len(names)} tasks and the weights have updates for "
            f"{', '.join(map(str, sorted(counts)))}"
        )
    return tuple(names)


def _without(
    tensors: Mapping[str, StoredTensor], names: Sequence[str], folder: Path
) -> Mapping[str, StoredTensor]:
    absent = [name for name in names if name not in tensors]
    if absent:
        raise InvalidRequest(
            f"the tensor {quoted(absent[0])} is to be ignored and {folder} does not have it; "
            "unmask inspect --tensors lists what it has"
        )
    return {name: tensor for name, tensor in tensors.items() if name not in names} if names else tensors


def _no_config(root: Path, folder: Path) -> CheckpointError:
    """Why a folder has no config.json: its modules.json may begin with something other than a Transformer."""
    first = _first_module(root)
    if first not in (None, "Transformer"):
        return UnknownArchitecture(
            f"{root / 'modules.json'} begins with a {first} module, which is not built; use a checkpoint "
            "whose first module is a Transformer"
        )
    return CheckpointNotFound(f"{folder} holds no config.json, so it is not a checkpoint folder")


def _unpooled_id(
    spec: EncoderSpec, tokenizer: Tokenizer | None, tensors: Mapping[str, StoredTensor]
) -> int | None:
    """Model2Vec leaves unknown tokens out of a mean; a StaticEmbedding, whose table has another name, not."""
    return None if tokenizer is None or spec.layers or TABLE not in tensors else tokenizer.unknown_id


def _first_module(root: Path) -> str | None:
    """The kind of the first module of modules.json; None if there is none."""
    listed = root / "modules.json"
    first = next(iter(modules_of(_read(listed))), None) if listed.exists() else None
    return None if first is None else first.kind


def _output(
    folder: Path,
    files: Mapping[str, bytes],
    config: JsonSettings,
    spec: EncoderSpec,
    tensors: Mapping[str, StoredTensor],
) -> StoredOutput:
    """The output that the folder defines."""

    def open_file(name: str) -> bytes | None:
        # The hub's cache consists of symbolic links, so the name is checked without resolving it.
        inside = not leaves_folder(name) and (folder / name).exists()
        return _read(folder / name) if inside else None

    projection = tensors.get(STANFORD_TENSOR)
    classifiers = [head for head in spec.heads if isinstance(head, Classifier) and head.role == "sequence"]
    return read_output(
        files,
        open_file,
        config=config,
        classes=classifiers[0].classes if classifiers else None,
        stanford_width=None if projection is None else projection.shape[0],
        static=not spec.layers,
    )


def lowers_case(sentence_files: Mapping[str, bytes]) -> bool:
    """Whether sentence_bert_config.json asks to lower-case texts before they are tokenized."""
    name = "sentence_bert_config.json"
    return JsonSettings.parse(sentence_files.get(name), name).get_optional("do_lower_case", bool) or False


def max_tokens(
    spec: EncoderSpec, sentence_files: Mapping[str, bytes], tokenizer: Tokenizer | None
) -> int | None:
    """The smallest limit of positions, sentence_bert_config.json and tokenizer_config.json.

    If positions set no limit, the tokenizer's limit is that of training, and longer texts can be read.
    """
    limits = [spec.max_tokens, _limit(sentence_files, "sentence_bert_config.json", "max_seq_length")]
    if spec.max_tokens is not None and tokenizer is not None:
        limits.append(_limit(tokenizer.files, "tokenizer_config.json", "model_max_length"))
    return min((limit for limit in limits if limit is not None), default=None)


def trained_tokens(spec: EncoderSpec, tokenizer: Tokenizer | None) -> int | None:
    """The longest training text, if positions set no limit; a static model reads each word by itself."""
    if spec.max_tokens is not None or not spec.layers:
        return None
    files = {} if tokenizer is None else tokenizer.files
    return spec.trained_tokens or _limit(files, "tokenizer_config.json", "model_max_length")


def _tokenizer(folder: Path, config: JsonSettings) -> Tokenizer | None:
    """The folder's tokenizer; None if it has no vocabulary."""
    model_type, files = config.get_optional("model_type", str), _present(folder, TOKENIZER_FILES)
    return Tokenizer.from_files(files, model_type) if files.keys() & set(VOCABULARIES) else None


def _limit(files: Mapping[str, bytes], name: str, key: str) -> int | None:
    limit = JsonSettings.parse(files.get(name), name).get_optional(key, float)
    if limit is not None and not limit >= 1:
        raise CorruptCheckpoint(f"{name} says {key} is {limit:g}; it must be at least 1")
    return int(limit) if limit is not None and limit < NO_LIMIT else None


def _present(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: _read(folder / name) for name in names if (folder / name).exists()}


def _read(path: Path) -> bytes:
    check_stored_file(path)
    return read_bytes(path, CorruptCheckpoint)
