"""Protocols: their files, their runs on tiny data of GLUE's layout, and the report."""

import json
import os
import random
import re
import signal
import statistics

import pytest

from tests.support.command import assert_one_sentence, run_here
from tests.support.places import shared
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.protocols.glue import evaluate_glue
from unmask.evaluate.protocols.protocols import Average, merged, nested, protocol_names, read_protocol
from unmask.evaluate.protocols.report import average_report, markdown, task_report
from unmask.evaluate.protocols.runs import TaskFiles, official_files, run_settings, trials
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.run import FinetuneRun
from unmask.training.finetune.settings import DataSettings
from unmask.training.run.callbacks import Callback
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

WORDS = ["the", "river", "bank", "was", "muddy", "a", "text", "another"]

TINY = """
source = "a test"
comparable = ["nothing"]
data = "data.toml"
seeds = [1, 2]
[run]
epochs = 2
batch_size = 8
[run.optimizer]
learning_rate = 5e-3
[average]
how = "the mean of both figures of MRPC, and then of the tasks"
columns = { mrpc = ["accuracy", "F1"], stsb = ["Spearman correlation"], rte = ["accuracy"] }
[tasks.cola]
[tasks.mrpc]
[tasks.stsb]
[tasks.mnli]
[tasks.rte]
intermediate = "mnli"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny checkpoint, and files in the layout of GLUE's archives."""
    folder = tmp_path_factory.mktemp("glue")
    write_tokenizer(folder / "tiny")
    tiny_bert(initializer_range=0.1).save_pretrained(folder / "tiny")
    draw = random.Random(0)

    def sentence():
        return " ".join(draw.choices(WORDS, k=4))

    def two():
        return sentence(), sentence()

    rows = {
        "CoLA": lambda: ("gj04", draw.randint(0, 1), "", sentence()),
        "MRPC": lambda: (draw.randint(0, 1), 1, 2, *two()),
        "STS-B": lambda: (0, *two(), draw.randint(0, 50) / 10),
        "MNLI": lambda: (0, *two(), draw.choice(["entailment", "neutral", "contradiction"])),
        "RTE": lambda: (0, *two(), draw.choice(["entailment", "not_entailment"])),
    }
    heads = {
        "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "STS-B": "index\tsentence1\tsentence2\tscore",
        "MNLI": "index\tsentence1\tsentence2\tgold_label",
        "RTE": "index\tsentence1\tsentence2\tlabel",
    }
    for name, row in rows.items():
        (folder / "data" / name).mkdir(parents=True)
        parts = ("train", "dev_matched", "dev_mismatched") if name == "MNLI" else ("train", "dev")
        for part in parts:
            lines = ["\t".join(map(str, row())) for _ in range(24 if part == "train" else 12)]
            head = [heads[name]] if name in heads else []
            (folder / "data" / name / f"{part}.tsv").write_text("\n".join([*head, *lines]) + "\n")
    official = read_protocol("run_glue")
    assert official.name == "glue/run_glue"
    from unmask.evaluate.protocols.protocols import _folder

    (folder / "data.toml").write_text((_folder() / "glue" / "data.toml").read_text())
    (folder / "tiny.toml").write_text(TINY)
    return folder


class Heard(Callback):
    def __init__(self):
        self.said = []

    def say(self, sentence):
        self.said.append(sentence)

    def tokenizing(self, source, documents, tokens):
        pass

    def step(self, figures):
        pass


def run_tiny(place, out, **changes):
    given = {"tasks": ["mrpc", "stsb"]} | changes
    return evaluate_glue(str(place / "tiny"), place / "tiny.toml", place / "data", out, **given)


