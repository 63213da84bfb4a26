"""The commands of the program: where each is, and the first sentence of its help.

A command is imported when it runs, so that starting the program and listing its commands need none of them.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    name: str
    path: str
    """Its function or `cyclopts.App`, as ``module:name`` below `unmask.cli`."""
    help: str
    """The first sentence of its docstring; a test compares them."""

    @property
    def module(self) -> str:
        """The whole name of its module."""
        return f"unmask.cli.{self.path.partition(':')[0]}"

    @property
    def function(self) -> str:
        """The name of its function."""
        return self.path.partition(":")[2]

    def load(self) -> Any:
        """The function, or the `cyclopts.App` of a group."""
        return getattr(import_module(self.module), self.function)


PANELS: dict[str, tuple[Command, ...]] = {
    "Used most": (
        Command(
            "look",
            "look.look:look",
            "Show how an encoder reads a text: its tokens, and the pattern, entropy and sink of each head.",
        ),
        Command(
            "explore",
            "look.explore:explore",
            "Open a local page that shows the attention and the inner workings of encoders on your text.",
        ),
        Command("embed", "tasks.embed:embed", "Embed texts: the lines of files, or a column of tables."),
        Command(
            "search",
            "search.search:search",
            "Search an index: the best passages with the document, page and characters of each.",
        ),
        Command(
            "finetune",
            "train.finetune:finetune",
            "Fine-tune an encoder on labeled data, as a TOML file describes; resumes a stopped run.",
        ),
    ),
    "Look inside": (
        Command(
            "head",
            "look.corpus:head",
            "Show what one head does over a corpus: its patterns, its means, and its strongest examples.",
        ),
        Command(
            "sinks",
            "look.corpus:sinks",
            "Attention sinks over a corpus: which kinds of tokens receive attention, in which heads.",
        ),
        Command(
            "report",
            "look.report:report",
            "Write one HTML file with everything the explorer shows for a text, to share, keep or print.",
        ),
        Command(
            "gallery",
            "look.gallery:gallery",
            "Write a folder of saved pages, one for each text of a list, and an index.html with pictures.",
        ),
        Command(
            "geometry",
            "look.geometry:geometry",
            "Measure the geometry of hidden states: dimension, effective rank, anisotropy, collapse.",
        ),
        Command(
            "senses",
            "look.corpus:senses",
            "Compare the vectors of one word across sentences, layer by layer: are its senses separated?",
        ),
        Command(
            "compare",
            "look.compare:compare",
            "Show which tokens of a text a model can predict: the loss of each, and the best guesses.",
        ),
        Command(
            "attribute",
            "look.effects:attribute",
            "Attribute a prediction to the tokens of a text: gradients, or attention weighted by gradients.",
        ),
        Command(
            "patch",
            "look.effects:patch",
            "Patch activations between two texts: which state of the first brings its prediction back in the "
            "second.",
        ),
        Command(
            "features",
            "look.features:features",
            "Features of a layer by a sparse autoencoder: train them over a corpus, show those of a text.",
        ),
        Command(
            "watch",
            "look.watch:watch",
            "Watch a step of pretraining on a text: corrupted tokens, targets and the loss of each.",
        ),
    ),
    "Use": (
        Command(
            "similarity",
            "tasks.similarity:similarity",
            "Compare the embeddings of two texts, or of the two texts on every line of a file.",
        ),
        Command(
            "classify",
            "tasks.classify:classify",
            "Predict the label of a text, or of every input of a file, with its probability.",
        ),
        Command(
            "tag",
            "tasks.tag:tag",
            "Find the entities of a text, or of every input of a file; or its words' labels.",
        ),
        Command(
            "redact",
            "tasks.redact:redact",
            "Replace personal data in a text, or in every input of a file: addresses, numbers, names.",
        ),
        Command(
            "answer",
            "tasks.answer:answer",
            "Find the answer to a question in texts of any length, or to every question of a file.",
        ),
        Command(
            "check-answer",
            "tasks.answer:check_answer",
            "Find the parts of an answer that its contexts do not support, with a checkpoint of "
            "LettuceDetect.",
        ),
        Command(
            "choose",
            "tasks.choose:choose",
            "Choose between the choices of a question, or of every line, with the best one's probability.",
        ),
        Command(
            "follows",
            "tasks.follows:follows",
            "Say whether one text follows another, for checkpoints with the head of BERT's or ALBERT's "
            "pretraining.",
        ),
        Command(
            "fill",
            "tasks.fill:fill",
            "Predict the words at the mask tokens of a text, such as [MASK], or of every line of a file.",
        ),
    ),
    "Search": (
        Command("index", "search.index:index", "Make an index of documents to search, or add to one."),
        Command(
            "index-export",
            "search.index:index_export",
            "Write the passages of an index and their vectors for another vector store.",
        ),
        Command(
            "dedup",
            "search.corpus:dedup",
            "Find duplicate texts of files: equal ones, and those whose vectors are nearly the same.",
        ),
        Command(
            "topics",
            "search.corpus:topics",
            "Group the texts of files into topics, with names, examples and the stability of each.",
        ),
        Command(
            "label-errors",
            "search.labeling:label_errors",
            "Find labels of texts that are probably wrong, by a classifier that was fitted to other texts.",
        ),
        Command(
            "next",
            "search.labeling:next_texts",
            "Choose the texts of a pool to label next: those that a classifier would learn most from.",
        ),
        Command(
            "mine",
            "train.finetune:mine",
            "Find documents near each query that probably do not answer it, as negatives for training.",
        ),
    ),
    "Train": (
        Command(
            "pretrain",
            "train.finetune:pretrain",
            "Pretrain an encoder from a run file, or resume a stopped run.",
        ),
    ),
    "Serve, and checkpoints": (
        Command(
            "serve",
            "serve:serve",
            "Serve models over HTTP: embeddings, scores of pairs, labels, entities, answers, words, search.",
        ),
        Command(
            "inspect",
            "weights.inspect:inspect",
            "Show a checkpoint's architecture, parameter count, tokenizer, and the use of its tensors.",
        ),
        Command(
            "convert",
            "weights.convert:convert",
            "Copy a checkpoint as safetensors, in another dtype, in shards, or with the weights of one task.",
        ),
        Command(
            "export",
            "weights.convert:export",
            "Write an encoder as an ONNX graph, for ONNX Runtime, OpenVINO and other runtimes.",
        ),
        Command(
            "distill-static",
            "weights.convert:distill_static",
            "Make a static model: a table of word vectors that embeds texts far faster than the encoder.",
        ),
        Command(
            "models",
            "measure.models:models",
            "List published checkpoints, those on this machine, and adapters; or rank them for a task.",
        ),
        Command(
            "kernels",
            "measure.kernels:kernels",
            "List the attention kernels, fastest first: what each supports, and where it runs here.",
        ),
    ),
    "Measure": (
        Command(
            "evaluate",
            "measure.evaluate:evaluate",
            "Evaluate an encoder: minimal pairs, masked words, parts of speech; heads; tasks; retrieval.",
        ),
        Command(
            "bench",
            "measure.bench:bench",
            "Measure speed, memory and accuracy of numbers on this machine.",
        ),
        Command(
            "scaling",
            "measure.scaling:scaling",
            "Measure length scaling: time and peak memory, fitted as a + bN + cN², and the longest text.",
        ),
    ),
}
"""The panels of the help text, in its order."""
