"""Every published size has exactly the parameters that its authors' checkpoint has.

Counts are those of `transformers` built from the published configs: with pooler, without it, and with the
heads of pretraining (tied weights counted once). None stands where a family has no such thing.
"""

from dataclasses import replace

import pytest

from unmask.families import FAMILIES
from unmask.spec.shapes import parameter_count

TABLE = {
    "google-bert/bert-base-uncased": (109_482_240, 108_891_648, 110_106_428),
    "google-bert/bert-large-uncased": (335_141_888, 334_092_288, 336_226_108),
    "google-bert/bert-base-cased": (108_310_272, 107_719_680, 108_932_934),
    "FacebookAI/roberta-base": (124_645_632, 124_055_040, 124_697_433),
    "FacebookAI/roberta-large": (355_359_744, 354_310_144, 355_412_057),
    "FacebookAI/xlm-roberta-base": (278_043_648, 277_453_056, 278_295_186),
    "FacebookAI/xlm-roberta-large": (559_890_432, 558_840_832, 560_142_482),
    "distilbert/distilroberta-base": (82_118_400, 81_527_808, 82_170_201),
    "almanach/camembert-base": (110_621_952, 110_031_360, 110_655_493),
    "facebook/xlm-roberta-xl": (3_482_485_760, 3_475_929_600, 3_482_741_760),
    "facebook/xlm-roberta-xxl": (10_712_735_744, 10_695_954_432, 10_712_994_816),
    "andreasmadsen/efficient_mlm_m0.40": (355_361_792, 354_312_192, 355_414_105),
    "UFNLP/gatortron-base": (355_267_584, 354_217_984, None),
    "facebook/data2vec-text-base": (124_645_632, 124_055_040, 124_697_433),
    "nghuyong/ernie-2.0-base-en": (109_483_776, 108_893_184, 109_515_834),
    "nghuyong/ernie-3.0-base-zh": (117_944_832, 117_354_240, 117_986_368),
    "junnyu/roformer_chinese_base": (123_555_840 - 1536 * 64, None, 124_197_968 - 1536 * 64),
    "google/rembert": (575_920_384, 574_592_128, 993_263_548),
    "facebook/esm1b_t33_650M_UR50S": (652_355_840, 650_716_160, 652_358_433),
    "facebook/esm2_t6_8M_UR50D": (7_511_680, 7_408_960, 7_512_353),
    "facebook/esm2_t12_35M_UR50D": (33_500_160, 33_269_280, 33_501_153),
    "facebook/esm2_t30_150M_UR50D": (148_138_240, 147_728_000, 148_139_553),
    "facebook/esm2_t33_650M_UR50D": (651_040_000, 649_400_320, 651_042_593),
    "facebook/esm2_t36_3B_UR50D": (2_838_999_040, 2_832_442_880, 2_839_004_193),
    "biohub/ESMC-300M": (332_011_200, None, 332_997_184),
    "biohub/ESMC-600M": (573_632_640, None, 575_036_992),
    "biohub/ESMC-6B": (6_345_280_000, None, 6_352_005_184),
    "sentence-transformers/sentence-t5-base": (109_628_544, None, None),
    "sentence-transformers/sentence-t5-large": (334_939_648, None, None),
    "sentence-transformers/gtr-t5-base": (109_628_544, None, None),
    "sentence-transformers/gtr-t5-large": (334_939_648, None, None),
    "google/t5-v1_1-base": (109_628_544, None, None),
    "albert/albert-base-v2": (11_683_584, 11_092_992, 11_813_810),
    "albert/albert-large-v2": (17_683_968, 16_634_368, 17_847_474),
    "albert/albert-xlarge-v2": (58_724_864, 54_528_512, 59_021_490),
    "albert/albert-xxlarge-v2": (222_595_584, 205_814_272, 223_158_450),
    "distilbert/distilbert-base-uncased": (66_362_880, None, 66_985_530),
    "google/electra-small-discriminator": (13_483_008, None, 13_549_057),
    "google/electra-base-discriminator": (108_891_648, None, 109_483_009),
    "google/electra-large-discriminator": (334_092_288, None, 335_142_913),
    "google/electra-base-generator": (33_511_168, None, 33_740_602),
    "google/electra-large-generator": (50_999_552, None, 51_295_290),
    "allenai/longformer-base-4096": (148_659_456, 148_068_864, 148_711_257),
    "allenai/longformer-large-4096": (434_600_960, 433_551_360, 434_653_273),
    "microsoft/mpnet-base": (109_486_464, 108_895_872, 109_518_527),
    "sentence-transformers/all-mpnet-base-v2": (109_486_464, 108_895_872, None),
    "google/bigbird-roberta-base": (127_468_800, 126_878_208, 128_112_824),
    "google/bigbird-roberta-large": (359_123_968, 358_074_368, 360_228_024),
    "microsoft/deberta-base": (138_601_728, None, 139_244_121),
    "microsoft/deberta-large": (405_163_008, None, 406_264_921),
    "google/mobilebert-uncased": (24_581_888, None, 36_597_564),
    "YituTech/conv-bert-base": (105_680_520, None, None),
    "YituTech/conv-bert-medium-small": (17_475_888, None, None),
    "YituTech/conv-bert-small": (13_143_768, None, None),
    "microsoft/deberta-v3-xsmall": (70_682_112, None, 70_958_820),
    "microsoft/deberta-v3-small": (141_304_320, None, 142_024_548),
    "microsoft/deberta-v3-base": (183_831_552, None, 184_551_780),
    "microsoft/deberta-v3-large": (434_012_160, None, 435_191_908),
    "microsoft/mdeberta-v3-base": (278_218_752, None, 279_061_880),
    "microsoft/deberta-v2-xlarge": (884_593_152, None, 887_085_156),
    "microsoft/deberta-v2-xxlarge": (1_564_549_632, None, 1_567_041_636),
    "answerdotai/ModernBERT-base": (149_014_272, None, 149_655_232),
    "answerdotai/ModernBERT-large": (394_781_696, None, 395_881_664),
    "jhu-clsp/ettin-encoder-17m": (16_797_440, None, 16_913_600),
    "jhu-clsp/ettin-encoder-32m": (31_883_136, None, 32_081_344),
    "jhu-clsp/ettin-encoder-68m": (68_144_640, None, 68_457_664),
    "jhu-clsp/ettin-encoder-1b": (1_028_050_688, None, 1_031_314_112),
    "EuroBERT/EuroBERT-210m": (211_766_016, None, 310_266_624),
    "EuroBERT/EuroBERT-610m": (607_874_688, None, 755_625_600),
    "EuroBERT/EuroBERT-2.1B": (2_107_590_912, None, 2_403_092_736),
    "Qwen/Qwen3-Embedding-0.6B": (595_776_512, None, None),
    "google/embeddinggemma-300m": (302_863_104, None, None),
    "google/embeddinggemma-2": (271_002_624, None, None),
    "openai/privacy-filter": (1_399_465_712, None, None),
    "microsoft/MiniLM-L12-H384-uncased": (33_360_000, 33_212_160, None),
    "sentence-transformers/all-MiniLM-L6-v2": (22_713_216, 22_565_376, None),
}