def test_short_lines_of_qqp_are_left_out_and_reported(place, tmp_path):
    whole = ["1\t2\t3\tthe river\ta bank\t1", "2\t3\t4\ta text\tanother\t0"]
    short = ["3\t4\t5\tthe bank", "a text\t0"]
    (tmp_path / "data" / "QQP").mkdir(parents=True)
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    for part, lines in (("train", [*whole, *short, *whole]), ("dev", whole)):
        (tmp_path / "data" / "QQP" / f"{part}.tsv").write_text("\n".join([head, *lines]) + "\n")
    (tmp_path / "data.toml").write_text((place / "data.toml").read_text())
    some, average = TINY.partition("[average]")[0], '[average]\nhow = "itself"\ncolumns = { qqp = ["F1"] }\n'
    (tmp_path / "tiny.toml").write_text(f"{some}{average}[tasks.qqp]\n")
    heard = Heard()
    report = evaluate_glue(
        str(place / "tiny"), tmp_path / "tiny.toml", tmp_path / "data", tmp_path / "out", seeds=[1],
        callback=heard,
    )  # fmt: skip
    assert report.tasks["qqp"].skipped_lines == {"QQP/train.tsv": 2}
    assert "train.tsv: 2 lines with too few columns are left out" in heard.said
    assert any(one.startswith("train: 4 texts of") for one in heard.said)
    assert "QQP/train.tsv: 2 lines with too few columns are left out" in markdown(report)


