"""The head of GLiNER2 (Zaratiana et al. 2025) in numpy, from states of words and signs to scores.

Axes: W words of a text; F fields of a task; I instances of a record; Q queries, which are the fields of all
instances; N narrow width of the attention over fields; E experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from unmask.engines.engine import Floats
from unmask.engines.native.parts import activated
from unmask.errors import InvalidRequest
from unmask.spec import SchemaHead
from unmask.tasks.label_network import head_weights, linear, sigmoid, span_logits
from unmask.weights import Checkpoint
from unmask.weights.heads.schema_files import ATTENTION_HEADS, schema_shapes

SPANS = "span_rep.span_rep_layer."
COUNTS = "count_embed."


@dataclass(frozen=True, eq=False)
class SchemaNetwork:
    """The head with its weights, by their names in the file."""

    head: SchemaHead
    weights: Mapping[str, Floats]

    def count(self, state_D: Floats) -> int:
        """How many instances of a task a text has, from the state of the task's marker."""
        return int(self._layers("count_pred", state_D[None], 0, 2)[0].argmax())

    def class_logits(self, states_FD: Floats) -> Floats:
        """How well each class fits, (F,), from the states of their markers."""
        logits: Floats = self._layers("classifier", states_FD, 0, 2)[:, 0]
        return logits

    def queries(self, states_FD: Floats, count: int) -> Floats:
        """What spans are compared with, for each field of each instance, (I, F, D).

        A GRU steps over the numbers of instances, and begins with the state of the field.
        """
        places_ID = self.weights[f"{COUNTS}pos_embedding.weight"][:count]
        hidden_IFD = self._gru(places_ID, states_FD)
        match self.head.counting:
            case "projected":
                both = np.concatenate((hidden_IFD, np.broadcast_to(states_FD, hidden_IFD.shape)), axis=-1)
                return self._layers(f"{COUNTS}projector", both, 0, 2)
            case "attended":
                return self._attended(hidden_IFD + states_FD)
            case "experts":
                return self._experts(hidden_IFD)
            case _:
                assert_never(self.head.counting)

    def logits(self, words_WD: Floats, queries_QD: Floats) -> Floats:
        """How well each span fits each query, (words, widths, queries); negative infinity beyond the text."""
        return span_logits(self.weights, SPANS, words_WD, queries_QD, self.head.max_width)

    def _gru(self, inputs_ID: Floats, first_FD: Floats) -> Floats:
        """The states of a GRU (Cho et al. 2014) after each input, (I, F, D), with a first state per field."""
        weight, bias = self.weights[f"{COUNTS}gru.weight_ih_l0"], self.weights[f"{COUNTS}gru.bias_ih_l0"]
        recurrent = self.weights[f"{COUNTS}gru.weight_hh_l0"]
        recurrent_bias = self.weights[f"{COUNTS}gru.bias_hh_l0"]
        state_FD, states = first_FD, []
        for gates in inputs_ID @ weight.T + bias:
            reset, update, new = np.split(gates, 3)
            of_reset, of_update, of_new = np.split(state_FD @ recurrent.T + recurrent_bias, 3, axis=-1)
            update_gate = sigmoid(update + of_update)
            proposed = np.tanh(new + sigmoid(reset + of_reset) * of_new)
            state_FD = (1 - update_gate) * proposed + update_gate * state_FD
            states.append(state_FD)
        return np.stack(states)

    def _attended(self, x_IFD: Floats) -> Floats:
        """Fields of an instance attend to each other in two narrow layers, whose output is joined with x."""
        name = f"{COUNTS}transformer."
        y_IFN = self._linear(f"{name}in_projector", x_IFD)
        for layer in (f"{name}transformer.layers.{number}." for number in (0, 1)):
            y_IFN = self._normed(f"{layer}norm1", y_IFN + self._attention(f"{layer}self_attn", y_IFN))
            inner = np.maximum(self._linear(f"{layer}linear1", y_IFN), 0)
            y_IFN = self._normed(f"{layer}norm2", y_IFN + self._linear(f"{layer}linear2", inner))
        return self._layers(f"{name}out_projector", np.concatenate((y_IFN, x_IFD), axis=-1), 0, 2, 4)

    def _attention(self, name: str, y_IFN: Floats) -> Floats:
        packed = y_IFN @ self.weights[f"{name}.in_proj_weight"].T + self.weights[f"{name}.in_proj_bias"]
        heads = [
            part.reshape(*part.shape[:2], ATTENTION_HEADS, -1).swapaxes(1, 2)
            for part in np.split(packed, 3, axis=-1)
        ]
        scores = heads[0] @ heads[1].swapaxes(2, 3) / np.sqrt(heads[0].shape[-1]).astype(y_IFN.dtype)
        mixed = (_softmax(scores) @ heads[2]).swapaxes(1, 2).reshape(y_IFN.shape)
        return self._linear(f"{name}.out_proj", mixed)

    def _experts(self, x_IFD: Floats) -> Floats:
        """The sum of four networks, each weighted by how much a router asks for it."""
        asked = activated("gelu", self._linear(f"{COUNTS}router.0", x_IFD))
        gates_IFE = _softmax(self._linear(f"{COUNTS}router.2", asked))
        mixed = np.zeros_like(x_IFD)
        for expert in range(gates_IFE.shape[-1]):
            first, second = self.weights[f"{COUNTS}w1"][expert], self.weights[f"{COUNTS}w2"][expert]
            inner = activated("gelu", x_IFD @ first + self.weights[f"{COUNTS}b1"][expert])
            values = inner @ second + self.weights[f"{COUNTS}b2"][expert]
            mixed += gates_IFE[..., expert, None] * values
        return mixed

    def _layers(self, name: str, x: Floats, *numbers: int) -> Floats:
        """Dense layers with ReLU between them."""
        for place, number in enumerate(numbers):
            x = self._linear(f"{name}.{number}", x if place == 0 else np.maximum(x, 0))
        return x

    def _linear(self, name: str, x: Floats) -> Floats:
        return linear(self.weights, name, x)

    def _normed(self, name: str, x: Floats) -> Floats:
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + np.asarray(1e-5, x.dtype))
        values: Floats = scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return values


def _softmax(x: Floats) -> Floats:
    exponents = np.exp(x - x.max(-1, keepdims=True))
    p: Floats = exponents / exponents.sum(-1, keepdims=True)
    return p


def schema_network(checkpoint: Checkpoint) -> SchemaNetwork:
    """The head of a checkpoint of GLiNER2.

    Raises:
        InvalidRequest: the checkpoint has no such head.
        TensorMismatch: a tensor is missing, unexpected, or has another shape.
        CorruptCheckpoint: a number is not finite, or the file cannot be read.
    """
    head = checkpoint.schema_head
    if head is None:
        raise InvalidRequest(
            f"{checkpoint.source.name} has no head for schemas; use a checkpoint of GLiNER2, or tag texts "
            "with labels that you name (GLiNER) and classify them so (GLiClass)"
        )
    shapes = schema_shapes(head, checkpoint.spec.state_width)
    return SchemaNetwork(head, head_weights(checkpoint, shapes, "config.json"))