PUBLISHED = {one.name: (family, one) for family in FAMILIES for one in family.published}


@pytest.mark.parametrize("name", sorted(TABLE.keys() & PUBLISHED.keys()))
def test_parameters(name):
    _, published = PUBLISHED[name]
    whole, bare, pretraining = TABLE[name]
    assert parameter_count(published.spec) == whole
    assert (published.spec.pooler is not None) is (bare is not None)
    if bare is not None:
        assert parameter_count(replace(published.spec, pooler=None)) == bare
    assert (published.pretraining is not None) is (pretraining is not None)
    if pretraining is not None:
        assert parameter_count(published.pretraining) == pretraining


SMALL_EPS, ROBERTA_EPS, DEBERTA_EPS = 1e-12, 1e-5, 1e-7
ROBERTA = (ROBERTA_EPS, "gelu", 514, 50265, 1)
DEBERTA_V3 = (DEBERTA_EPS, "gelu", 512, 128100, 0)
EURO = (1e-5, "silu", 8192, 128256, 128001)
MODERN = (1e-5, "gelu", 8192, 50368, 50283)

SETTINGS = {
    "google-bert/bert-base-uncased": (SMALL_EPS, "gelu", 512, 30522, 0, 12),
    "google-bert/bert-large-uncased": (SMALL_EPS, "gelu", 512, 30522, 0, 16),
    "google-bert/bert-base-cased": (SMALL_EPS, "gelu", 512, 28996, 0, 12),
    "FacebookAI/roberta-base": (*ROBERTA, 12),
    "FacebookAI/roberta-large": (*ROBERTA, 16),
    "FacebookAI/xlm-roberta-base": (ROBERTA_EPS, "gelu", 514, 250002, 1, 12),
    "FacebookAI/xlm-roberta-large": (ROBERTA_EPS, "gelu", 514, 250002, 1, 16),
    "distilbert/distilroberta-base": (*ROBERTA, 12),
    "almanach/camembert-base": (ROBERTA_EPS, "gelu", 514, 32005, 1, 12),
    "facebook/xlm-roberta-xl": (ROBERTA_EPS, "gelu", 514, 250880, 1, 32),
    "facebook/xlm-roberta-xxl": (ROBERTA_EPS, "gelu", 514, 250880, 1, 32),
    "andreasmadsen/efficient_mlm_m0.40": (*ROBERTA, 16),
    "UFNLP/gatortron-base": (SMALL_EPS, "gelu", 512, 50176, 0, 16),
    "facebook/data2vec-text-base": (*ROBERTA, 12),
    "nghuyong/ernie-2.0-base-en": (ROBERTA_EPS, "gelu", 512, 30522, 0, 12),
    "facebook/esm1b_t33_650M_UR50S": (1e-5, "gelu", 1026, 33, 1, 20),
    "nghuyong/ernie-3.0-base-zh": (ROBERTA_EPS, "gelu", 2048, 40000, 0, 12),
    "junnyu/roformer_chinese_base": (SMALL_EPS, "gelu", 1536, 50000, 0, 12),
    "junnyu/roformer_chinese_char_small": (SMALL_EPS, "gelu", 512, 12000, 0, 6),
    "google/rembert": (SMALL_EPS, "gelu", 512, 250300, 0, 18),
    **{
        f"facebook/esm2_{name}_UR50D": (1e-5, "gelu", 1026, 33, 1, heads)
        for name, heads in (
            *(("t6_8M", 20), ("t12_35M", 20), ("t30_150M", 20)),
            *(("t33_650M", 20), ("t36_3B", 40), ("t48_15B", 40)),
        )
    },
    **{
        f"biohub/ESMC-{name}": (1e-5, "silu", 2048, 64, 1, heads)
        for name, heads in (("300M", 15), ("600M", 18), ("6B", 40))
    },
    "sentence-transformers/sentence-t5-base": (1e-6, "relu", 512, 32128, 0, 12),
    "sentence-transformers/sentence-t5-large": (1e-6, "relu", 512, 32128, 0, 16),
    "sentence-transformers/gtr-t5-base": (1e-6, "relu", 512, 32128, 0, 12),
    "sentence-transformers/gtr-t5-large": (1e-6, "relu", 512, 32128, 0, 16),
    "google/t5-v1_1-base": (1e-6, "gelu_tanh", 512, 32128, 0, 12),
    "albert/albert-base-v2": (SMALL_EPS, "gelu_tanh", 512, 30000, 0, 12),
    "albert/albert-large-v2": (SMALL_EPS, "gelu_tanh", 512, 30000, 0, 16),
    "albert/albert-xlarge-v2": (SMALL_EPS, "gelu_tanh", 512, 30000, 0, 16),
    "albert/albert-xxlarge-v2": (SMALL_EPS, "gelu_tanh", 512, 30000, 0, 64),
    "distilbert/distilbert-base-uncased": (SMALL_EPS, "gelu", 512, 30522, 0, 12),
    "google/electra-small-discriminator": (SMALL_EPS, "gelu", 512, 30522, 0, 4),
    "google/electra-base-discriminator": (SMALL_EPS, "gelu", 512, 30522, 0, 12),
    "google/electra-large-discriminator": (SMALL_EPS, "gelu", 512, 30522, 0, 16),
    "google/electra-base-generator": (SMALL_EPS, "gelu", 512, 30522, 0, 4),
    "google/electra-large-generator": (SMALL_EPS, "gelu", 512, 30522, 0, 4),
    "allenai/longformer-base-4096": (ROBERTA_EPS, "gelu", 4098, 50265, 1, 12),
    "allenai/longformer-large-4096": (ROBERTA_EPS, "gelu", 4098, 50265, 1, 16),
    "microsoft/mpnet-base": (ROBERTA_EPS, "gelu", 514, 30527, 1, 12),
    "sentence-transformers/all-mpnet-base-v2": (ROBERTA_EPS, "gelu", 514, 30527, 1, 12),
    "google/bigbird-roberta-base": (SMALL_EPS, "gelu_tanh", 4096, 50358, 0, 12),
    "google/bigbird-roberta-large": (SMALL_EPS, "gelu_tanh", 4096, 50358, 0, 16),
    "microsoft/deberta-base": (DEBERTA_EPS, "gelu", 512, 50265, 0, 12),
    "microsoft/deberta-large": (DEBERTA_EPS, "gelu", 512, 50265, 0, 16),
    "google/mobilebert-uncased": (None, "relu", 512, 30522, 0, 4),  # NoNorm
    **{
        f"YituTech/conv-bert-{name}": (SMALL_EPS, "gelu", 512, 30522, 0, heads)  # half of them left
        for name, heads in (("base", 6), ("medium-small", 4), ("small", 2))
    },
    "microsoft/deberta-v3-xsmall": (*DEBERTA_V3, 6),
    "microsoft/deberta-v3-small": (*DEBERTA_V3, 12),
    "microsoft/deberta-v3-base": (*DEBERTA_V3, 12),
    "microsoft/deberta-v3-large": (*DEBERTA_V3, 16),
    "naver/provence-reranker-debertav3-v1": (*DEBERTA_V3, 16),
    "microsoft/mdeberta-v3-base": (DEBERTA_EPS, "gelu", 512, 251000, 0, 12),
    "microsoft/deberta-v2-xlarge": (*DEBERTA_V3, 24),
    "microsoft/deberta-v2-xxlarge": (*DEBERTA_V3, 24),
    "mosaicml/mosaic-bert-base": (SMALL_EPS, "gelu", 512, 30528, 0, 12),
    "jinaai/jina-embeddings-v2-small-en": (SMALL_EPS, "gelu", 8192, 30528, 0, 8),
    "jinaai/jina-embeddings-v2-base-en": (SMALL_EPS, "gelu", 8192, 30528, 0, 12),
    "nomic-ai/nomic-embed-text-v1.5": (SMALL_EPS, "silu", 2048, 30528, 0, 12),
    "Alibaba-NLP/gte-multilingual-base": (SMALL_EPS, "gelu", 8192, 250048, 1, 12),
    "answerdotai/ModernBERT-base": (*MODERN, 12),
    "answerdotai/ModernBERT-large": (*MODERN, 16),
    "jhu-clsp/ettin-encoder-17m": (*MODERN, 4),
    "jhu-clsp/ettin-encoder-32m": (*MODERN, 6),
    "jhu-clsp/ettin-encoder-68m": (*MODERN, 8),
    "jhu-clsp/ettin-encoder-1b": (*MODERN, 28),
    "chandar-lab/NeoBERT": (1e-5, "silu", 4096, 30522, 0, 12),
    "EuroBERT/EuroBERT-210m": (*EURO, 12),
    "EuroBERT/EuroBERT-610m": (*EURO, 18),
    "EuroBERT/EuroBERT-2.1B": (*EURO, 18),
    "Qwen/Qwen3-Embedding-0.6B": (1e-6, "silu", 32768, 151_669, 151_643, 16),
    "google/embeddinggemma-300m": (1e-6, "gelu_tanh", 2048, 262_144, 0, 3),
    "google/embeddinggemma-2": (1e-6, "gelu_tanh", 262_144, 262_144, 0, 4),
    "openai/privacy-filter": (1e-5, "silu", 131_072, 200_064, 199_999, 14),
    "jinaai/jina-embeddings-v2-base-code": (SMALL_EPS, "gelu", 8192, 61_056, 0, 12),
    "microsoft/MiniLM-L12-H384-uncased": (SMALL_EPS, "gelu", 512, 30522, 0, 12),
    "sentence-transformers/all-MiniLM-L6-v2": (SMALL_EPS, "gelu", 512, 30522, 0, 12),
    "sentence-transformers/LaBSE": (SMALL_EPS, "gelu", 512, 501153, 0, 12),
    "intfloat/multilingual-e5-small": (SMALL_EPS, "gelu", 512, 250037, 0, 12),
    "intfloat/multilingual-e5-base": (1e-5, "gelu", 514, 250002, 1, 12),
    "intfloat/multilingual-e5-large": (1e-5, "gelu", 514, 250002, 1, 16),
    "BAAI/bge-m3": (1e-5, "gelu", 8194, 250002, 1, 16),
    "jinaai/jina-embeddings-v3": (1e-5, "gelu", 8194, 250002, 1, 16),
    "nomic-ai/nomic-embed-text-v2-moe": (1e-5, "gelu", 2048, 250048, 1, 12),
    "Snowflake/snowflake-arctic-embed-m-v2.0": (SMALL_EPS, "gelu", 8192, 250048, 1, 12),
    "NovaSearch/stella_en_400M_v5": (SMALL_EPS, "gelu", 8192, 30528, 0, 16),
    "Alibaba-NLP/gte-modernbert-base": (*MODERN, 12),
    "Alibaba-NLP/gte-reranker-modernbert-base": (*MODERN, 12),
    "lightonai/DenseOn": (*MODERN, 12),
    "lightonai/LateOn": (1e-5, "gelu", 8192, 50370, 50283, 12),
    "lightonai/GTE-ModernColBERT-v1": (1e-5, "gelu", 8192, 50370, 50283, 12),
    "lightonai/mDenseOn": (1e-5, "gelu", 8192, 256000, 0, 12),
    "lightonai/mLateOn": (1e-5, "gelu", 8192, 256002, 0, 12),
    "mixedbread-ai/mxbai-edge-colbert-v0-17m": (1e-5, "gelu", 7999, 50370, 50283, 4),
    "mixedbread-ai/mxbai-edge-colbert-v0-32m": (1e-5, "gelu", 7999, 50370, 50283, 6),
    "ibm-granite/granite-embedding-97m-multilingual-r2": (1e-5, "silu", 32768, 180000, 179935, 12),
    "ibm-granite/granite-embedding-311m-multilingual-r2": (1e-5, "gelu", 32768, 262152, 0, 12),
    "jinaai/jina-embeddings-v5-text-nano-retrieval": (*EURO, 12),
}
"""Of the published config.json files: the norms' epsilon, the activation, rows of the table of positions (or
the longest text of the training, where there is no such table), vocabulary, padding id, heads."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_settings_that_change_no_count(name):
    spec = PUBLISHED[name][1].spec
    positions, padding = spec.embedding.positions, spec.embedding.padding_id
    rows = spec.trained_tokens if positions is None else positions.rows
    (norm,) = {getattr(layer.norm, "eps", None) for layer in spec.layers}
    (activation,) = {layer.feedforward.activation for layer in spec.layers}
    (heads,) = {layer.mixer.heads for layer in spec.layers}
    assert (norm, activation, rows, spec.embedding.vocabulary, padding, heads) == SETTINGS[name]
    assert positions is None or positions.offset == (padding + 1 if rows in (514, 1026, 4098, 8194) else 0)


def test_every_row_is_in_the_registry():
    assert TABLE.keys() <= PUBLISHED.keys()
