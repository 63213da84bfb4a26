"""Fine-tuning of a head that finds entities of any label, saved as a folder that gliner loads.

The data are those of tagging, or texts with their entities as spans.

Axes: W words of a text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken

import unmask
from unmask.base.files import replaced_folder
from unmask.encoder.encoder import Encoder
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.spec import LabelHead
from unmask.tasks.label_network import LabelNetwork, label_network
from unmask.tasks.label_spans import PromptEncoder, read_texts, search_for, spans_of, words_of
from unmask.tasks.reader import Reader
from unmask.tasks.tag import window_scores
from unmask.text import Tokenizer
from unmask.training.data.labeled import LabeledBatches
from unmask.training.finetune.card import card_metadata, choice_of_weights, file_names, yaml_lines
from unmask.training.finetune.entity_records import EntityCounts, word_spans
from unmask.training.finetune.metrics import check_metric, entity_figures
from unmask.training.finetune.records import Labeled, ReadingNotes, read_labeled
from unmask.training.finetune.result import FinetuneResult, labeled_inputs
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.start import low_rank, with_config
from unmask.training.finetune.supervised import SupervisedRun, without_dev
from unmask.training.objectives.entities import EntityObjective, EntityText, LabelLayers
from unmask.training.objectives.specs import EntitySpec
from unmask.training.run.base_model import base_model_name, first_checkpoint, load_shared_tensors, source
from unmask.training.run.export import card_of
from unmask.training.run.loop import evaluating
from unmask.weights import Checkpoint, Source, read_checkpoint
from unmask.weights.adapters.adapter import fingerprint, label_encoder, label_encoder_keys
from unmask.weights.build import DTYPES, build
from unmask.weights.write.adapter_export import add_low_rank, write_adapter
from unmask.weights.write.new_checkpoint import new_encoder

DROPOUT = 0.4
"""The rate in the head, as in gliner."""

FIGURES = ("precision", "recall", "f1")
"""Those of entities on the dev data."""

WORDS = "embedding.words.weight"


def label_head(spec: EntitySpec, begun: Checkpoint, of_labels: Checkpoint | None) -> LabelHead:
    """The head to train: that of the first checkpoint, or a new one of the given sizes.

    Args:
        spec: the sizes.
        begun: the first checkpoint.
        of_labels: the encoder of labels that the settings name, of a new head.

    Raises:
        InvalidRequest: a size differs from that of the first checkpoint's head, or that has labels read in
            another way.
    """
    stated = {
        name: getattr(spec, name)
        for name in ("scores", "max_width", "width", "rnn_layers", "max_words")
        if getattr(spec, name) is not None
    }
    head, name = begun.label_head, begun.source.name
    if head is None:
        sizes = {
            "scores": "spans",
            "max_width": 12,
            "width": begun.spec.width,
            "rnn_layers": 1 if of_labels is None else 0,
            "max_words": 384,
        }
        labels_width = None if of_labels is None else of_labels.spec.width
        head = LabelHead(**{**sizes, **stated}, labels_width=labels_width)
        if head.rnn_layers and of_labels is not None:
            raise InvalidRequest(
                f"entities.rnn_layers is {head.rnn_layers}, and words pass through no LSTM beside an encoder "
                "of labels; leave it out"
            )
        if head.rnn_layers and head.width % 2:
            raise InvalidRequest(
                f"entities.width is {head.width} and an LSTM needs an even one; change it, or set "
                "rnn_layers = 0"
            )
        return head
    if of_labels is not None:
        raise InvalidRequest(
            f"entities.labels_encoder is {spec.labels_encoder}, and {name} has a head of labels; leave it out"
        )
    for key, value in stated.items():
        if value != getattr(head, key):
            raise InvalidRequest(
                f"entities.{key} is {value} and the head of {name} has {getattr(head, key)}; leave it out"
            )
    return head


def entity_checkpoint(
    settings: FinetuneSettings, begun: Checkpoint, head: LabelHead, of_labels: Checkpoint | None
) -> Checkpoint:
    """What is saved in the end: the encoder without heads, with a tokenizer that has the head's markers, or
    with the encoder of labels.

    Raises:
        CheckpointError: the config asks for something that is not supported.
    """
    checkpoint = with_config(settings, begun, {})
    tokenizer = checkpoint.tokenizer
    if head.labels_width is None:
        tokenizer = _with_markers(tokenizer, begun.config.get("model_type"), head)
    rows = max(begun.spec.embedding.vocabulary, tokenizer.vocabulary_size)
    spec = replace(
        checkpoint.spec, pooler=None, heads=(), embedding=replace(checkpoint.spec.embedding, vocabulary=rows)
    )
    config = {**checkpoint.config, "vocab_size": rows}
    stated = begun.label_config or {
        "max_types": settings.entities.max_types if settings.entities else 25,
        "model_name": begun.source.name,
    }
    if of_labels is not None:
        stated = {**stated, **label_encoder_keys(of_labels)}
    return replace(
        checkpoint,
        spec=spec,
        config=config,
        stored_tokenizer=tokenizer,
        label_head=head,
        label_config=dict(stated),
        label_encoder=of_labels or begun.label_encoder,
    )


def _with_markers(tokenizer: Tokenizer, model_type: str | None, head: LabelHead) -> Tokenizer:
    """The tokenizer with the tokens that stand beside labels, after all others."""
    missing = [
        token for token in ("[FLERT]", head.entity, head.separator) if tokenizer.token_to_id(token) is None
    ]
    if not {head.entity, head.separator} & set(missing):
        return tokenizer
    engine = type(tokenizer.engine).from_str(tokenizer.engine.to_str())
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
    written = {name: content for name, content in tokenizer.files.items() if name == "tokenizer_config.json"}
    described = json.loads(written.get("tokenizer_config.json", b"{}"))
    described.pop("added_tokens_decoder", None)
    described["tokenizer_class"] = "PreTrainedTokenizerFast"
    for role, token in tokenizer.special_tokens.items():
        described.setdefault(f"{role}_token", token)
    files = {
        "tokenizer.json": engine.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(described, indent=2, sort_keys=True) + "\n").encode(),
    }
    return Tokenizer.from_files(files, model_type)


def entity_encoder(
    checkpoint: Checkpoint, begun: Checkpoint, kernel: str | None, *, weights: bool
) -> Encoder:
    """The encoder with the first checkpoint's weights; vectors of new tokens are the mean of the others."""
    encoder = new_encoder(checkpoint, kernel=kernel)
    if weights:
        stored = build(begun).state_dict()
        table = stored[WORDS]
        more = encoder.spec.embedding.vocabulary - len(table)
        stored[WORDS] = torch.cat((table, table.mean(0, keepdim=True).expand(more, -1)))
        load_shared_tensors(encoder, stored, begun.source.name)
    return encoder


