"""Fine-tuning of a head that finds entities of any label, saved as a folder that gliner loads.

The data are those of tagging, or texts with their entities as spans.

Axes: W words of a text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken

import unmask
from unmask.base.progress import counted
from unmask.encoder.encoder import Encoder
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.spec import LabelHead
from unmask.tasks.label_network import LabelNetwork, label_network
from unmask.tasks.label_spans import PromptEncoder, read_texts, search_for, spans_of, words_of
from unmask.tasks.reader import Reader
from unmask.tasks.schemes import entities_of
from unmask.tasks.tag import window_scores
from unmask.text import Tokenizer
from unmask.training.data.labeled import LabeledBatches
from unmask.training.finetune.card import card_metadata, choice_of_weights, file_names, yaml_lines
from unmask.training.finetune.metrics import check_metric, entity_figures
from unmask.training.finetune.records import Labeled, ReadingNotes, read_labeled
from unmask.training.finetune.result import FinetuneResult, labeled_inputs
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.start import with_config
from unmask.training.finetune.supervised import SupervisedRun, without_dev
from unmask.training.objectives.entities import EntityObjective, EntityText, LabelLayers
from unmask.training.objectives.specs import EntitySpec
from unmask.training.run.base_model import base_model_name, first_checkpoint, load_shared_tensors
from unmask.training.run.loop import evaluating
from unmask.weights import Checkpoint, Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.new_checkpoint import new_encoder

DROPOUT = 0.4
"""The rate in the head, as in gliner."""

FIGURES = ("precision", "recall", "f1")
"""Those of entities on the dev data."""

WORDS = "embedding.words.weight"


@dataclass
class EntityCounts:
    """What a set of records has."""

    texts: int = 0
    entities: int = 0
    long: int = 0
    """Entities with more words than spans can have."""
    late: int = 0
    """Entities beyond the last word that is read."""
    labels: set[str] = field(default_factory=set)

    def described(self, name: str, max_width: int) -> list[str]:
        """Sentences about them."""
        first = f"{name}: {counted(self.texts, 'text')}, {self.entities:,} entities of "
        sentences = [first + counted(len(self.labels), "label")]
        if self.long:
            sentences.append(
                f"{name}: {self.long:,} of the entities have more than {max_width} words, and "
                "no span finds them; raise entities.max_width to learn them"
            )
        if self.late:
            sentences.append(f"{name}: {self.late:,} entities are beyond the last word that is read")
        return sentences


def word_spans(record: Labeled, names: Mapping[str, str]) -> tuple[list[str], list[tuple[int, int, str]]]:
    """The words of a record, and its entities as the first word, the last word and the label.

    A record has words with a label of a tagging scheme each; or words with ``[first word, last word, label]``
    of each entity, as gliner's data; or a text with ``[start, end, label]`` in characters, of which the end
    is not a part, or objects with these keys. The words of a text are those that the head reads.

    Args:
        record: the record.
        names: other names of labels.

    Raises:
        InvalidText: its label is none of these, or an entity is not at the borders of words.
    """
    words, _, bounds_W2 = words_of(
        record.text if isinstance(record.text, str) else list(record.text), record.where
    )
    label = record.label
    if not isinstance(label, list | tuple):
        raise InvalidText(
            f"{record.where} has {quoted(label)} where its entities should be; give a list, or a label for "
            "each word"
        )
    if not isinstance(record.text, str) and label and all(isinstance(part, str) for part in label):
        if len(label) != len(words):
            raise InvalidText(
                f"{record.where} has {len(words)} words and {len(label)} labels; give one for each"
            )
        return words, [
            (first, end - 1, names.get(kind, kind)) for kind, first, end in entities_of(list(label))
        ]
    spans = []
    for part in label:
        first, last, name = _span_of(part, record.where)
        if isinstance(record.text, str):
            first, last = _words_at(first, last, bounds_W2, record)
        if not 0 <= first <= last < len(words):
            raise InvalidText(
                f"{record.where} has an entity from word {first} to word {last}, and {len(words)} words, "
                "counted from 0; mend it"
            )
        spans.append((first, last, names.get(name, name)))
    return words, spans


def _span_of(part: Any, where: str) -> tuple[int, int, str]:
    values = [part.get(key) for key in ("start", "end", "label")] if isinstance(part, Mapping) else part
    if (
        not isinstance(values, list | tuple)
        or [type(value) for value in values] != [int, int, str]
        or not values[2].strip()
    ):
        raise InvalidText(
            f"{where} has the entity {quoted(part)}; give [start, end, label], or an object with these keys"
        )
    return values[0], values[1], values[2]


def _words_at(start: int, end: int, bounds_W2: NDArray[np.int64], record: Labeled) -> tuple[int, int]:
    first, last = (np.flatnonzero(bounds_W2[:, side] == at) for side, at in ((0, start), (1, end)))
    if not (len(first) and len(last)):
        raise InvalidText(
            f"{record.where} has an entity from character {start} to {end}, "
            f"{quoted(record.text[start:end])}, which does not begin and end with words; mend it"
        )
    return int(first[0]), int(last[0])


def label_head(spec: EntitySpec, begun: Checkpoint) -> LabelHead:
    """The head to train: that of the first checkpoint, or a new one of the given sizes.

    Raises:
        InvalidRequest: a size differs from that of the first checkpoint's head, or its labels have an encoder
            of their own.
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
            "rnn_layers": 1,
            "max_words": 384,
        }
        head = LabelHead(**{**sizes, **stated})
        if head.rnn_layers and head.width % 2:
            raise InvalidRequest(
                f"entities.width is {head.width} and an LSTM needs an even one; change it, or set "
                "rnn_layers = 0"
            )
        return head
    if head.labels_width is not None:
        raise InvalidRequest(
            f"the labels of {name} have an encoder of their own, and such a head is not trained; start from "
            "a checkpoint whose labels stand before the text"
        )
    for key, value in stated.items():
        if value != getattr(head, key):
            raise InvalidRequest(
                f"entities.{key} is {value} and the head of {name} has {getattr(head, key)}; leave it out"
            )
    return head