def test_short_lines_of_other_tasks_are_refused(place, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("index\tsentence1\tsentence2\tlabel\n1\ta\n")
    data = run_settings(
        read_protocol("run_glue"), "rte", TaskFiles(path, None), model="m", seed=1, values={}, out="out"
    ).data
    with pytest.raises(InvalidText, match="has 2 values separated by tabs"):
        list(read_labeled(data.train, data, place))


def test_a_line_with_too_many_columns_is_refused_where_short_ones_are_left_out(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\na\nthe river\ta bank\t1\n")
    data = DataSettings((str(path),), skip_short_lines=True)
    with pytest.raises(InvalidText, match=r"line 3 of .* has 3 values separated by tabs"):
        list(read_labeled(data.train, data, tmp_path))


# The files


@pytest.mark.parametrize("name", protocol_names())
def test_a_file_says_what_its_scores_are(name):
    protocol = read_protocol(name, name.split("/")[0])
    assert protocol.source
    assert protocol.comparable
    assert protocol.seeds
    for task in protocol.tasks:
        assert protocol.seeds_of(task)
        one = protocol.tasks[task]
        assert one.title
        assert one.metrics
        settings = run_settings(
            protocol,
            task,
            TaskFiles(__file__, None),
            model="m",
            seed=3,
            values=trials(protocol, task)[-1],
            out="x",
        )
        assert settings.seed == 3
        assert settings.optimizer.weight_decay is not None
    said = json.dumps([protocol.run, {name: one.run for name, one in protocol.tasks.items()}, protocol.grid])
    for key in ("epochs", "batch_size", "betas", "eps", "clip", "learning_rate", "weight_decay", "kind"):
        assert f'{key}"' in said or any(key in task.grid for task in protocol.tasks.values()), key


def test_all_files_are_named():
    glue = {
        *("electra-small", "electra-base", "electra-large"),
        "modernbert",
        "neobert",
        "run_glue",
        "superglue",
    }
    assert set(protocol_names()) == {*(f"glue/{one}" for one in glue), "ner/conll", "squad/v1", "squad/v2"}


@pytest.mark.parametrize("name", [name for name in protocol_names("glue") if name != "glue/superglue"])
@pytest.mark.parametrize("task", ["cola", "sst2", "mrpc", "stsb", "rte", "qnli"])
def test_the_official_files_are_read(name, task):
    """The first lines of the real files with the columns and labels of each protocol."""
    folder = shared("data/glue")
    protocol = read_protocol(name)
    one = protocol.tasks[task]
    files = official_files(one, folder)
    if task == "qnli":  # its training part is not there
        assert files == "QNLI/train.tsv"
        dev = folder / "QNLI" / "dev.tsv.xz"
        files = TaskFiles(dev, dev)
    for values in trials(protocol, task)[:2]:
        settings = run_settings(protocol, task, files, model="m", seed=1, values=values, out="x")
        assert settings.data.train == (str(files.train),)
        assert settings.data.dev == (str(files.dev),)
        records = [one for one, _ in zip(read_labeled(settings.data.dev, settings.data, folder), range(5))]  # noqa: B905
        for record in records:
            if one.task == "regression":
                assert 0 <= float(record.label) <= 5
            else:
                assert settings.data.rename_labels.get(record.label, record.label) in settings.data.labels
            assert isinstance(record.text, str)
            assert (record.pair is None) == (task in ("cola", "sst2"))


def test_values_of_the_facts():
    """Numbers that decide scores, as they are published."""
    files = TaskFiles(__file__, __file__)

    def of(name, task, place=0):
        protocol = read_protocol(name)
        values = trials(protocol, task)[place]
        return run_settings(
            replace_evaluate(protocol), task, files, model="m", seed=1, values=values, out="x"
        )

    def replace_evaluate(protocol):
        from dataclasses import replace

        return replace(protocol, evaluate=None)

    bert = of("run_glue", "rte")
    assert (bert.epochs, bert.batch_size, bert.optimizer.learning_rate) == (3, 32, 2e-5)
    assert (bert.optimizer.weight_decay, bert.schedule.warmup_steps, bert.data.max_tokens) == (0, 0, 128)
    assert of("run_glue", "mrpc").epochs == 5
    assert bert.evaluation.metric is None, "the last weights count"
    small, large = of("electra-small", "mrpc"), of("electra-large", "rte")
    assert (small.optimizer.learning_rate, small.optimizer.layer_decay, small.epochs) == (3e-4, 0.8, 3)
    assert (large.optimizer.learning_rate, large.optimizer.layer_decay, large.epochs) == (5e-5, 0.9, 10)
    assert small.optimizer.layer_decay_kind == "electra"
    assert small.data.both_orders
    assert not large.data.both_orders
    modern = of("modernbert", "mrpc", -1)
    assert (modern.epochs, modern.batch_size, modern.data.max_tokens) == (10, 32, 256)
    assert (modern.optimizer.learning_rate, modern.optimizer.weight_decay) == (8e-5, 1e-5)
    assert modern.optimizer.decoupled
    assert modern.optimizer.betas == (0.9, 0.98)
    protocol = read_protocol("modernbert")
    assert len(trials(protocol, "rte")) == 48
    assert {values["epochs"] for values in trials(protocol, "rte")} == {1, 2, 3}
    assert [len(protocol.seeds_of(task)) for task in ("rte", "cola", "sst2", "qqp")] == [5, 4, 3, 1]
    assert protocol.tasks["stsb"].intermediate == protocol.tasks["mrpc"].intermediate == "mnli"
    neo = of("neobert", "qnli")
    assert (neo.epochs, neo.evaluation.patience, neo.data.max_tokens) == (10, 15, 1024)
    assert read_protocol("neobert").tasks["qnli"].intermediate == "mnli"


def test_tables_within_tables_are_merged():
    assert merged({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"c": 3}}) == {"a": {"b": 1, "c": 3}, "d": 1}
    assert nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "there is no protocol 'nothing' for glue; name one of: glue/electra-small"),
        ("electra", "name one of: glue/electra-small, glue/electra-base, glue/electra-large"),
        ("no.toml", "cannot read no.toml"),
    ],
)
def test_a_name_that_is_none(name, sentence):
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        read_protocol(name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("seeds =", "sead ="), "has no key 'sead'"),
        (("[tasks.cola]", "[tasks.wnli]"), "tasks.wnli is none of the tasks of data.toml"),
        (('intermediate = "mnli"', 'intermediate = "snli"'), "tasks.rte.intermediate is 'snli'"),
        (("seeds = [1, 2]", 'seeds = "1"'), "seeds is '1'; it must be a list"),
        (('source = "a test"', ""), "needs source"),
    ],
)
def test_a_file_that_cannot_be(place, change, sentence):
    assert change[0] in TINY
    (place / "odd.toml").write_text(TINY.replace(*change))
    with pytest.raises(InvalidRequest, match=re.escape(sentence)) as refused:
        read_protocol(place / "odd.toml")
    assert str(refused.value).startswith("odd.toml: ")


# The runs


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "run"
    return run_tiny(place, out), out


