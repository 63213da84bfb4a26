"""`benchmarks.ablation`: variants that differ in one change, equal budgets, resumed runs, statistics."""

import dataclasses
import json
import lzma
import math
import re
import shutil
import tomllib

import numpy as np
import pytest
import torch

from benchmarks.ablation.__main__ import app
from benchmarks.ablation.budget import TOLERANCE, body_parameters, fitted, with_feedforward
from benchmarks.ablation.cost import Costs, measure_cost, peak_of_steps, read_costs, write_costs
from benchmarks.ablation.figures import (
    DETECTED,
    MASKED,
    Figures,
    original_scores,
    read_figures,
    write_figures,
)
from benchmarks.ablation.one import finish, folder_of
from benchmarks.ablation.page import page
from benchmarks.ablation.plan import (
    Data,
    Effort,
    Plan,
    Training,
    check_inputs,
    read_plan,
    run_table,
    toml,
    write_plan,
)
from benchmarks.ablation.report import findings, make_report
from benchmarks.ablation.run import in_own_process, run_ablation
from benchmarks.ablation.statistics import MOST_SEEDS, T_975, mean_of, paired
from benchmarks.ablation.variants import VARIANTS, Sizes, build_variant, by_name, first
from tests.support.command import run_here
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnmaskError
from unmask.families.native import to_config
from unmask.spec import EncoderSpec
from unmask.spec.plain import to_plain
from unmask.training.pretrain import read_run
from unmask.training.run.log import read_events

pytestmark = pytest.mark.long

TINY = Sizes(width=16, layers=4, heads=2, feedforward=64, vocabulary=300, tokens=32, radius=4)
SIZES = [Sizes(), TINY, Sizes(width=128, layers=3, heads=2, feedforward=500, vocabulary=4000)]
EQUAL = [variant.name for variant in VARIANTS if variant.equal]


