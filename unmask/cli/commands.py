"""The commands of the program: where each is, and the first sentence of its help.

A command is imported when it runs, so that starting the program and listing its commands need none of them.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    path: str
    """Its function or `cyclopts.App`, as ``module:name`` below `unmask.cli`."""
    help: str
    """The first sentence of its docstring; a test compares them."""

    @property
    def name(self) -> str:
        """That of its function; one that would hide a name of Python ends in an underscore there."""
        return self.function.rstrip("_").replace("_", "-")

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


_HELP = {
    "Used most": {
        "look.look:look": (
            "Show how an encoder reads a text: its tokens, and the pattern, entropy and sink of each head."
        ),
        "look.explore:explore": (
            "Open a local page that shows the attention and the inner workings of encoders on your text."
        ),
        "tasks.embed:embed": "Embed texts: the lines of files, or a column of tables.",
        "search.search:search": (
            "Search an index: the best passages with the document, page and characters of each."
        ),
        "train.finetune:finetune": (
            "Fine-tune an encoder on labeled data, as a TOML file describes; resumes a stopped run."
        ),
    },
    "Look inside": {
        "look.corpus:head": (
            "Show what one head does over a corpus: its patterns, its means, and its strongest examples."
        ),
        "look.corpus:sinks": (
            "Attention sinks over a corpus: which kinds of tokens receive attention, in which heads."
        ),
        "look.report:report": (
            "Write one HTML file with everything the explorer shows for a text, to share, keep or print."
        ),
        "look.gallery:gallery": (
            "Write a folder of saved pages, one for each text of a list, and an index.html with pictures."
        ),
        "look.geometry:geometry": (
            "Measure the geometry of hidden states: dimension, effective rank, anisotropy, collapse."
        ),
        "look.corpus:senses": (
            "Compare the vectors of one word across sentences, layer by layer: are its senses separated?"
        ),
        "look.compare:compare": (
            "Show which tokens of a text a model can predict: the loss of each, and the best guesses."
        ),
        "look.effects:attribute": (
            "Attribute a prediction to the tokens of a text: gradients, or attention weighted by gradients."
        ),
        "look.effects:patch": (
            "Patch activations between two texts: which state of the first brings its prediction back in the "
            "second."
        ),
        "look.features:features": (
            "Features of a layer by a sparse autoencoder: train them over a corpus, show those of a text."
        ),
        "look.watch:watch": (
            "Watch a step of pretraining on a text: corrupted tokens, targets and the loss of each."
        ),
    },
    "Use": {
        "tasks.similarity:similarity": (
            "Compare the embeddings of two texts, or of the two texts on every line of a file."
        ),
        "tasks.classify:classify": (
            "Predict the label of a text, or of every input of a file, with its probability."
        ),
        "tasks.tag:tag": "Find the entities of a text, or of every input of a file; or its words' labels.",
        "tasks.extract:extract": (
            "Extract the entities, relations, records and classes that a schema names, with a checkpoint of "
            "GLiNER2."
        ),
        "tasks.redact:redact": (
            "Replace personal data in a text, or in every input of a file: addresses, numbers, names."
        ),
        "tasks.answer:answer": (
            "Find the answer to a question in texts of any length, or to every question of a file."
        ),
        "tasks.answer:check_answer": (
            "Find the parts of an answer that its contexts do not support, with a checkpoint of "
            "LettuceDetect."
        ),
        "tasks.prune:prune": (
            "Keep the sentences of a document that a query needs, with a checkpoint of Provence or "
            "OpenProvence."
        ),
        "tasks.choose:choose": (
            "Choose between the choices of a question, or of every line, with the best one's probability."
        ),
        "tasks.pretrained:follows": (
            "Say whether one text follows another, for checkpoints with the head of BERT's or ALBERT's "
            "pretraining."
        ),
        "tasks.pretrained:fill": (
            "Predict the words at the mask tokens of a text, such as [MASK], or of every line of a file."
        ),
    },
    "Search": {
        "search.index:index": "Make an index of documents to search, or add to one.",
        "search.index:index_export": (
            "Write the passages of an index and their vectors for another vector store."
        ),
        "search.corpus:dedup": (
            "Find duplicate texts of files: equal ones, and those whose vectors are nearly the same."
        ),
        "search.corpus:topics": (
            "Group the texts of files into topics, with names, examples and the stability of each."
        ),
        "search.labeling:label_errors": (
            "Find labels of texts that are probably wrong, by a classifier that was fitted to other texts."
        ),
        "search.labeling:next_": (
            "Choose the texts of a pool to label next: those that a classifier would learn most from."
        ),
        "train.finetune:mine": (
            "Find documents near each query that probably do not answer it, as negatives for training."
        ),
    },
    "Train": {
        "train.finetune:pretrain": "Pretrain an encoder from a run file, or resume a stopped run.",
    },
    "Serve, and checkpoints": {
        "serve:serve": (
            "Serve models over HTTP: embeddings, scores of pairs, labels, entities, answers, words, search."
        ),
        "weights.inspect:inspect": (
            "Show a checkpoint's architecture, parameter count, tokenizer, and the use of its tensors."
        ),
        "weights.convert:convert": (
            "Copy a checkpoint as safetensors, in another dtype, in shards, or with the weights of one task."
        ),
        "weights.convert:export": (
            "Write an encoder as an ONNX graph, for ONNX Runtime, OpenVINO and other runtimes."
        ),
        "weights.convert:distill_static": (
            "Make a static model: a table of word vectors that embeds texts far faster than the encoder."
        ),
        "measure.models:models": (
            "List published checkpoints, those on this machine, and adapters; or rank them for a task."
        ),
        "measure.kernels:kernels": (
            "List the attention kernels, fastest first: what each supports, and where it runs here."
        ),
    },
    "Measure": {
        "measure.evaluate:evaluate": (
            "Evaluate an encoder: minimal pairs, masked words, parts of speech; heads; tasks; retrieval."
        ),
        "measure.bench:bench": "Measure speed, memory and accuracy of numbers on this machine.",
        "measure.scaling:scaling": (
            "Measure length scaling: time and peak memory, fitted as a + bN + cN², and the longest text."
        ),
    },
}

PANELS: dict[str, tuple[Command, ...]] = {
    title: tuple(Command(path, help) for path, help in commands.items()) for title, commands in _HELP.items()
}
"""The panels of the help text, in its order."""
