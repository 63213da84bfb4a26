"""An encoder over padded batches, with its outputs, as `torch.export` can follow it."""

from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import ClassificationHead, MaskedLMHead, pool_padded, token_vectors
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.linear_attention import LinearMixer, log_features
from unmask.engines.export import OutputName
from unmask.engines.export.padded_attention import PaddedAttention
from unmask.errors import InvalidRequest
from unmask.spec import (
    BlockSparse,
    CheckpointOutput,
    EncoderSpec,
    ExpertFeedForward,
    MultiVector,
    NoPosition,
    PooledVector,
    Rotary,
    SlidingWindowGlobal,
    SoftmaxAttention,
    SparseVector,
    UnitLength,
)
from unmask.spec.encoder import head_of, why_no_decoder


def why_not_padded(spec: EncoderSpec) -> str | None:
    """The reason why the encoder cannot be exported, as a clause; None if it can."""
    for layer in spec.layers:
        if isinstance(layer.feedforward, ExpertFeedForward):
            return "a graph that sends each token to some of several experts is not built"
        mixer = layer.mixer
        if not isinstance(mixer, SoftmaxAttention):
            continue
        if mixer.sinks:
            return "a graph of attention sinks is not built"
        if isinstance(mixer.pattern, BlockSparse) and mixer.pattern.heads_differ:
            return (
                "its heads attend to random blocks that are drawn anew for each length, and a graph has no "
                "such generator; with compat hf it is read as transformers evaluates it, without them"
            )
        if isinstance(mixer.pattern, SlidingWindowGlobal) and not isinstance(
            mixer.position, NoPosition | Rotary
        ):
            return f"global tokens with {type(mixer.position).__name__} positions are not built as a graph"
    return None


class PaddedLinear(nn.Module):
    """One `LinearMixer` over padded texts; padding has no features."""

    def __init__(self, mixer: LinearMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x_BND: Tensor, present_BN: Tensor, table_PD: Tensor | None) -> Tensor:
        """Shape (B, N, D) in and out."""
        mixer, spec = self.mixer, self.mixer.spec
        qkv_BN3HK = mixer.qkv(x_BND).unflatten(-1, (3, spec.heads, spec.head_width))
        q_BHNK, k_BHNK, v_BHNK = (x_BHNK.transpose(1, 2) for x_BHNK in qkv_BN3HK.unbind(2))
        present_B1N1 = present_BN[:, None, :, None]
        if mixer.projection is None:
            q_BHNM, k_BHNM = functional.elu(q_BHNK) + 1, functional.elu(k_BHNK) + 1
            added = spec.eps
        else:
            rows_MK, added = mixer.projection.to(q_BHNK.dtype), 0.0
            q_BHNM, k_BHNM = log_features(q_BHNK, rows_MK), log_features(k_BHNK, rows_MK)
            k_BHNM = k_BHNM.masked_fill(~present_B1N1, torch.finfo(k_BHNM.dtype).min)
            q_BHNM = (q_BHNM - q_BHNM.amax(-1, keepdim=True)).exp() + spec.eps
            k_BHNM = (k_BHNM - k_BHNM.amax((-1, -2), keepdim=True)).exp() + spec.eps
        k_BHNM = k_BHNM * present_B1N1
        sums_BHNK = q_BHNM @ (k_BHNM.mT @ v_BHNK)
        o_BHNK = sums_BHNK / (q_BHNM @ k_BHNM.sum(-2)[..., None] + added)
        y_BND: Tensor = mixer.out(o_BHNK.transpose(1, 2).flatten(-2))
        return y_BND