def leaves(value, key=""):
    """Every plain value of a nested one, by the way to it."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, f"{key}.{name}")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from leaves(one, f"{key}[{place}]")
    else:
        yield key, value


def plain(spec: EncoderSpec) -> dict:
    """A spec with a plain value for each layer, whether or not neighbors are equal."""
    layers = [to_plain(dataclasses.replace(spec, layers=(one,), sharing=None)) for one in spec.layers]
    return {**to_plain(spec), "layers": [one["layers"][0] for one in layers]}


def differing(name: str) -> set[str]:
    """What differs between a variant and its parent, layers taken together."""
    ours, theirs = build_variant(name, Sizes()), build_variant(by_name(name).parent, Sizes())
    one, two = (
        dict(leaves({"encoder": plain(made.encoder), "objective": dict(made.objective)}))
        for made in (ours, theirs)
    )
    keys = {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}
    return {re.sub(r"\[\d+\]", "", key).removeprefix(".encoder").removeprefix(".layers") for key in keys}


# --- variants --------------------------------------------------------------------------------------------

WIDTH = ".feedforward.width"
POSITION = {".embedding.positions.rows", ".embedding.positions.offset", ".embedding.positions.added"}
FINAL_NORM = {".final_norm.kind", ".final_norm.eps", ".final_norm.bias"}
ONE_THING = {
    "mask-30": {".objective.rate"},
    "pre-norm": {".norm_first"} | FINAL_NORM,
    "linear": {
        *(
            f".mixer.{name}"
            for name in ("kind", "feature_map", "random_features", "eps", "bias", "dropout", "sinks")
        ),
        *(f".mixer.{name}_bias" for name in ("query", "key", "value", "out")),
        *(".mixer.pattern.kind", ".mixer.position.kind"),
    },
    "geglu": {f".feedforward.{name}" for name in ("kind", "width", "bias", "in_bias", "out_bias", "groups")},
    "local-global": {f".mixer.pattern.{name}" for name in ("kind", "radius", "dilation")},
    "shared": {".sharing"},
}


@pytest.mark.parametrize("name", ONE_THING)
def test_a_variant_differs_from_its_parent_in_one_thing(name):
    assert differing(name) - {".embedding.positions"} <= ONE_THING[name] | {WIDTH}
    assert differing(name) & ONE_THING[name]


@pytest.mark.parametrize("name", ["disentangled", "alibi", "rotary"])
def test_a_variant_of_positions_changes_positions_alone(name):
    changed = differing(name)
    rest = {key for key in changed if not key.startswith((".mixer.position", ".embedding.positions"))}
    assert rest <= {WIDTH}
    assert build_variant(name, Sizes()).encoder.embedding.positions is None
    assert any(key.startswith(".mixer.position.kind") for key in changed)


def test_replaced_tokens_change_objective_and_head_alone():
    ours, theirs = build_variant("replaced-token", Sizes()), build_variant("rotary", Sizes())
    assert dataclasses.replace(ours.encoder, heads=()) == dataclasses.replace(theirs.encoder, heads=())
    assert ours.objective == {"kind": "replaced"}


def test_every_variant_is_there_and_parents_come_first():
    names = [variant.name for variant in VARIANTS]
    assert len(set(names)) == len(names) == 11
    for place, variant in enumerate(VARIANTS):
        assert variant.parent is None if place == 0 else variant.parent in names[:place]
    with pytest.raises(InvalidRequest, match="no variant 'bort'; there are bert, disentangled"):
        by_name("bort")


def test_every_third_layer_sees_everything():
    layers = build_variant("local-global", Sizes(layers=7)).encoder.layers
    assert [type(layer.mixer.pattern).__name__ for layer in layers] == [
        *("FullAttention", "SlidingWindow", "SlidingWindow"),
        *("FullAttention", "SlidingWindow", "SlidingWindow"),
        "FullAttention",
    ]


def test_sizes_that_cannot_be_built_are_refused():
    with pytest.raises(InvalidRequest, match="width is 30 and heads 4"):
        Sizes(width=30, heads=4)
    with pytest.raises(InvalidRequest, match="radius is 0"):
        Sizes(radius=0)


# --- budget ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: str(sizes.width))
@pytest.mark.parametrize("name", EQUAL)
def test_parameters_are_equal(name, sizes):
    encoder = Encoder(build_variant(name, sizes).encoder)
    # Counted on the real module, which the budget never builds.
    found = sum(one.numel() for key, one in encoder.named_parameters() if not key.startswith("heads."))
    wanted = body_parameters(first(sizes).encoder)
    assert abs(found - wanted) <= TOLERANCE * wanted


def test_a_count_of_parameters_by_hand():
    d, f, v, n = 16, 64, 300, 32
    layer = 4 * (d * d + d) + 2 * d * f + f + d + 4 * d
    assert body_parameters(first(TINY).encoder) == v * d + n * d + 2 * d + 4 * layer


def test_only_sharing_has_fewer_parameters():
    assert [variant.name for variant in VARIANTS if not variant.equal] == ["shared"]
    shared, parent = build_variant("shared", Sizes()).encoder, build_variant("rotary", Sizes()).encoder
    assert shared.layers == parent.layers
    assert body_parameters(shared) < 0.6 * body_parameters(parent)


def test_a_budget_that_no_width_meets_is_refused():
    spec = first(TINY).encoder
    with pytest.raises(InvalidRequest, match=r"a variant has .* and 5,000 are required to within 1%"):
        fitted(spec, 5000)
    assert fitted(spec, body_parameters(with_feedforward(spec, 200))).layers[0].feedforward.width == 200


# --- plan and run files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [variant.name for variant in VARIANTS])
def test_a_run_file_says_what_the_variant_is(name, tmp_path):
    plan = Plan(Data(("a.txt",), "b.txt"), TINY)
    table = run_table(plan, name, 2)
    (tmp_path / "run.toml").write_text(toml(table))
    settings = read_run(tmp_path / "run.toml")
    assert settings.seed == 2
    assert settings.steps == plan.training.steps
    assert dict(settings.objective) == dict(build_variant(name, TINY).objective)

    def known(value):  # TOML has no null
        if isinstance(value, dict):
            return {key: known(one) for key, one in value.items() if one is not None}
        return [known(one) for one in value] if isinstance(value, list) else value

    assert settings.model.config == known(to_config(build_variant(name, TINY).encoder))


def test_run_files_of_variants_differ_in_nothing_else():
    plan = Plan(Data(("a.txt",), "b.txt"), TINY)
    tables = [run_table(plan, variant.name, 1) for variant in VARIANTS]
    for table in tables:
        for key in ("name", "model", "objective"):
            del table[key]
    assert all(table == tables[0] for table in tables)


def test_toml_is_read_back():
    table = {"a": 1, "b": {"c": 'x"y\\z\n', "d": [1.5, 2e-7], "e": {}}, "f": True, "g": [{"h": "ä"}]}
    assert tomllib.loads(toml({**table, "n": None})) == table


def test_another_plan_in_the_folder_is_refused(tmp_path):
    plan = Plan(Data(("a.txt",), "b.txt"), TINY)
    write_plan(plan, tmp_path)
    assert read_plan(tmp_path) == plan
    write_plan(plan, tmp_path)
    other = dataclasses.replace(plan, training=Training(tokens=50_000))
    with pytest.raises(InvalidRequest, match=r"training.tokens was 600000 and is 50000; give those again"):
        write_plan(other, tmp_path)
    with pytest.raises(InvalidRequest, match="holds no experiment"):
        read_plan(tmp_path / "elsewhere")


def test_too_few_tokens_are_refused():
    with pytest.raises(InvalidRequest, match="4096 tokens are 8 steps of 512; give at least 5120"):
        Training(tokens=4096)


# --- statistics ------------------------------------------------------------------------------------------


def test_t_points_against_scipy():
    stats = pytest.importorskip("scipy.stats", reason="the oracle is not installed")
    assert np.allclose(T_975, stats.t.ppf(0.975, np.arange(1, len(T_975) + 1)), atol=5e-7, rtol=0)


@pytest.mark.parametrize("count", [2, 3, 7, MOST_SEEDS])
def test_mean_and_interval_against_scipy(count):
    stats = pytest.importorskip("scipy.stats", reason="the oracle is not installed")
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    made = mean_of(values.tolist())
    low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert made.count == count
    assert made.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (made.mean - made.half, made.mean + made.half) == pytest.approx((low, high), rel=1e-6)


def test_differences_are_paired_by_seed():
    stats = pytest.importorskip("scipy.stats", reason="the oracle is not installed")
    ours, theirs = {1: 5.0, 2: 9.1, 3: 2.2, 9: 77.0}, {3: 2.0, 2: 8.8, 1: 4.9, 4: -50.0}
    made = paired(ours, theirs)
    test = stats.ttest_rel([5.0, 9.1, 2.2], [4.9, 8.8, 2.0])
    interval = test.confidence_interval(0.95)
    assert made.count == 3
    assert (made.mean - made.half, made.mean + made.half) == pytest.approx(tuple(interval), rel=1e-6)
    assert made.clear == (test.pvalue < 0.05)
    assert paired(ours, {}) is None


def test_a_single_run_has_no_interval():
    made = mean_of([2.5])
    assert (made.mean, made.half, made.clear) == (2.5, None, False)


# --- report ----------------------------------------------------------------------------------------------


def figures(variant, seed, loss, blimp, score=MASKED):
    return Figures(
        variant=variant,
        seed=seed,
        parameters=1000,
        tokens=5000,
        train_seconds=1.0,
        peak_bytes=2**20 * (100 + seed),
        masked_loss=loss,
        masked_accuracy=None if loss is None else 0.1,
        unigram_loss=None if loss is None else 6.5,
        blimp=blimp,
        blimp_score=score,
        tagging=0.7,
        tagging_layer=2,
        tagging_baseline=0.8,
    )


@pytest.fixture
def experiment(tmp_path):
    """An experiment's folder with made-up figures."""
    write_plan(Plan(Data(("a.txt",), "b.txt"), TINY), tmp_path)
    made = [
        *(figures("bert", seed, loss, 0.5) for seed, loss in ((1, 5.0), (2, 6.0), (3, 7.0))),
        *(figures("rotary", seed, loss, 0.5) for seed, loss in ((1, 4.9), (2, 5.9), (3, 6.91))),
        *(figures("replaced-token", seed, None, 0.6, DETECTED) for seed in (1, 2, 3)),
    ]
    for one in made:
        folder = folder_of(tmp_path, one.variant, one.seed)
        folder.mkdir(parents=True)
        write_figures(one, folder / "figures.json")
        assert read_figures(folder / "figures.json") == one
    return tmp_path