def test_every_metric_of_every_seed_is_reported(finished, place):
    report, out = finished
    assert list(report.tasks) == ["mrpc", "stsb"]
    assert list(report.tasks["mrpc"].columns) == ["MRPC accuracy", "MRPC F1"]
    assert list(report.tasks["stsb"].columns) == ["STS-B Pearson correlation", "STS-B Spearman correlation"]
    (trial,) = report.tasks["mrpc"].trials
    assert set(trial.figures) == {1, 2}
    assert {"accuracy", "f1", "macro_f1", "matthews"} <= trial.figures[1].keys()
    column = report.tasks["mrpc"].columns["MRPC F1"]
    assert column.values == {seed: trial.figures[seed]["f1"] for seed in (1, 2)}
    assert column.mean == pytest.approx(statistics.fmean(column.values.values()))
    assert column.standard_deviation == pytest.approx(statistics.stdev(column.values.values()))
    written = json.loads((out / "report.json").read_text())
    assert written["protocol"] == "glue/tiny"
    assert written["tasks"]["mrpc"]["trials"][0]["figures"]["2"] == trial.figures[2]
    page = (out / "report.md").read_text()
    assert f"| MRPC F1 | {column.mean:.4f} |" in page
    assert "These are scores on dev data" in page
    assert "GLUE score" not in page
    assert not (out / "mrpc" / "seed-1" / "checkpoints").exists()


def test_the_figures_are_those_of_the_model(finished, place):
    from unmask.evaluate.protocols.scores import labeled_figures

    report, out = finished
    protocol = read_protocol(place / "tiny.toml")
    files = official_files(protocol.tasks["mrpc"], place / "data")
    settings = run_settings(protocol, "mrpc", files, model="m", seed=2, values={}, out="x")
    found, between = labeled_figures(
        out / "mrpc" / "seed-2" / "model", "classification", settings.data, place
    )
    assert between.keys() == found.keys()
    assert found == pytest.approx(report.tasks["mrpc"].trials[0].figures[2])


def test_the_average_names_what_it_is_of(finished):
    report, _ = finished
    average = report.average
    assert average.of == ("MRPC accuracy", "MRPC F1", "STS-B Spearman correlation")
    assert average.missing == ("RTE",)
    mrpc, stsb = report.tasks["mrpc"].columns, report.tasks["stsb"].columns
    of_mrpc = (mrpc["MRPC accuracy"].mean + mrpc["MRPC F1"].mean) / 2
    wanted = (of_mrpc + stsb["STS-B Spearman correlation"].mean) / 2
    assert average.value == pytest.approx(wanted), "first within a task, then over tasks"
    assert "not the published average, because RTE were not run" in markdown(report)


def test_finished_runs_are_kept_and_a_stopped_one_resumes(finished, place, tmp_path, monkeypatch):
    whole, _ = finished
    step, taken = Trainer._step, []

    def stop_once(self, reporter):
        step(self, reporter)
        taken.append((self.settings.name, self.loop.step))
        if taken[-1] == ("mrpc-2", 4) and taken.count(("mrpc-2", 4)) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", stop_once)
    with pytest.raises(Stopped):
        run_tiny(place, tmp_path / "run")
    assert not (tmp_path / "run" / "report.json").exists()
    again = run_tiny(place, tmp_path / "run")
    assert len(taken) == len(set(taken)) == 4 * 6, "no step is repeated"
    assert again.tasks == whole.tasks
    started = []
    made = FinetuneRun.__init__
    monkeypatch.setattr(
        FinetuneRun,
        "__init__",
        lambda self, one, *rest, **more: (started.append(one.name), made(self, one, *rest, **more))[1],
    )
    heard = Heard()
    more = run_tiny(place, tmp_path / "run", seeds=[2, 1, 7], tasks=["mrpc"], callback=heard)
    assert started == ["mrpc-7"]
    assert "mrpc/seed-2: already finished" in heard.said
    assert more.tasks["mrpc"].seeds == (2, 1, 7)


def test_other_settings_are_refused(finished, place):
    _, out = finished
    (place / "other.toml").write_text(TINY.replace("batch_size = 8", "batch_size = 4"))
    with pytest.raises(InvalidRequest, match="batch_size was 8 and is 4"):
        evaluate_glue(str(place / "tiny"), place / "other.toml", place / "data", out, tasks=["mrpc"])


