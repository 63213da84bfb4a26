"""The run files in ``recipes``: they read, build what was published, and train."""

import itertools
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import unmask
from tests.training.runs import BLOCKS, changed, to_toml, write_texts
from unmask.encoder.encoder import Encoder
from unmask.families import published_config
from unmask.spec import Rotary, SoftmaxAttention, role_of
from unmask.training.optim import lr_multiplier
from unmask.training.pretrain import pretrain, read_run
from unmask.training.run.settings import RunSettings
from unmask.weights.build import on_meta
from unmask.weights.write.new_checkpoint import new_checkpoint

RECIPES = Path(__file__).parents[2] / "recipes"
FINETUNED = ("tasks", "adapters", "retrieval")
"""Folders of the run files of fine-tuning."""
ALL = sorted(
    path.relative_to(RECIPES).as_posix()
    for path in RECIPES.glob("*/*.toml")
    if path.parent.name not in FINETUNED
)
SMALL = [name for name in ALL if "/small" in name]
NAMES = (
    "bert",
    "roberta",
    "albert",
    "electra",
    "deberta",
    "deberta-v2",
    "deberta-v3",
    "mosaicbert",
    "modernbert",
    "distilbert",
    "longformer",
    "bigbird",
)

WIDE, GATED = 768, 3072
MOSAICBERT = (
    (30528 + 2 + 2) * WIDE
    + 12 * (4 * (WIDE * WIDE + WIDE) + 3 * WIDE * GATED + WIDE + 4 * WIDE)
    + (WIDE * WIDE + 3 * WIDE + 30528)
)
"""Words, segments, norm; four projections with biases, a gated network with one bias, two norms; the head."""

PUBLISHED = {
    "bert/published-1.toml": (110_106_428, 0),
    "roberta/published.toml": (124_697_433, 0),
    "albert/published.toml": (11_813_810, 0),
    "electra/published.toml": (13_549_057, 0),
    # Without its head, whose size nobody says, and without the table of the generator's decoder.
    "deberta-v3/published.toml": (183_831_552, 768 * 768 + 768 + 2 * 768 + 768 + 1 + 512 * 768),
    "mosaicbert/published.toml": (MOSAICBERT, 0),
    "modernbert/published-1.toml": (149_655_232, 0),
    "distilbert/published.toml": (66_985_530, 0),
    "longformer/published.toml": (148_711_257, 0),
    # Without the pooler, which `transformers` builds and does not use.
    "bigbird/published.toml": (128_111_286, -768 * 768 - 768),
    # With the table of the enhanced mask decoder, which `transformers` does not have.
    "deberta/published.toml": (139_244_121, 512 * 768),
    "deberta-v2/published.toml": (1_567_041_636, 512 * 1536),
}
"""Parameters with the heads of pretraining, as `transformers` counts them; and how many more are ours."""

TOKENS = {
    "bert/published-1.toml": 900_000 * 256 * 128,
    "bert/published-2.toml": 100_000 * 256 * 512,
    "roberta/published.toml": 500_000 * 8192 * 512,
    "albert/published.toml": 125_000 * 4096 * 512,
    "electra/published.toml": 1_000_000 * 128 * 128,
    "deberta-v3/published.toml": 500_000 * 8192 * 512,
    "mosaicbert/published.toml": 286_720_000 * 128,
    "modernbert/published-1.toml": 1.7e12,
    "modernbert/published-2.toml": 250e9,
    "modernbert/published-3.toml": 50e9,
    "distilbert/published.toml": 6_000 * 4096 * 512,  # the paper has no number of steps
    "longformer/published.toml": 65_000 * 64 * 4096,
    "bigbird/published.toml": 100_000 * 256 * 4096,
    "deberta/published.toml": 1_000_000 * 2048 * 512,
    "deberta-v2/published.toml": 1_000_000 * 2048 * 512,
}
"""Of a run, as published."""