class EntityRun(SupervisedRun):
    """The run of a head that finds entities of any label, see `SupervisedRun`."""

    objective: EntityObjective
    dev: list[tuple[list[str], list[tuple[int, int, str]]]]
    """The words and entities of each dev text."""

    def build(self, *, resumed: bool) -> EntityObjective:
        """Records, the checkpoint with its head, tokens, and the objective."""
        settings = self.settings
        assert settings.entities is not None
        self.spec = settings.entities
        check_metric(settings.evaluation.metric, FIGURES)
        begun = first_checkpoint(settings, self.base)
        of_labels = None
        if self.spec.labels_encoder is not None:
            of_labels = label_encoder(read_checkpoint(source(self.spec.labels_encoder, self.base)))
        head = label_head(self.spec, begun, of_labels)
        self.begun, self.checkpoint = begun, entity_checkpoint(settings, begun, head, of_labels)
        self.reader = Reader(self.checkpoint, settings.name)
        limits = [it for it in (settings.data.max_tokens, self.checkpoint.max_tokens) if it is not None]
        self.max_tokens = min(limits, default=None)
        self.prompts = PromptEncoder(self.reader, head)
        counts = EntityCounts()
        items = self._items(counts)
        self.describe(counts.described("train", head.max_width))
        if not counts.labels:
            raise InvalidRequest("the training data have no entities; name data with at least one")
        self.prompts.prompt(sorted(counts.labels))
        self.dev_records = self._records(settings.data.dev) if settings.data.dev else []
        self.dev = [word_spans(record, settings.data.rename_labels) for record in self.dev_records]
        self.training = LabeledBatches(
            items, batch_size=settings.batch_size, micro_batches=settings.micro_batches, seed=settings.seed
        )
        torch.manual_seed(settings.seed)
        encoder = entity_encoder(self.checkpoint, begun, settings.model.kernel, weights=not resumed)
        how = low_rank(settings)
        encoder.requires_grad_(not settings.frozen and settings.adapter is None)
        if how is not None:
            add_low_rank(encoder, self.checkpoint.family, how)
        rate = DROPOUT if settings.model.head_dropout is None else settings.model.head_dropout
        layers = LabelLayers(head, encoder.spec.width, rate)
        if begun.label_head is not None and not resumed:
            layers.load_state_dict(_tensors(label_network(begun)))
        self.objective = EntityObjective(
            encoder,
            layers,
            prompts=self.prompts,
            spec=self.spec,
            max_tokens=self.max_tokens,
        )
        return self.objective

    def inputs(self) -> Mapping[str, str]:
        """The records and the first checkpoint."""
        return labeled_inputs(self.settings, self.base, self.records, self.dev_records)

    def read_weights(self, folder: Path) -> None:
        """Also those of the head."""
        super().read_weights(folder)
        if self.settings.adapter is not None:
            return
        stored = read_checkpoint(Source(folder, self.settings.name))
        self.objective.layers.load_state_dict(_tensors(label_network(stored)))

    def dev_figures(self) -> dict[str, float]:
        """Figures of entities, with ``data.labels`` or else all labels of the dev data before each text."""
        names = self.settings.data.labels or sorted({label for _, spans in self.dev for _, _, label in spans})
        if not names:
            raise InvalidRequest("the dev data have no entities; name data with at least one, or data.labels")
        with evaluating(self.objective):
            predicted = self._predicted(names)
        gold = []
        for words, spans in self.dev:
            _, _, bounds_W2 = words_of(words, "a dev text")
            gold.append([_characters(label, first, last, bounds_W2) for first, last, label in spans])
        return entity_figures(gold, predicted)

    def _predicted(self, names: Sequence[str]) -> list[list[tuple[str, int, int]]]:
        """The label and the characters of the entities of each dev text, with its words joined by spaces."""
        head = self.prompts.head
        arrays = {name: tensor.float().cpu().numpy() for name, tensor in self.objective.beside().items()}
        search = search_for(names, self.spec.threshold, nested=False, multi_label=False)
        texts = read_texts(
            self.reader,
            head,
            [words for words, _ in self.dev],
            names,
            truncation="window",
            overlap=None,
            name=lambda index: f"dev text {index + 1}",
        )
        logits = iter(
            window_scores(
                TorchEngine(self.encoder),
                network=LabelNetwork(head, arrays),
                encodings=[window for text in texts for window in text.windows],
                name=lambda _: "a dev text",
            )
        )
        return [
            [
                _characters(names[span.label], span.first, span.last, text.bounds)
                for span in spans_of(text, [next(logits).logits for _ in text.windows], search, head)
            ]
            for text in texts
        ]

    def finish_best(self, figures: Mapping[str, float], step: int) -> FinetuneResult:
        """With a card, and an adapter if the settings say so and the base reads the labels."""
        settings = self.settings
        folder = self.export(figures, entity_card(self, figures, step))
        adapter = self.out / "adapter" if settings.adapter is not None and self._reads_labels() else None
        if adapter is not None and settings.adapter is not None and self.ranks.first:
            card = card_of(settings, self.base, entity_card(self, figures, step, adapter=True))
            with replaced_folder(adapter) as partial:
                write_adapter(
                    self.encoder,
                    self.checkpoint,
                    None,
                    partial,
                    name=settings.name,
                    base=self.begun,
                    how=low_rank(settings),
                    card=card,
                    dtype=DTYPES[settings.adapter.dtype],
                    labels=self.objective.beside(),
                )
        return FinetuneResult(settings.name, folder, self.loop.step, step, dict(figures), adapter)

    def _reads_labels(self) -> bool:
        """Whether the first checkpoint reads the labels, as that of an adapter must."""
        labels = self.checkpoint.label_encoder
        own_head = self.begun.label_head is not None
        if labels is not None and not own_head and fingerprint(labels) == fingerprint(self.begun):
            return True
        self.callback.say(
            "no adapter is written, because its base must read the labels; set entities.labels_encoder to "
            "model.start_from for that"
        )
        return False

    def _records(self, names: tuple[str, ...]) -> list[Labeled]:
        notes = ReadingNotes()
        records = list(read_labeled(names, self.settings.data, self.base, notes))
        self.describe(notes.sentences())
        return records

    def _items(self, counts: EntityCounts) -> list[EntityText]:
        """The texts of every file, each with the labels that others are drawn of."""
        self.records: list[Labeled] = []
        items: list[EntityText] = []
        for name in self.settings.data.train:
            records, of_file = self._records((name,)), EntityCounts()
            read = [self._item(record, of_file) for record in records]
            labels = tuple(sorted(of_file.labels))
            self.records += records
            items += [replace(item, labels=labels) for item in read]
            counts.add(of_file)
        if self.spec.negatives == "file":
            return items
        labels = tuple(sorted(counts.labels))
        return [replace(item, labels=labels) for item in items]

    def _item(self, record: Labeled, counts: EntityCounts) -> EntityText:
        words, spans = word_spans(record, self.settings.data.rename_labels)
        pieces = self.prompts.pieces(words, record.where)
        place = {int(word): index for index, word in enumerate(pieces.present)}
        head = self.prompts.head
        read = [
            (place[first], place[last], label)
            for first, last, label in spans
            if {first, last} <= place.keys()
        ]
        counts.texts, counts.entities = counts.texts + 1, counts.entities + len(spans)
        counts.labels |= {label for _, _, label in read}
        if head.scores == "spans":
            counts.long += sum(last - first >= head.max_width for first, last, _ in read)
        counts.late += sum(last >= head.max_words for _, last, _ in read)
        return EntityText(
            pieces.ids, np.zeros_like(pieces.ids), np.empty(0), pieces=pieces, spans=tuple(read), labels=()
        )


