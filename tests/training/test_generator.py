"""The two encoders of replaced-token detection as specs: sizes, heads, what published ones have."""

import math
import random
from dataclasses import replace

import pytest
import torch

from tests.support.specs import ALIBI_SHARED, POST_NORM, ROTARY_WINDOWS, SPECS, random_encoder
from tests.training.runs import Instead, write_run, write_texts
from tests.training.test_replaced import HALF, example, run
from tests.training.toy import vocabulary
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnmaskError
from unmask.families import Family, family_of
from unmask.families.deberta_v2 import DEBERTA_V2
from unmask.families.electra import ELECTRA
from unmask.spec import Classifier, LayerNorm, MaskedLM, Transform
from unmask.training.objectives.build import saved_spec, trained_heads
from unmask.training.objectives.generator import discriminator_spec, generator_spec, with_detector
from unmask.training.objectives.replaced import DEBERTA_V3, ReplacedSpec, ReplacedTokenDetection
from unmask.training.pretrain import pretrain, start
from unmask.weights.heads.classes import with_heads
from unmask.weights.write.new_checkpoint import check_config
from unmask.weights.write.save import check_written


def test_generators_are_the_published_ones():
    small, base, large, base_generator, large_generator = (one.pretraining for one in ELECTRA.published)
    assert generator_spec(base, width_share=1 / 3) == base_generator
    assert generator_spec(large) == large_generator
    small = generator_spec(small)
    assert (small.width, small.layers[0].mixer.heads, small.layers[0].feedforward.width) == (64, 1, 256)
    assert small.embedding.width == 128


def test_generator_of_deberta_v3_has_half_its_layers():
    base = next(one.spec for one in DEBERTA_V2.published if one.name == "microsoft/deberta-v3-base")
    made = generator_spec(base, width_share=DEBERTA_V3.width_share, layers_share=DEBERTA_V3.layers_share)
    assert made.layers == base.layers[:6]
    assert (made.width, made.embedding) == (768, base.embedding)
    head = discriminator_spec(base).heads[0]
    assert (head.reads, head.input_norm) == ("tokens_and_first", LayerNorm(1e-7))
    assert head.transform == Transform(768, "gelu")
    assert DEBERTA_V3.masking.replacement == "mask"


@pytest.mark.parametrize("name", SPECS)
def test_every_encoder_has_a_smaller_one(name):
    spec = SPECS[name]
    for width_share, layers_share in ((0.3, 0.3), (0.5, 1.0), (1.0, 0.5)):
        made = generator_spec(spec, width_share=width_share, layers_share=layers_share)
        assert len(made.layers) == max(1, math.floor(len(spec.layers) * layers_share + 0.5))
        for small, large in zip(made.layers, spec.layers, strict=False):
            assert small.mixer.head_width == large.mixer.head_width
            if large.mixer.heads * large.mixer.head_width == spec.width:
                assert small.mixer.heads * large.mixer.head_width == made.width
        assert abs(made.width - spec.width * width_share) <= spec.layers[0].mixer.head_width
        objective_of = ReplacedTokenDetection(
            Encoder(spec), vocabulary(), ReplacedSpec(width_share=width_share, layers_share=layers_share)
        )
        outcome = run(objective_of, example(objective_of))
        outcome.loss.backward()
        assert torch.isfinite(outcome.loss)


def test_shared_layers_keep_their_groups():
    assert generator_spec(ALIBI_SHARED, layers_share=0.75).sharing == (0, 0, 1)
    turned = replace(ALIBI_SHARED, sharing=(1, 1, 0, 0))
    assert generator_spec(turned, layers_share=0.5).sharing == (0, 0)


def test_a_layer_without_a_norm_of_its_input_gets_it_normalized():
    """Layer 0 of ModernBERT reads the embedding as it comes."""
    made = generator_spec(ROTARY_WINDOWS, width_share=0.5)
    assert made.embedding.projection.before_norm
    assert not generator_spec(POST_NORM, width_share=0.5).embedding.projection.before_norm


def test_a_narrow_table_where_none_is_shared():
    made = ReplacedTokenDetection(Encoder(POST_NORM), vocabulary(), replace(HALF, sharing="none"))
    assert made.generator.spec.embedding.width == made.generator.spec.width == 16
    assert made.generator.spec.embedding.projection is None