def recipe(name: str) -> RunSettings:
    return read_run(RECIPES / name)


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory):
    """Of 60 pieces, padding with id 0."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}


def encoder(settings: RunSettings, tokenizer_files) -> Encoder:
    """Without memory; the vocabulary is the config's."""
    published = settings.model.architecture or settings.model.start_from
    shape = {} if published is None else published_config(published)
    config = {**shape, **settings.model.config, "pad_token_id": 0}
    if not shape:
        config["vocab_size"] = settings.tokenizer.vocabulary
    return on_meta(new_checkpoint(config, tokenizer_files).spec)


def parameters(made: Encoder) -> int:
    return sum(parameter.numel() for parameter in made.parameters())


def budget(settings: RunSettings) -> tuple[list[int], int]:
    """Tokens of each step but for equal ones at the end, and how often the last comes again."""
    batch, steps = settings.batch, settings.steps
    varying = int(batch.ramp_share * steps) + 1
    tokens = [batch.micro_batches(step, steps) * batch.micro_tokens for step in range(varying)]
    return tokens, steps - varying


def test_every_recipe_is_there_at_both_scales():
    found = Counter(name.split("/")[0] for name in ALL if "/published" in name or "/small" in name)
    assert found == {"bert": 3, "modernbert": 6, **dict.fromkeys(set(NAMES) - {"bert", "modernbert"}, 2)}
    assert {name for name in ALL if "/published" in name} == TOKENS.keys()


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_reads_and_is_named_after_its_file(name):
    settings = recipe(name)
    folder, stem = name.removesuffix(".toml").split("/")
    if folder in NAMES:
        assert settings.name == f"{folder}-{stem}"
        assert settings.out == f"../../runs/{settings.name}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_encoder_has_the_published_number_of_parameters(name, tokenizer_files):
    count, more = PUBLISHED[name]
    assert parameters(encoder(recipe(name), tokenizer_files)) == count + more


def test_mosaicbert_is_as_large_as_its_authors_say():
    assert round(MOSAICBERT / 1e6) == 137


@pytest.mark.parametrize("name", TOKENS)
def test_a_published_run_sees_the_published_number_of_tokens(name):
    settings = recipe(name)
    tokens, again = budget(settings)
    assert tokens[-1] == settings.batch.tokens  # a whole number of micro-batches
    assert sum(tokens) + again * tokens[-1] == pytest.approx(TOKENS[name], rel=1e-4)


def test_modernbert_grows_its_batch_and_warms_up_over_the_published_tokens():
    settings = recipe("modernbert/published-1.toml")
    tokens, _ = budget(settings)
    assert tokens[0] == 768 * 1024
    assert sum(tokens) == pytest.approx(50e9, rel=2e-3)
    assert sum(tokens[: settings.schedule.warmup_steps]) == pytest.approx(3e9, rel=2e-2)


def rate(settings: RunSettings, step: int) -> float:
    return settings.optimizer.learning_rate * lr_multiplier(settings.schedule, step, settings.steps)