def entity_checkpoint(settings: FinetuneSettings, begun: Checkpoint, head: LabelHead) -> Checkpoint:
    """What is saved in the end: the encoder without heads, with a tokenizer that has the head's markers.

    Raises:
        CheckpointError: the config asks for something that is not supported.
    """
    checkpoint = with_config(settings, begun, {})
    tokenizer = _with_markers(checkpoint.tokenizer, begun.config.get("model_type"), head)
    rows = max(begun.spec.embedding.vocabulary, tokenizer.vocabulary_size)
    spec = replace(
        checkpoint.spec, pooler=None, heads=(), embedding=replace(checkpoint.spec.embedding, vocabulary=rows)
    )
    config = {**checkpoint.config, "vocab_size": rows}
    stated = begun.label_config or {
        "max_types": settings.entities.max_types if settings.entities else 25,
        "model_name": begun.source.name,
    }
    return replace(
        checkpoint,
        spec=spec,
        config=config,
        stored_tokenizer=tokenizer,
        label_head=head,
        label_config=dict(stated),
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
        head = label_head(self.spec, begun)
        self.checkpoint = entity_checkpoint(settings, begun, head)
        self.reader = Reader(self.checkpoint, settings.name)
        limits = [it for it in (settings.data.max_tokens, self.checkpoint.max_tokens) if it is not None]
        self.max_tokens = min(limits, default=None)
        self.prompts = PromptEncoder(self.reader, head)
        self.records, counts = self._records(settings.data.train), EntityCounts()
        items = [self._item(record, counts) for record in self.records]
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
        encoder.requires_grad_(not settings.frozen)
        rate = DROPOUT if settings.model.head_dropout is None else settings.model.head_dropout
        layers = LabelLayers(head, encoder.spec.width, rate)
        if begun.label_head is not None and not resumed:
            layers.load_state_dict(_tensors(label_network(begun)))
        self.objective = EntityObjective(
            encoder,
            layers,
            prompts=self.prompts,
            labels=sorted(counts.labels),
            spec=self.spec,
            max_tokens=self.max_tokens,
        )
        return self.objective

    def inputs(self) -> Mapping[str, str]:
        """The records and the first checkpoint."""
        return labeled_inputs(self.settings, self.base, self.records, self.dev_records)

    def read_weights(self, folder: Any) -> None:
        """Also those of the head."""
        super().read_weights(folder)
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
        """With a card."""
        folder = self.export(figures, entity_card(self, figures, step))
        return FinetuneResult(self.settings.name, folder, self.loop.step, step, dict(figures))

    def _records(self, names: tuple[str, ...]) -> list[Labeled]:
        notes = ReadingNotes()
        records = list(read_labeled(names, self.settings.data, self.base, notes))
        self.describe(notes.sentences())
        return records

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
            pieces.ids, np.zeros_like(pieces.ids), np.empty(0), pieces=pieces, spans=tuple(read)
        )


def _characters(label: str, first: int, last: int, bounds_W2: NDArray[np.int64]) -> tuple[str, int, int]:
    return label, int(bounds_W2[first, 0]), int(bounds_W2[last, 1])


def _tensors(network: LabelNetwork) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in network.weights.items()}


def entity_card(run: EntityRun, figures: Mapping[str, float], step: int) -> str:
    """The text of README.md: metadata, data, scores and use."""
    settings, optimizer = run.settings, run.settings.optimizer
    base_model = base_model_name(settings.model.start_from, run.base)
    metadata = card_metadata(settings, base_model, "token-classification", "gliner", "entities")
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
    lines += ["## Use", "", "```python", "import unmask", "", 'model = unmask.load("path/to/this/folder")']
    lines += ['model.tag("A text.", labels=["person", "place"]).entities', "```", ""]
    return "\n".join(lines)