def test_report_of_made_up_runs(experiment):
    made = make_report(experiment)
    rows = {row.variant: row for row in made.rows}
    assert list(rows) == ["bert", "rotary", "replaced-token"]
    loss = rows["bert"].outcome("masked_loss")
    assert loss.mean.mean == pytest.approx(6.0)
    assert loss.mean.half == pytest.approx(4.302653 / math.sqrt(3))
    assert loss.against_parent is None
    gap = rows["rotary"].outcome("masked_loss").against_parent
    deviation = np.std([0.1, 0.1, 0.09], ddof=1)
    assert gap.mean == pytest.approx(-0.29 / 3)
    assert gap.half == pytest.approx(4.302653 * deviation / math.sqrt(3))
    assert findings(made) == ["rotary compared with bert: masked loss, nats -0.097 ± 0.014, better"]
    # Nothing can be said of what is not measured, or measured in another way.
    assert rows["replaced-token"].outcome("masked_loss") is None
    assert rows["replaced-token"].outcome("blimp").mean.mean == pytest.approx(0.6)
    assert rows["replaced-token"].outcome("blimp").against_parent is None


def test_page_of_made_up_runs(experiment):
    text = page(make_report(experiment), "picture.png")
    assert "| `rotary` | 5.903 ± " in text
    assert "| `rotary` | `bert` | **-0.097 ± 0.014** | " in text
    assert "| (0.600 ± 0.000) |" in text
    assert "Runs of each variant: 3." in text
    assert "](picture.png)" in text
    assert "None" not in text
    assert max(map(len, (line for line in text.splitlines() if not line.startswith("|")))) < 200