def test_a_head_of_its_own_is_kept_and_others_go():
    own = Classifier("replaced", 1, "tokens", Transform(7, "tanh"))
    spec = replace(
        POST_NORM, heads=(MaskedLM(Transform(24, "relu")), own, Classifier("sequence", 3, "pooler"))
    )
    assert discriminator_spec(spec).heads == (own,)
    assert generator_spec(spec).heads == (MaskedLM(Transform(24, "relu")),)
    encoder = random_encoder(spec)
    made = with_detector(encoder)
    kept = made.state_dict()
    assert all(torch.equal(encoder.state_dict()[name], tensor) for name, tensor in kept.items())
    assert not made.training
    assert with_detector(made) is made
    other = replace(POST_NORM, heads=(replace(own, reads="first"),))
    assert discriminator_spec(other).heads == (Classifier("replaced", 1, "tokens", Transform(24, "gelu")),)
    fresh = with_detector(random_encoder(other))
    assert not fresh.heads["replaced"].out.bias.any()
    narrow = with_detector(random_encoder(other, dtype=torch.bfloat16))
    assert {one.dtype for one in narrow.parameters()} == {torch.bfloat16}


SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


@pytest.mark.parametrize("model_type", ["deberta", "deberta-v2"])
@pytest.mark.parametrize("relative", [{}, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}])
@pytest.mark.parametrize("keys", [{}, {"position_biased_input": False}, {"embedding_size": 12}])
def test_deberta_saves_its_own_head_with_and_without_relative_positions(model_type, relative, keys):
    config = with_heads({"model_type": model_type, **SIZES, **relative, **keys}, frozenset())
    spec, family = check_config(config), family_of(config)
    saved = saved_spec({"kind": "replaced"}, spec, family)
    check_written(family, saved, config)
    assert saved.heads[0].reads == "tokens_and_first"


SHAPES = {
    "model_type": ("deberta", "deberta-v2"),
    "relative_attention": (True, False),
    "pos_att_type": (["p2c", "c2p"], ["c2p"], ["p2c"], "p2c|c2p"),
    "position_biased_input": (True, False),
    "position_buckets": (8, -1),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "conv_kernel_size": (3, 0),
    "embedding_size": (12, 24),
    "type_vocab_size": (0, 2),
    "num_hidden_layers": (1, 3),
    "legacy": (True, False),
    "layer_norm_eps": (1e-5,),
}


def saved(objective, keys):
    """What the run of an objective checks before it starts."""
    config = with_heads({**SIZES, **keys}, trained_heads({"kind": objective}))
    spec, family = check_config(config), family_of(config)
    made = saved_spec({"kind": objective}, spec, family)
    check_written(family, made, config)
    return made


def test_replaced_takes_every_shape_of_deberta_that_masked_takes():
    draw, taken = random.Random(0), 0
    for _ in range(60):
        chosen = {key for key in SHAPES if key == "model_type" or draw.random() < 0.25}
        keys = {key: draw.choice(values) for key, values in SHAPES.items() if key in chosen}
        try:
            saved("masked", keys)
        except UnmaskError:
            continue
        taken += 1
        assert saved("replaced", keys).heads[0].reads == "tokens_and_first", keys
    assert taken > 15


def test_what_a_family_cannot_save_is_named():
    config = with_heads({"model_type": "deberta-v2", **SIZES}, frozenset())
    spec, family = check_config(config), family_of(config)
    with pytest.raises(
        InvalidRequest, match=r"heads\[0\].reads is 'tokens' and would be read as 'tokens_and_f"
    ):
        check_written(family, discriminator_spec(spec), config)


def test_an_encoder_that_cannot_be_saved_is_refused_before_a_tokenizer_is_trained(tmp_path, monkeypatch):
    write_texts(tmp_path)
    monkeypatch.setattr(Family, "detector", lambda self, encoder: None)
    monkeypatch.setattr(start, "train_tokenizer", lambda *_, **__: pytest.fail("a tokenizer is trained"))
    run = write_run(
        tmp_path,
        model={"config": Instead({"model_type": "deberta-v2", **SIZES})},
        objective=Instead({"kind": "replaced"}),
        tokenizer=Instead({"train": "wordpiece", "vocabulary": 200}),
    )
    with pytest.raises(InvalidRequest, match="cannot save this encoder"):
        pretrain(run)