def test_an_intermediate_model_comes_first(place, tmp_path):
    heard = Heard()
    report = run_tiny(place, tmp_path / "run", tasks=["rte"], keep_models=False, seeds=[5], callback=heard)
    assert list(report.tasks) == ["mnli", "rte"]
    assert list(report.tasks["mnli"].columns) == ["MNLI matched accuracy", "MNLI mismatched accuracy"]
    (figures,) = report.tasks["mnli"].trials[0].figures.values()
    for name, key in (("matched", "accuracy"), ("mismatched", "mismatched/accuracy")):
        assert report.tasks["mnli"].columns[f"MNLI {name} accuracy"].mean == figures[key]
    assert figures["macro_f1"] != figures["mismatched/macro_f1"], "two parts of the data"
    assert report.tasks["rte"].started_from == "mnli/seed-5/model"
    assert any("the head of" in one and "is left out" in one for one in heard.said)
    assert not (tmp_path / "run" / "rte" / "seed-5" / "model").exists()
    assert (tmp_path / "run" / "mnli" / "seed-5" / "model").exists()
    assert report.tasks["rte"].columns["RTE accuracy"].standard_deviation is None
    assert "- RTE starts from mnli/seed-5/model" in (tmp_path / "run" / "report.md").read_text()
    given = str(tmp_path / "run" / "mnli" / "seed-5" / "model")
    alone = run_tiny(place, tmp_path / "alone", tasks=["rte"], seeds=[5], intermediate=given)
    assert list(alone.tasks) == ["rte"]
    assert alone.tasks["rte"].trials == report.tasks["rte"].trials


def test_a_grid_runs_every_combination(place, tmp_path):
    grid = '\n[grid]\n"optimizer.learning_rate" = [1e-9, 5e-3]\n[average]'
    text = TINY.replace("[tasks.cola]\n", "[tasks.cola]\ngrid = { epochs = [1, 2] }\n")
    (place / "grid.toml").write_text(text.replace("\n[average]", grid))
    report = evaluate_glue(
        str(place / "tiny"),
        place / "grid.toml",
        place / "data",
        tmp_path / "run",
        tasks=["cola"],
        seeds=[1, 2],
    )
    task = report.tasks["cola"]
    assert [dict(one.values) for one in task.trials] == [
        {"optimizer.learning_rate": rate, "epochs": epochs} for rate in (1e-9, 5e-3) for epochs in (1, 2)
    ]
    means = [statistics.fmean(one.figures[seed]["matthews"] for seed in (1, 2)) for one in task.trials]
    best = task.trials[means.index(max(means))]
    assert task.chosen == best.values
    assert task.columns == best.columns
    assert task.chosen_by == "mean dev matthews over seeds"
    assert "chosen on the same data" in report.note
    assert (tmp_path / "run" / "cola" / "learning_rate=0.005,epochs=2" / "seed-1" / "model").is_dir()


def test_evaluations_follow_the_number_of_texts(place):
    text = TINY.replace("[average]", "[evaluate]\nper_epoch = 2\nmost_steps = 5\n[average]")
    (place / "often.toml").write_text(text)
    protocol = read_protocol(place / "often.toml")
    files = official_files(protocol.tasks["mrpc"], place / "data")
    for size, every in ((8, 1), (4, 3), (1, 5), (24, 1)):
        settings = run_settings(
            protocol, "mrpc", files, model="m", seed=1, values={"batch_size": size}, out="x"
        )
        assert settings.evaluation.every == every, size
    (place / "often.toml").write_text(
        text.replace(
            "[tasks.mrpc]\n", "[tasks.mrpc]\nrun = { batch_size = 2, data = { both_orders = true } }\n"
        )
    )
    protocol = read_protocol(place / "often.toml")
    settings = run_settings(protocol, "mrpc", files, model="m", seed=1, values={"batch_size": 6}, out="x")
    assert settings.batch_size == 6, "the grid counts, not the task's own value"
    assert settings.evaluation.every == 4, "48 texts, two evaluations per epoch"


def test_pairs_in_both_orders(place, tmp_path):
    text = TINY.replace("[tasks.mrpc]\n", "[tasks.mrpc]\nrun = { data = { both_orders = true } }\n")
    (place / "both.toml").write_text(text)
    report = evaluate_glue(
        str(place / "tiny"), place / "both.toml", place / "data", tmp_path / "run", tasks=["mrpc"], seeds=[1]
    )
    assert report.tasks["mrpc"].trials[0].steps == {1: 12}, "twice as many training texts, the same dev texts"
    text = TINY.replace("[tasks.cola]\n", "[tasks.cola]\nrun = { data = { both_orders = true } }\n")
    (place / "both.toml").write_text(text)
    with pytest.raises(InvalidRequest, match="both_orders is true and the data have no pairs"):
        evaluate_glue(
            str(place / "tiny"), place / "both.toml", place / "data", tmp_path / "x", tasks=["cola"]
        )