def test_picture_of_made_up_runs(experiment):
    pytest.importorskip("matplotlib", reason="it draws the picture")
    from benchmarks.ablation.picture import draw

    draw(make_report(experiment), experiment / "picture.svg")
    content = (experiment / "picture.svg").read_text()
    assert content.count('<g id="axes_') == 3
    with pytest.raises(InvalidRequest, match=r"ends in .png or .svg"):
        draw(make_report(experiment), experiment / "picture.pdf")


# --- real runs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Text of a made-up grammar, minimal pairs of it and a treebank."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    nouns, verbs = ("river", "bank", "child", "stone", "bird", "king"), ("sees", "finds", "likes", "takes")

    def sentence():
        one, two = draw.choice(nouns, 2)
        return f"The {one} {draw.choice(verbs)} the {two}."

    for name, count in (("text.txt", 6000), ("held.txt", 400)):
        lines = (sentence() + ("\n\n" if place % 9 == 8 else "\n") for place in range(count))
        (folder / name).write_text("".join(lines))
    (folder / "blimp").mkdir()
    pair = {"UID": "order", "field": "syntax", "linguistics_term": "order"}
    pairs = []
    for _ in range(12):
        good = sentence()
        bad = " ".join(good.split()[i] for i in (0, 2, 1, 3, 4))
        pairs.append(json.dumps({**pair, "sentence_good": good, "sentence_bad": bad}))
    (folder / "blimp" / "blimp.jsonl").write_text("\n".join(pairs))
    (folder / "ud").mkdir()
    tags = ("DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT")
    for part in ("train", "dev", "test"):
        text = ""
        for _ in range(20):
            words = sentence().replace(".", " .").split()
            rows = enumerate(zip(words, tags, strict=True), start=1)
            text += "".join(f"{i}\t{w}\t_\t{t}" + "\t_" * 6 + "\n" for i, (w, t) in rows) + "\n"
        with lzma.open(folder / "ud" / f"x-{part}.conllu.xz", "wt") as file:
            file.write(text)
    return folder