def _characters(label: str, first: int, last: int, bounds_W2: NDArray[np.int64]) -> tuple[str, int, int]:
    return label, int(bounds_W2[first, 0]), int(bounds_W2[last, 1])


def _tensors(network: LabelNetwork) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in network.weights.items()}


def entity_card(run: EntityRun, figures: Mapping[str, float], step: int, *, adapter: bool = False) -> str:
    """The text of README.md of a model, or of an adapter: metadata, data, scores and use."""
    settings, optimizer = run.settings, run.settings.optimizer
    base_model = base_model_name(settings.model.start_from, run.base)
    metadata = card_metadata(
        settings, base_model, "token-classification", "unmask" if adapter else "gliner", "entities"
    )
    lines = ["---", *yaml_lines(metadata), "---", "", f"# {settings.name}", ""]
    lines += [
        f"Finds entities of labels that are named with the text; trained from {base_model} with unmask "
        f"{unmask.__version__}.",
        "",
    ]
    if figures:
        lines += [f"On {file_names(settings.data.dev)}:", "", "| figure | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4f} |" for name, value in without_dev(figures).items()] + [""]
    lines += choice_of_weights(settings, step, "texts")
    lines += ["## Training", "", *(f"- {sentence}" for sentence in run.described)]
    lines += [
        f"- {run.loop.step:,} steps of {settings.batch_size:,} texts, {optimizer.kind}, learning rate "
        f"{optimizer.learning_rate:g}, seed {settings.seed}, precision {settings.precision}",
        "",
    ]
    load = 'model = unmask.load("path/to/this/folder")'
    if adapter:
        load = f'model = unmask.load("{base_model}", adapter="path/to/this/folder")'
    lines += ["## Use", "", "```python", "import unmask", "", load]
    lines += ['model.tag("A text.", labels=["person", "place"]).entities', "```", ""]
    return "\n".join(lines)