class PaddedEncoder(nn.Module):
    """An encoder that reads ``input_ids``, ``attention_mask`` and ``token_type_ids``, (B, N) each.

    Padding is at the end of each text; every text has at least one token. Results at padding are finite and
    mean nothing. Weights are those of ``encoder``.

    Args:
        encoder: in float32, on the CPU.
        output: what the checkpoint gives.
        outputs: what to compute, see `OutputName`.
        role: the head whose logits are computed.
        longest: the most tokens of a text.
        global_tokens: how many tokens at the beginning of each text are global, where a pattern has such.
        rows: queries of full attention whose scores are computed at once; see `PaddedAttention`.

    Raises:
        InvalidRequest: the encoder has no such output, or cannot be exported.
    """

    def __init__(
        self,
        encoder: Encoder,
        output: CheckpointOutput | None,
        *,
        outputs: tuple[OutputName, ...],
        role: str | None,
        longest: int,
        global_tokens: int = 0,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        reason = why_not_padded(encoder.spec)
        if reason is not None:
            raise InvalidRequest(f"the encoder cannot be exported, because {reason}")
        self.encoder, self.output, self.outputs, self.role = encoder, output, outputs, role
        self.global_tokens, self.longest = global_tokens, longest
        for name in outputs:
            self._check(name)
        by_mixer: dict[int, nn.Module] = {}
        mixers: list[nn.Module] = []
        for layer in range(len(encoder.spec.layers)):
            mixer = encoder.block(layer).attention
            if id(mixer) not in by_mixer:
                by_mixer[id(mixer)] = (
                    PaddedAttention(mixer, longest, global_tokens=global_tokens, rows=rows)
                    if isinstance(mixer, SoftmaxMixer)
                    else PaddedLinear(mixer)
                )
            mixers.append(by_mixer[id(mixer)])
        self.mixers = nn.ModuleList(mixers)
        blocks = [padded.block for padded in by_mixer.values() if isinstance(padded, PaddedAttention)]
        self.example_tokens = min(longest, 3 * max(blocks, default=0) + 37)
        """Tokens of a text by which the graph can be traced: several blocks of each window."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The outputs, in the order in which they were asked for; without token types, all are 0."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        present_BN = attention_mask > 0
        x_BND = self._states(input_ids, present_BN, token_type_ids)
        return tuple(self._give(name, x_BND, present_BN) for name in self.outputs)

    def _check(self, name: OutputName) -> None:
        """Refuse an output that the checkpoint does not have."""
        kinds: dict[str, type] = {
            "sentence_embedding": PooledVector,
            "token_embeddings": MultiVector,
            "sparse_embedding": SparseVector,
        }
        if name in kinds and not isinstance(self.output, kinds[name]):
            has = "no output of its own" if self.output is None else type(self.output).__name__
            raise InvalidRequest(f"the checkpoint has no {name}, but {has}; choose another output")
        if (
            name == "sentence_embedding"
            and isinstance(self.output, PooledVector)
            and not self.output.pools_prompt
        ):
            raise InvalidRequest(
                "the checkpoint does not pool the tokens of a prompt, and a graph does not know which tokens "
                "these are; export last_hidden_state and pool it yourself"
            )
        if name != "logits":
            return
        if self.role is None:
            raise InvalidRequest("the checkpoint has no head, so it has no logits; choose another output")
        head_of(self.encoder.spec, self.role)
        if self.role == "enhanced" and why_no_decoder(self.encoder.spec) is None:
            raise InvalidRequest(
                "the enhanced mask decoder runs the last layer twice, and is not built as a graph; export "
                "last_hidden_state"
            )

    def _states(self, ids_BN: Tensor, present_BN: Tensor, segments_BN: Tensor) -> Tensor:
        """The last hidden states, (B, N, D)."""
        encoder = self.encoder
        places = torch.arange(ids_BN.shape[1])
        learned = encoder.spec.embedding.positions
        if learned is not None and learned.left_out is not None:
            counted_BN = ids_BN != learned.left_out
            places = torch.where(counted_BN, counted_BN.long().cumsum(1) - 1, -1)
        scale_BN1 = None
        dropout = encoder.spec.embedding.token_dropout
        if dropout is not None:
            kept_BN = ids_BN != dropout.mask_id
            kept_B1, tokens_B1 = (
                marks_BN.long().sum(1, keepdim=True) for marks_BN in (kept_BN & present_BN, present_BN)
            )
            scale_BN1 = encoder.embedding.word_scale(kept_BN, kept_B1, tokens_B1)
        around = encoder.embedding.around_padded(present_BN)
        embedded_BND = x_BND = encoder.embedding.at(ids_BN, segments_BN, places, scale_BN1, around)
        table_PD = None if encoder.distances is None else encoder.distances()
        for layer, mixer in enumerate(self.mixers):
            block = encoder.block(layer)
            mixed_BND = mixer(block.read_by_attention(x_BND), present_BN, table_PD)
            x_BND = block.after_attention(x_BND, mixed_BND, read=encoder.read(embedded_BND, layer))
            if layer == 0 and encoder.convolution is not None:
                convolution = encoder.convolution
                inside_BDN = (embedded_BND * present_BN[..., None]).mT
                mixed_BND = convolution.inner(
                    functional.pad(inside_BDN, (convolution.radius, convolution.radius))
                ).mT
                x_BND = convolution.norm(x_BND + convolution.activation(mixed_BND))
        return encoder.finished(x_BND)

    def _give(self, name: OutputName, x_BND: Tensor, present_BN: Tensor) -> Tensor:
        output = self.output
        match name:
            case "last_hidden_state":
                return x_BND
            case "sentence_embedding":
                assert isinstance(output, PooledVector)
                return self._embedding(output, x_BND, present_BN)
            case "token_embeddings":
                assert isinstance(output, MultiVector)
                return token_vectors(x_BND, self.encoder.output, normalize=output.normalize)
            case "sparse_embedding":
                assert isinstance(output, SparseVector)
                return self._word_weights(output, x_BND, present_BN)
            case "logits":
                return self._logits(x_BND, present_BN)
            case _:
                assert_never(name)

    def _embedding(self, output: PooledVector, x_BND: Tensor, present_BN: Tensor) -> Tensor:
        e_BE = torch.cat([pool_padded(x_BND, present_BN, mode) for mode in output.pooling], dim=-1)
        layers = self.encoder.output
        e_BE = layers(e_BE)
        for layer in output.projections[len(layers) :]:
            assert isinstance(layer, UnitLength)
            e_BE = functional.normalize(e_BE, dim=-1)
        e_BE = e_BE if output.dimensions is None else e_BE[:, : output.dimensions]
        return functional.normalize(e_BE, dim=-1) if output.normalize else e_BE

    def _word_weights(self, output: SparseVector, x_BND: Tensor, present_BN: Tensor) -> Tensor:
        w = self._head("masked", x_BND) * present_BN[..., None]  # 0 has the weight 0, and no weight is below
        if output.pooling == "max":  # weights grow with logits, so those of the largest are enough
            w = w.amax(1)
        w = torch.relu(w).log1p()
        if output.activation == "log1p_log1p_relu":
            w = w.log1p()
        return w if output.pooling == "max" else w.sum(1)

    def _logits(self, x_BND: Tensor, present_BN: Tensor) -> Tensor:
        assert self.role is not None
        head = self.encoder.heads[self.role]
        if self.encoder.spec.norm_in_heads and getattr(head.spec, "reads", None) != "unnormed":
            x_BND = self.encoder.final_norm(x_BND)
        if isinstance(head, MaskedLMHead):
            return self._head(self.role, x_BND)
        assert isinstance(head, ClassificationHead)
        state: Any = x_BND
        match head.spec.reads:
            case "late":
                return pool_padded(head(x_BND), present_BN, "mean")
            case "pooler":
                pooler = self.encoder.pooler
                assert pooler is not None
                state = pooler.activation(pooler.dense(x_BND[:, 0]))
            case "first":
                state = x_BND[:, 0]
            case "last":
                state = pool_padded(x_BND, present_BN, "last")
            case "mean":
                state = pool_padded(x_BND, present_BN, "mean")
            case "tokens_and_first":
                state = x_BND + x_BND[:, :1]
            case "tokens" | "unnormed":
                pass
            case _:
                assert_never(head.spec.reads)
        logits: Tensor = head(state)
        return logits

    def _head(self, role: str, x_BND: Tensor) -> Tensor:
        logits: Tensor = self.encoder.heads[role](x_BND, self.encoder.embedding.words.weight)
        return logits


def default_outputs(spec: EncoderSpec, output: CheckpointOutput | None) -> tuple[OutputName, ...]:
    """What a checkpoint gives: its vector or scores; without these, its states."""
    match output:
        case PooledVector():
            return ("sentence_embedding",)
        case MultiVector():
            return ("token_embeddings",)
        case SparseVector():
            return ("sparse_embedding",)
        case _ if spec.heads:
            return ("logits",)
        case _:
            return ("last_hidden_state",)