def test_the_learning_rate_goes_on_from_phase_to_phase():
    first, second = recipe("bert/published-1.toml"), recipe("bert/published-2.toml")
    assert rate(first, 900_000) == pytest.approx(1e-5) == rate(second, 0)
    assert rate(second, 50_000) == pytest.approx(0.5e-5)
    for scale in ("published", "small"):
        phases = [recipe(f"modernbert/{scale}-{phase}.toml") for phase in (1, 2, 3)]
        top = [settings.optimizer.learning_rate for settings in phases]
        assert top[1] == top[2] == pytest.approx(top[0] * 3 / 8)
        assert rate(phases[0], phases[0].steps) == top[0]
        assert rate(phases[1], 0) == rate(phases[1], phases[1].steps) == top[1] == rate(phases[2], 0)
        assert rate(phases[2], phases[2].steps // 4) == pytest.approx(top[2] / 2)  # 1 - sqrt(1/4)
        for before, settings in itertools.pairwise(phases):
            assert settings.model.start_from == f"{before.out}/model"


@pytest.mark.parametrize("name", [name for name in SMALL if recipe(name).model.start_from is None])
def test_a_small_recipe_is_as_large_as_it_says(name, tokenizer_files):
    said = re.search(r"at (\d\.\d)M parameters", (RECIPES / name).read_text())
    assert said is not None
    count = parameters(encoder(recipe(name), tokenizer_files))
    assert round(count / 1e6, 1) == float(said.group(1))
    assert 1.9e6 < count < 8e6


# --- they train ----------------------------------------------------------------------------------------

HEADS = {
    "bert": {"masked", "next_sentence"},
    "albert": {"masked", "sentence_order"},
    "electra": {"replaced"},
    "deberta-v3": {"replaced"},
    "deberta": {"enhanced"},
    "deberta-v2": {"enhanced"},
}
"""Of the exported model; of the others it is ``masked``."""
TERMS = {
    "bert": {"masked", "next_sentence"},
    "albert": {"masked", "sentence_order"},
    "electra": {"masked", "replaced"},
    "deberta-v3": {"masked", "replaced"},
    "distilbert": {"masked", "words", "cosine"},
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "embedding_size": 16,
    "dim": 32,
    "hidden_dim": 48,
    "n_heads": 2,
}
BEFORE = {"distilbert": "bert", "longformer": "roberta"}
"""Whose small recipe a small recipe starts with."""


def shrunk(name: str, place: Path) -> Path:
    """The recipe at its place below another root, with tiny sizes, two steps and tiny texts."""
    table = tomllib.loads((RECIPES / name).read_text())
    model = table["model"]
    if "start_from" not in model:
        table["tokenizer"] = {"folder": str(place / "tokenizer")}
        model["config"] = {key: SIZES.get(key, value) for key, value in model["config"].items()}
    if "init_from_teacher" in table["objective"]:
        table["objective"]["init_from_teacher"] = [0, 1]
    for which, text in (("sources", "first"), ("held_out", "held")):
        table["data"][which] = [
            {**source, **BLOCKS, "files": [str(place / f"{text}.txt")], "min_tokens": 20}
            for source in table["data"][which]
        ]
    batch = {"tokens": 512, "micro_tokens": 256}
    if "start_tokens" in table["batch"]:
        batch["start_tokens"] = 256
    path = place / "recipes" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    changes = {"steps": 2, "batch": batch, "evaluation": {"tokens": 300}, "precision": "float32"}
    path.write_text(to_toml(changed(table, **changes)))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    write_texts(folder)
    return folder


@pytest.mark.parametrize("name", [name for name in SMALL if not name.startswith("modernbert")])
def test_a_small_recipe_trains(name, place):
    folder = name.split("/")[0]
    if folder in BEFORE:
        pretrain(shrunk(f"{BEFORE[folder]}/small.toml", place))
    result = pretrain(shrunk(name, place))
    assert result.steps == 2
    assert {figure.split("/")[0] for figure in result.held_out} == TERMS.get(folder, {"masked"})
    # ln 60 is 4.1: two steps from weights near 0.
    assert 3 < result.held_out["masked/loss"] < 5
    spec = unmask.load(result.folder).spec
    assert {role_of(head) for head in spec.heads} == HEADS.get(folder, {"masked"})
    assert (result.folder / "generator").is_dir() == (folder in ("electra", "deberta-v3"))


def test_the_phases_of_modernbert_follow_one_another(place):
    thetas, limits, words = [], [], []
    for phase in (1, 2, 3):
        result = pretrain(shrunk(f"modernbert/small-{phase}.toml", place))
        made = unmask.load(result.folder).trainable_encoder()
        spec = made.spec
        mixer = spec.layers[0].mixer
        assert isinstance(mixer, SoftmaxAttention)
        assert isinstance(mixer.position, Rotary)
        thetas.append(mixer.position.theta)
        limits.append(spec.trained_tokens)
        words.append(made.embedding.words.weight)
    assert thetas == [10_000.0, 160_000.0, 160_000.0]
    assert limits == [128, 512, 512]
    # Each phase begins where the one before it ended: two steps are small beside what is drawn at random.
    for before, after in itertools.pairwise(words):
        assert 0 < (after - before).std() < 0.5 * before.std()