def test_lower_is_better_where_it_is():
    from unmask.evaluate.protocols.report import Trial

    task = read_protocol("run_glue").tasks["stsb"]
    from dataclasses import replace

    some = [
        Trial({"a": number}, {1: {"spearman": number, "mean_squared_error": number}}, {1: 1}, {1: 1}, {})
        for number in (1, 3, 2)
    ]
    assert task_report(task, "m", [1], some).chosen == {"a": 3}
    assert task_report(replace(task, choose="mean_squared_error"), "m", [1], some).chosen == {"a": 1}


def test_a_median_is_averaged_where_the_protocol_says_so(finished, place):
    from dataclasses import replace

    report, _ = finished
    protocol = read_protocol(place / "tiny.toml")
    protocol = replace(protocol, average=Average("how", {"mrpc": ("F1",)}, "median"))
    assert average_report(protocol, report.tasks).value == report.tasks["mrpc"].columns["MRPC F1"].median
    assert average_report(replace(protocol, average=None), report.tasks) is None


# The command


def test_the_command_prints_and_skips(place, finished, tmp_path):
    _, out = finished
    here = ("evaluate", "glue", "-m", place / "tiny", "--protocol", place / "tiny.toml", "--output", out)
    ran = run_here(*here, "--data", place / "data", "--tasks", "stsb,mrpc", "--json")
    assert ran.code == 0, ran.err
    (found,) = map(json.loads, ran.out.splitlines())
    assert list(found["tasks"]) == ["mrpc", "stsb"]
    less = tmp_path / "less"
    less.mkdir()
    (less / "MRPC").symlink_to(place / "data" / "MRPC")
    ran = run_here(*here[:-1], tmp_path / "out", "--data", less, "--tasks", "mrpc,stsb", "--seeds", "4,5")
    assert ran.code == 0, ran.err
    assert "stsb was not run" in ran.out
    assert "has no STS-B/train.tsv" in ran.out
    assert re.search(
        r"MRPC accuracy +0\.\d{4} +0\.\d{4} +0\.\d{4} +2 +4: 0\.\d+ \(0\.\d{4} to \d\.\d{4}\), 5: 0", ran.out
    )
    assert_one_sentence(
        run_here(*here, "--data", less), "lacks files of cola (CoLA/train.tsv)", "such as mrpc"
    )


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--tasks", "mrpc,wnli"), ("no task 'wnli'", "cola, mrpc")),
        (("--tasks", "mrpc", "--seeds", "1,x"), ("--seeds is '1,x'",)),
        (("--tasks", "mrpc", "--seeds", "1,1"), ("seeds is 1, 1",)),
        (("--tasks", "rte"), ("rte starts from a model of mnli", "MNLI/train.tsv", "intermediate")),
        (("--tasks", "mrpc", "--data", "/nowhere"), ("/nowhere is not a folder",)),
        (("--tasks", "mrpc", "--protocol", "x"), ("there is no protocol 'x'",)),
        (("--tasks", "mrpc", "-m", "nope/"), ("nope/",)),
    ],
)
def test_what_cannot_be_is_one_sentence(place, tmp_path, options, parts):
    less = tmp_path / "less"
    less.mkdir()
    for name in ("MRPC", "RTE"):
        (less / name).symlink_to(place / "data" / name)
    given = {
        "-m": place / "tiny",
        "--protocol": place / "tiny.toml",
        "--data": less,
        "--output": tmp_path / "o",
    }
    given |= dict(zip(options[::2], options[1::2], strict=True))
    ran = run_here("evaluate", "glue", *(part for pair in given.items() for part in pair))
    assert ran.code == 1, ran
    assert_last = [line for line in ran.err.splitlines() if line.startswith("unmask: ")]
    assert len(assert_last) == 1, ran.err
    assert all(part in assert_last[0] for part in parts), ran.err
    assert "Traceback" not in ran.err