@pytest.fixture(scope="module")
def plan(data):
    """Ten steps of tiny encoders."""
    return Plan(
        Data((str(data / "text.txt"),), str(data / "held.txt"), str(data / "blimp"), str(data / "ud")),
        TINY,
        Training(tokens=2560, batch_tokens=256),
        Effort(windows=20, pairs=12, sentences=20),
    )


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory):
    """Two variants that were run, the first in a process of its own, and what was said."""
    out = tmp_path_factory.mktemp("ablation")
    said = []
    run_ablation(plan, out, ["bert"], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.ablation.run.in_own_process", finish)
        made = run_ablation(plan, out, ["bert", "replaced-token"], 1, said.append)
    return out, made, said


def test_two_variants_end_to_end(finished, plan):
    out, made, said = finished
    bert, replaced = made
    assert said[-1] == "2 of 2: replaced-token, seed 1"
    assert bert.parameters == body_parameters(build_variant("bert", TINY).encoder)
    assert 9 * 256 < bert.tokens <= 2560
    assert bert.tokens == replaced.tokens
    assert 0 < bert.masked_loss < 2 * math.log(300)
    assert replaced.masked_loss is None
    assert (bert.blimp_score, replaced.blimp_score) == (MASKED, DETECTED)
    for one in made:
        assert 0 <= one.blimp <= 1
        assert 0.5 < one.tagging <= 1  # the commonest tag is that of a third of the words
        assert one.peak_bytes is None or one.peak_bytes > 0
    assert {row.variant for row in make_report(out).rows} == {"bert", "replaced-token"}


def test_a_checkpoint_is_an_ordinary_folder(finished):
    import unmask

    model = unmask.load(folder_of(finished[0], "bert", 1) / "model")
    assert model.fill("The river [MASK] the bank.")[0]


def test_what_is_finished_is_not_done_again(finished, plan):
    out, made, _ = finished
    log = folder_of(out, "bert", 1) / "log.jsonl"
    before = log.stat().st_mtime_ns
    said = []
    assert run_ablation(plan, out, ["bert", "replaced-token"], 1, said.append) == made
    assert log.stat().st_mtime_ns == before
    assert not [line for line in said if "seed" in line]
    assert said[-1] == "2 of 2: replaced-token is already finished, with this plan and these files"


def test_changed_files_of_an_experiment_are_refused(plan, tmp_path):
    held_out = tmp_path / "held.txt"
    shutil.copy(plan.data.held_out, held_out)
    mine = dataclasses.replace(plan, data=dataclasses.replace(plan.data, held_out=str(held_out)))
    check_inputs(mine, tmp_path)
    check_inputs(mine, tmp_path)
    held_out.write_bytes(held_out.read_bytes().replace(b"e", b"a", 1))
    with pytest.raises(InvalidRequest, match=r"held.txt changed since the experiment in .* was started"):
        check_inputs(mine, tmp_path)


def test_a_stopped_run_is_gone_on_with(finished, plan, monkeypatch, tmp_path):
    """As if killed after its last checkpoint: the figures are the same, and no step is repeated."""
    _, made, _ = finished
    out = shutil.copytree(finished[0], tmp_path / "stopped")  # other tests read the finished one
    folder = folder_of(out, "bert", 1)
    monkeypatch.setattr("benchmarks.ablation.run.in_own_process", finish)
    (folder / "figures.json").unlink()
    steps = sum(event["event"] == "step" for event in read_events(folder / "log.jsonl"))
    (again,) = run_ablation(plan, out, ["bert"], 1)
    assert sum(event["event"] == "step" for event in read_events(folder / "log.jsonl")) == steps
    timed = {"train_seconds": 0.0, "peak_bytes": 0}
    assert dataclasses.replace(again, **timed) == dataclasses.replace(made[0], **timed)


def test_the_same_seed_reads_the_same_text(finished):
    out = finished[0]
    ends = [
        [event["tokens"] for event in read_events(folder_of(out, name, 1) / "log.jsonl") if "tokens" in event]
        for name in ("bert", "replaced-token")
    ]
    assert ends[0] == ends[1]


def test_cost_of_variants_in_turn(finished, plan, monkeypatch):
    out = finished[0]
    heard = []
    peaks = iter([7, 5, 900, None, 3, 4])
    monkeypatch.setattr("benchmarks.ablation.cost._peak_alone", lambda out, variant: next(peaks))
    made = measure_cost(plan, out, ["bert", "linear"], rounds=3, progress=lambda *at: heard.append(at))
    assert [one.variant for one in made.variants] == ["bert", "linear"]
    assert [one.peak_bytes for one in made.variants] == [7, 3]
    assert all(0 < one.lowest <= one.tokens_per_second <= one.highest for one in made.variants)
    assert heard[-1] == (11, 11)
    write_costs(made, out)
    assert isinstance(read_costs(out), Costs)
    assert make_report(out).rows[0].cost == made.variants[0]


@pytest.mark.slow
def test_memory_grows_with_the_encoder(finished, plan, tmp_path):
    """Weights, gradients and a moment are in it, so the peak rises by more than three times the weights."""
    large = dataclasses.replace(plan, sizes=dataclasses.replace(TINY, width=256, feedforward=1024))
    peaks = {}
    for name, one in (("small", plan), ("large", large)):
        folder = tmp_path / name
        shutil.copytree(finished[0], folder, ignore=shutil.ignore_patterns("runs", "plan.json"))
        write_plan(one, folder)
        peaks[name] = peak_of_steps(folder, "bert")
    if peaks["small"] is None:
        pytest.skip("this system tells no peak of memory")
    assert peaks["large"] - peaks["small"] > 3 * 4 * body_parameters(first(large.sizes).encoder)


def test_original_scores_against_one_sentence_at_a_time(finished):
    import unmask

    model = unmask.load(folder_of(finished[0], "replaced-token", 1) / "model")
    texts = ["The river sees the bank.", "The king.", "The the stone child finds bird likes."]
    scores = original_scores(model, texts)
    for text, score in zip(texts, scores, strict=True):
        (encoding,) = model.tokenize([text])
        from unmask.text import PackedBatch

        batch = PackedBatch.of_ids([encoding.ids])
        with torch.no_grad():
            logits = model.encoder.logits("replaced", model.encoder.encode(batch), batch.layout)[
                :, 0
            ].double()
        original = 1 / (1 + np.exp(logits.numpy()))
        assert score == pytest.approx(np.log(original[1:-1]).mean(), rel=1e-5)


def test_a_run_that_fails_says_why(plan, tmp_path):
    write_plan(plan, tmp_path)  # and no tokenizer
    with pytest.raises(UnmaskError, match=r"the run of bert with seed 1 failed: .*no such file"):
        in_own_process(tmp_path, "bert", 1)


@pytest.mark.parametrize("name", ["held_out", "blimp", "treebank"])
def test_data_that_are_not_there_are_refused_before_training(plan, tmp_path, name):
    lost = dataclasses.replace(plan, data=dataclasses.replace(plan.data, **{name: str(tmp_path / "no")}))
    with pytest.raises(InvalidRequest, match=r"/no does not exist; name the folder"):
        run_ablation(lost, tmp_path / "out", ["bert"], 1)
    assert not (tmp_path / "out").exists()


def test_too_little_text_is_refused(plan, tmp_path):
    much = dataclasses.replace(plan, training=Training(tokens=2_000_000))
    with pytest.raises(
        InvalidRequest, match=r"the text has .* tokens of sentences and a run reads 1,000,000"
    ):
        run_ablation(much, tmp_path / "out", ["bert"], 1)


@pytest.mark.parametrize("seeds", [0, MOST_SEEDS + 1])
def test_seeds_out_of_range_are_refused(plan, tmp_path, seeds):
    with pytest.raises(InvalidRequest, match=f"seeds is {seeds}; it must be from 1 to {MOST_SEEDS}"):
        run_ablation(plan, tmp_path / "out", ["bert"], seeds)


# --- the command -----------------------------------------------------------------------------------------


def ablate(*arguments):
    """``python -m benchmarks.ablation ARGUMENTS``."""
    return run_here(*arguments, program=app)


def test_command_lists_variants():
    listed = json.loads(ablate("--list", "--json").out)
    assert [(one["name"], one["parent"]) for one in listed] == [(one.name, one.parent) for one in VARIANTS]
    assert "replaced-token" in ablate("--list").out


def test_command_trains_and_goes_on(plan, data, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.ablation.run.in_own_process", finish)
    sizes = ("--width", 16, "--layers", 2, "--heads", 2, "--vocabulary", 300)
    effort = ("--tokens", 5120, "--batch-tokens", 512, "--pairs", 2)
    files = ("--data", data, "--text", "text.txt", "--held-out", "held.txt")
    of_runs = ("--variants", "alibi", "--seeds", 1, "--output", tmp_path / "out")
    begun = ablate(*of_runs, *files, *sizes, *effort)
    assert begun.code == 0, begun.err
    assert "1 of 1: alibi, seed 1" in begun.err
    assert "alibi" in begun.out
    # A data folder without treebank: no tagging.
    gone_on = ablate(*of_runs, "--json")
    (row,) = json.loads(gone_on.out)["rows"]
    assert (row["variant"], row["seeds"]) == ("alibi", [1])
    assert {one["measure"] for one in row["outcomes"]} >= {"masked_loss", "blimp"}
    assert "tagging" not in {one["measure"] for one in row["outcomes"]}
    assert "seed 1" not in gone_on.err
    other = ablate(*of_runs, "--width", 32)
    assert other.code == 1
    assert "sizes.width was 16 and is 32" in other.err


def test_command_reports(experiment):
    pytest.importorskip("matplotlib", reason="it draws the picture")
    page_file, picture = experiment / "docs" / "page.md", experiment / "docs" / "pictures" / "it.png"
    picture.parent.mkdir(parents=True)
    (experiment / "notes.md").write_text("## Notes\n\nMade up.\n")
    ran = ablate("report", "--output", experiment, "--page", page_file, "--picture", picture)
    assert ran.code == 0, ran.err
    assert "rotary compared with bert: masked loss, nats -0.097 ± 0.014, better" in ran.out
    assert "](pictures/it.png)" in page_file.read_text()
    assert "## Notes\n\nMade up.\n" in page_file.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "--data is missing"),
        (("--data", "/nowhere"), "does not exist"),
        (("--data", "/nowhere", "--variants", "bert,bort"), "there is no variant 'bort'"),
        (("--data", "/nowhere", "--heads", 3), "each head needs an even share of the width"),
    ],
)
def test_command_refuses(tmp_path, arguments, sentence):
    ran = ablate("--output", tmp_path / "out", *arguments)
    assert ran.code == 1
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_command_reports_nothing_where_nothing_is(tmp_path):
    ran = ablate("report", "--output", tmp_path)
    assert (ran.code, "holds no experiment" in ran.err) == (1, True)
