"""``unmask inspect``, ``models``, ``kernels`` and ``look``, for people and for programs, and the program."""

import inspect
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cyclopts import App
from safetensors import safe_open

import unmask
from tests.support.command import environment, run_here
from tests.support.tiny import (
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    change_json,
    change_tensors,
    tiny_bert,
    write_checkpoint,
)
from unmask.cli.commands import PANELS
from unmask.cli.streams import read_text
from unmask.engines.native.engine import NativeEngine
from unmask.errors import InvalidRequest
from unmask.families import DEFAULT_NAME, FAMILIES
from unmask.interpret.attention.comparison import attention_change
from unmask.interpret.attention.layer_statistics import LABELS
from unmask.kernels import KERNELS
from unmask.weights.adapters.adapter import SHIPPED_ADAPTERS

TEXT = "The river bank was muddy, xyz!"
PAIR = "another text"
LIMIT = 19  # what sentence_bert_config.json of the tiny checkpoint says


def answer(*arguments, **options):
    """A command's JSON: one line, no number that JSON does not have."""
    ran = run_here(*arguments, "--json", **options)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("\n") == 1

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(ran.out, parse_constant=refuse)


def shown(*arguments, **options):
    """A command's text for people, on something that is no terminal."""
    ran = run_here(*arguments, **options)
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    return ran.out


# --- inspect -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_heads(tmp_path_factory):
    """A checkpoint of a pretraining model, which has tensors to claim and tensors to ignore."""
    folder = write_checkpoint(tmp_path_factory.mktemp("heads") / "tiny", tiny_bert("BertForPreTraining"))
    buffer = {"bert.embeddings.position_ids": torch.arange(9)[None]}
    change_tensors(folder, lambda stored: stored.update(buffer))
    return folder


def test_inspect_accounts_for_every_tensor(with_heads):
    found = answer("inspect", with_heads)
    with safe_open(with_heads / "model.safetensors", framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    assert {t["name"]: t["shape"] for t in found["tensors"]} == {n: list(t.shape) for n, t in stored.items()}
    assert {t["dtype"] for t in found["tensors"]} == {"F32", "I64"}
    ours = set(unmask.load(with_heads).trainable_encoder().state_dict())
    assert {t["ours"] for t in found["tensors"] if t["ours"]} == ours
    for tensor in found["tensors"]:
        assert (tensor["ours"] is None) == bool(tensor["reason"]), tensor
        assert bool(tensor["reason"]) == tensor["name"].endswith("position_ids"), tensor


def test_inspect_says_what_it_is(with_heads):
    found = answer("inspect", with_heads)
    assert {key: found[key] for key in ("name", "folder", "revision", "family", "max_tokens")} == {
        "name": "tiny",
        "folder": str(with_heads),
        "revision": None,
        "family": "bert",
        "max_tokens": LIMIT,
    }
    model = tiny_bert("BertForPreTraining")
    assert found["parameter_count"] == sum(parameter.numel() for parameter in model.parameters())
    assert found["head"] == {
        "kind": "PooledVector",
        "pooling": ["mean"],
        "normalize": True,
        "projections": [],
        "dimensions": None,
        "prompts": [],
        "default_prompt": None,
        "pools_prompt": True,
        "lower_case": False,
    }
    assert found["head_missing"] is None
    assert f"WordPiece, {len(VOCABULARY)} pieces" in found["tokenizer"]
    spec = found["spec"]
    assert (spec["kind"], spec["width"], len(spec["layers"])) == ("EncoderSpec", WIDTH, LAYERS)
    assert spec["layers"][0]["mixer"]["kind"] == "SoftmaxAttention"
    assert spec["layers"][0]["mixer"]["heads"] == HEADS


def test_inspect_is_short_and_in_words(with_heads):
    found, text = answer("inspect", with_heads), shown("inspect", with_heads)
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for part in (
        f"parameters {found['parameter_count']:,}",
        "sentence embedding mean pooling, normalized",
        f"layers 0 to {LAYERS - 1} full attention, {HEADS} heads of width {WIDTH // HEADS};",
        "feed-forward 37 GELU; post-norm LayerNorm (eps 1e-12)",
        "masked language modeling (tied to the embedding); next sentence prediction (2 classes)",
        f"used {len(found['tensors']) - 1} of {len(found['tensors'])} ({len(found['tensors']) - 1} in F32);",
        "1 ignored a buffer of 0, 1, 2 ..., computed here (bert.embeddings.position_ids)",
    ):
        assert part in words
    assert "EmbeddingHead(" not in text
    assert "unusual dtype" not in text


def test_inspect_names_a_tensor_of_another_dtype(tiny_copy):
    name = "encoder.layer.1.output.dense.weight"
    change_tensors(tiny_copy, lambda stored: stored.update({name: stored[name].half()}))
    assert answer("inspect", tiny_copy)["odd_dtypes"] == [name]
    words = " ".join(shown("inspect", tiny_copy).split())
    assert f"unusual dtype {name}; the others are F32" in words


def test_inspect_for_people_shows_the_same(with_heads):
    found, text = answer("inspect", with_heads), shown("inspect", with_heads, "--tensors")
    claimed = sum(tensor["ours"] is not None for tensor in found["tensors"])
    ignored = len(found["tensors"]) - claimed
    assert claimed
    assert ignored
    assert f"{claimed} of {len(found['tensors'])}" in text
    lines = [line.split() for line in text.splitlines() if line.strip()]
    for tensor in found["tensors"]:
        (line,) = [words for words in lines if words[0] == tensor["name"]]
        assert " ".join(line).endswith(tensor["ours"] or f"ignored: {tensor['reason']}")
        assert " x ".join(map(str, tensor["shape"])) in " ".join(line)
    assert f"{found['parameter_count']:,}" in text
    assert f"layers 0 to {LAYERS - 1}" in text


def test_inspect_reports_what_nothing_understood(tiny_copy):
    change_json(tiny_copy / "config.json", wavelet_order=3)
    assert answer("inspect", tiny_copy)["unread_config"] == ["wavelet_order"]
    assert "wavelet_order" in shown("inspect", tiny_copy)
    (tiny_copy / "modules.json").unlink()
    found = answer("inspect", tiny_copy)
    assert found["head"] is None
    assert found["head_missing"] in " ".join(shown("inspect", tiny_copy).split())


def test_inspect_the_default(default_model):
    found = answer("inspect", "default")
    assert (found["name"], found["max_tokens"]) == (DEFAULT_NAME, 256)
    assert found["parameter_count"] == default_model.parameter_count == 22_713_216


# --- models and kernels --------------------------------------------------------------------------------


def test_models(default_model):
    rows, text = answer("models"), shown("models")
    assert [row["name"] for row in rows] == [p.name for family in FAMILIES for p in family.published]
    by_name = {row["name"]: row for row in rows}
    base = by_name["google-bert/bert-base-uncased"]
    assert {
        key: base[key] for key in ("family", "layers", "width", "heads", "parameter_count", "max_tokens")
    } == {
        "family": "bert",
        "layers": 12,
        "width": 768,
        "heads": 12,
        "parameter_count": 109_482_240,  # as published for BertModel with its pooler
        "max_tokens": 512,
    }
    assert by_name[DEFAULT_NAME]["here"] == "installed, as default"
    assert by_name[DEFAULT_NAME]["parameter_count"] == default_model.parameter_count
    for row in rows:
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [row["name"]]]
        assert f"{row['parameter_count']:,}" in line
        assert row["paper"] in text
        assert row["license"] in text
        assert row["use"] in text
        assert str(row["max_tokens"] or row["trained_tokens"] or "any") in line.split()
    assert by_name["lightonai/LateOn"]["use"] == "search with one vector for each token"
    assert by_name["lightonai/LateOn"]["trained_tokens"] == 8192
    assert max(map(len, text.splitlines())) <= 100


def test_models_list_the_adapters_that_come_with_the_package():
    adapters = {row["name"]: row["adapters"] for row in answer("models")}
    shipped = {one["name"]: one for one in adapters.pop(DEFAULT_NAME)}
    assert list(shipped) == list(SHIPPED_ADAPTERS)
    assert not any(adapters.values())
    for name, command in (("sentiment", "classify"), ("names", "tag"), ("answers", "answer")):
        assert shipped[name]["command"] == command
    assert shipped["sentiment"]["labels"] == ["negative", "positive"]
    text = shown("models")
    for name, one in shipped.items():
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert line.split()[1:] == ["unmask", one["command"], *", ".join(one["labels"]).split()]


def test_kernels():
    found, text = answer("kernels"), shown("kernels")
    assert [kernel["name"] for kernel in found["kernels"]] == [kernel.capability.name for kernel in KERNELS]
    assert found["torch"] == torch.__version__
    for dtype, engine in found["inference"].items():
        model = unmask.load("default", dtype=dtype)
        assert engine["backend"].startswith("native" if isinstance(model.engine, NativeEngine) else "torch")
        assert f"{engine['backend']}" in text
    assert ("cuda" in found["devices_here"]) == torch.cuda.is_available()
    for record, kernel in zip(found["kernels"], KERNELS, strict=True):
        here = kernel.capability.devices & set(found["devices_here"])
        assert bool(record["devices_here"]) == (bool(here) and kernel.capability.unavailable() is None)
        assert (record["why_not_here"] is None) == bool(record["devices_here"])
        assert set(record["devices_here"]) <= set(found["devices_here"])
        assert record["dtypes"] == sorted(kernel.capability.dtypes)
        assert record["patterns"] == sorted(pattern.__name__ for pattern in kernel.capability.patterns)
        names = [line.split() for line in text.splitlines() if line and not line.startswith(" ")]
        assert [record["name"]] in names
    assert max(map(len, text.splitlines())) <= 100
    block = " ".join(text.split()).partition("varlen computes")[2].partition("triton computes")[0]
    assert "dtypes bfloat16, float16 attention CausalAttention, FullAttention, SlidingWindow" in block
    assert "score terms NoPosition" in block


@pytest.mark.parametrize("name", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"])
@pytest.mark.parametrize(("before", "after"), [(None, "64"), ("7", "7")])
def test_the_program_bounds_the_products_that_onednn_keeps(monkeypatch, name, before, after):
    monkeypatch.setenv(name, "set, so that its former value comes back")
    monkeypatch.delenv(name)
    if before is not None:
        monkeypatch.setenv(name, before)
    assert run_here("models").code == 0
    assert json.loads(run_here("models", "--json").out)[0]["name"] == "google-bert/bert-base-uncased"
    assert os.environ[name] == after


# --- look ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def view(tiny_model):
    return tiny_model.attention(TEXT, PAIR)


def test_look_shows_the_tokens_of_the_text(tiny_folder, view):
    found, encoding = answer("look", TEXT, PAIR, "-m", tiny_folder), view.encoding
    assert [token["piece"] for token in found["tokens"]] == list(encoding.pieces)
    assert [token["id"] for token in found["tokens"]] == encoding.ids.tolist()
    assert [[token["start"], token["end"]] for token in found["tokens"]] == encoding.offsets.tolist()
    assert [token["special"] for token in found["tokens"]] == encoding.special.tolist()
    assert found["tokens"][1] == {
        "surface": "The",
        "piece": "the",
        "id": VOCABULARY.index("the"),
        "start": 0,
        "end": 3,
        "special": False,
    }
    assert found["original_tokens"] == found["kept_tokens"] == len(view)
    assert found["edges"] == []


def test_look_summarizes_every_head(tiny_folder, view):
    found = answer("look", TEXT, PAIR, "-m", tiny_folder)
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [
        (layer, head) for layer in range(LAYERS) for head in range(HEADS)
    ]
    for head in found["heads"]:
        p_NN = view.probabilities(head["layer"], head["head"]).astype(np.float64)
        received = p_NN.mean(axis=0)
        queries, keys = np.indices(p_NN.shape)
        assert head["entropy_nats"] == pytest.approx(-(p_NN * np.log(p_NN)).sum(axis=1).mean(), abs=1e-5)
        assert head["entropy_share"] == pytest.approx(head["entropy_nats"] / np.log(len(view)), abs=1e-5)
        assert head["distance_tokens"] == pytest.approx((p_NN * abs(queries - keys)).sum(1).mean(), abs=1e-4)
        assert head["sink_token"] == received.argmax()
        assert head["sink_mass"] == pytest.approx(received.max(), abs=1e-6)
        shares = {
            "self": p_NN[queries == keys].sum() / len(view),
            "previous": p_NN[queries == keys + 1].sum() / len(view),
            "next": p_NN[queries == keys - 1].sum() / len(view),
            "first": received[0],
            "special": received[1:][view.encoding.special[1:]].sum(),
        }
        assert head["relation"] == max(shares, key=shares.get)
        assert head["relation_mass"] == pytest.approx(max(shares.values()), abs=1e-6)
        assert head["kind"] == "softmax"
        assert head["label"] in LABELS
        assert head["label_share"] == pytest.approx(label_share(head["label"], p_NN, view.encoding), abs=1e-5)


def test_look_compares_two_texts(tiny_folder, tiny_model):
    other = "The river text was, xyz!"
    found = answer("look", other, "-m", tiny_folder, "--against", TEXT)
    before, after = tiny_model.attention(TEXT), tiny_model.attention(other)
    assert [(word["before"], word["after"]) for word in found["words"] if word["change"] != "kept"] == [
        ("bank", "text"),
        ("muddy", None),
    ]
    expected = tiny_model.similarity(TEXT, other)[0, 0]
    assert found["embedding_cosine"] == pytest.approx(expected, abs=1e-5)
    assert len(found["heads"]) == LAYERS * HEADS
    moved = [head["moved"] for head in found["heads"]]
    assert moved == sorted(moved, reverse=True)
    change = attention_change(before.cache, after.cache)
    assert found["heads"][0]["moved"] == pytest.approx(change.moved.max())
    assert "removed" in shown("look", other, "-m", tiny_folder, "--against", TEXT)
    ran = run_here("look", other, "-m", tiny_folder, "--against", TEXT, "--layer", "0")
    assert (ran.code, "--against is about all layers, and --layer 0 was given" in ran.err) == (1, True)


def label_share(label, p_NN, encoding):
    """The figure that a label is given by, from the map without special tokens."""
    kept, later = ~encoding.special, encoding.special & (np.arange(len(p_NN)) > 0)
    if label in ("first", "special"):
        return max(p_NN[:, 0].mean(), p_NN[:, later].sum(1).mean())
    inside_NN = p_NN * kept * kept[:, None]
    q_MM, ids = p_NN[kept][:, kept], encoding.ids[kept]
    given, at = q_MM.sum(1), np.arange(len(ids))
    offsets = q_MM.argmax(1) - at
    possible = {one: given[(at + one >= 0) & (at + one < len(ids))].sum() for one in offsets}
    most = max(given[offsets == one].sum() / max(possible[one], given.sum() / 2) for one in offsets)
    if label in ("self", "previous", "next", "offset") and most >= 0.9:
        return most
    if label == "diffuse":
        shares = q_MM / given[:, None]
        return (-(shares * np.log(shares)).sum(1) * given).sum() / given.sum() / np.log(len(ids))
    marks = [token for token, piece in enumerate(encoding.pieces) if piece in "!,."]
    twins = (ids[:, None] == ids) & ~np.eye(len(ids), dtype=bool)
    masses = [inside_NN[:, marks].sum(), q_MM[twins].sum() + np.trace(q_MM)]
    return max(*masses, *(np.trace(inside_NN, offset) for offset in (-1, 1))) / given.sum()


def test_look_names_heads(default_model):
    """Of a trained model, whose heads have names of several kinds; each by its figure from the whole map."""
    found, view = answer("look", TEXT), default_model.attention(TEXT)
    for head in found["heads"]:
        p_NN = view.probabilities(head["layer"], head["head"]).astype(np.float64)
        assert head["label_share"] == pytest.approx(label_share(head["label"], p_NN, view.encoding), abs=1e-4)
        assert head["special_share"] == pytest.approx(p_NN[1:-1, [0, -1]].sum(1).mean(), abs=1e-4)
    assert {"previous", "first", "diffuse", "mixed"} <= {head["label"] for head in found["heads"]}
    (line,) = [one for one in shown("look", TEXT).splitlines() if one.startswith("0.2 ")]
    assert line.split()[1] == "previous"


def test_look_says_that_linear_attention_gives_kernel_weights():
    found, text = answer("look", TEXT, "-m", "variant/linear"), shown("look", TEXT, "-m", "variant/linear")
    assert {head["kind"] for head in found["heads"]} == {"kernel"}
    assert "Kernel weights, not a softmax, in layers 0, 1, 2, 3" in text
    assert "by kernel weights" in shown("look", TEXT, "-m", "variant/linear", "-l", "1", "-H", "0")
    assert "ernel weights" not in shown("look", TEXT, "-m", "variant/unordered")


def test_look_at_one_layer_measures_no_other(tiny_folder, monkeypatch):
    from unmask.interpret.attention import attention_statistics as module

    measured, measure = [], module.measure_layer
    monkeypatch.setattr(
        module,
        "measure_layer",
        lambda of, layer, **rest: (measured.append(layer), measure(of, layer, **rest))[1],
    )
    answer("look", TEXT, "-m", tiny_folder, "-l", "1", "-H", "0")
    assert measured == [1]


def test_look_at_one_head_gives_the_views_probabilities(tiny_folder, view):
    found = answer("look", TEXT, PAIR, "-m", tiny_folder, "-l", "2", "-H", "3", "--top", "4")
    p_NN = view.probabilities(2, 3)
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [(2, 3)]
    assert len(found["edges"]) == 4 * len(view)
    for query in range(len(view)):
        edges = [edge for edge in found["edges"] if edge["query"] == query]
        assert [edge["key"] for edge in edges] == np.argsort(-p_NN[query], kind="stable")[:4].tolist()
        for edge in edges:
            assert edge["probability"] == pytest.approx(p_NN[query, edge["key"]], abs=1e-7)

    text = shown("look", TEXT, PAIR, "-m", tiny_folder, "-l", "2", "-H", "3", "--top", "4")
    assert "layer 2, head 3" in text
    for edge in found["edges"]:
        assert f"({edge['key']}) {edge['probability']:.3f}" in text


def test_look_at_more_keys_than_there_are(tiny_folder):
    found = answer("look", "the", "-m", tiny_folder, "-l", "0", "-H", "0", "--top", "99")
    assert len(found["edges"]) == 3 * 3
    for query in range(3):
        assert sum(e["probability"] for e in found["edges"] if e["query"] == query) == pytest.approx(
            1, abs=1e-6
        )


def test_look_for_people(tiny_folder):
    found, text = answer("look", TEXT, "-m", tiny_folder), shown("look", TEXT, "-m", tiny_folder)
    assert " ".join(token["surface"] for token in found["tokens"]) in text
    for head in found["heads"]:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{head['layer']}.{head['head']} ")]
        assert f"{head['relation']} {head['relation_mass']:.2f}" in line
        assert f"{head['entropy_nats']:.2f}" in line
        assert line.rstrip().endswith(f"{head['sink_mass']:.2f}")


def test_look_fits_into_a_terminal_and_explains_its_columns(default_model):
    _, table, legend = shown("look", "Unquestionably incomprehensible internationalization").split("\n\n")
    assert max(map(len, f"{table}\n{legend}".splitlines())) <= 80
    heading = table.splitlines()[0]
    for column in ("head", "pattern", "attends to", "entropy", "distance", "most attended"):
        assert column in heading
        assert column in legend
    for label in LABELS:
        assert label in legend


def test_look_at_one_layer(tiny_folder):
    found = answer("look", TEXT, "-m", tiny_folder, "--layer", "1")
    assert [(head["layer"], head["head"]) for head in found["heads"]] == [(1, head) for head in range(HEADS)]


def test_look_cuts_only_when_asked_and_says_so(tiny_folder):
    long = "bank " * 40
    found = answer("look", long, "-m", tiny_folder, "--truncation", "end")
    assert (found["original_tokens"], found["kept_tokens"], len(found["tokens"])) == (42, LIMIT, LIMIT)
    assert f"{LIMIT} tokens of 42, {42 - LIMIT} truncated" in shown(
        "look", long, "-m", tiny_folder, "--truncation", "end"
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_look_reads_standard_input(place, tiny_folder):
    options = ["-m", tiny_folder]
    arguments = ["-", *options] if place == "before" else [*options, "-"]
    content = "\ufeffthe  river\nbank\n".encode()
    found = answer("look", *arguments, stdin=content)
    assert [token["surface"] for token in found["tokens"]] == ["[CLS]", "the", "river", "bank", "[SEP]"]
    assert found["tokens"][3]["start"] == len("the  river\n")


def test_look_shows_markup_and_does_not_obey_it(tiny_copy):
    vocabulary = (tiny_copy / "vocab.txt").read_text()
    (tiny_copy / "vocab.txt").write_text(vocabulary.replace("[MASK]", "[bold]"))
    (tiny_copy / "tokenizer_config.json").write_text('{"mask_token": "[bold]"}')
    assert "[CLS] the [bold] river [SEP]" in shown("look", "the [bold] river", "-m", tiny_copy)
    assert "[bold] (2)" in shown("look", "the [bold]", "-m", tiny_copy, "-l", "0", "-H", "0", "--top", "9")


def test_look_shows_control_characters_and_does_not_send_them(tiny_folder):
    text = "the\x1b[31m ж\x1bж"
    assert answer("look", text, "-m", tiny_folder)["tokens"][-2]["surface"] == "ж\x1bж"
    assert "ж\\u001bж [SEP]" in shown("look", text, "-m", tiny_folder)


def test_look_with_no_color_and_no_fold_in_a_pipe(tiny_folder):
    text = "the river bank was muddy " * 5
    widest = max(map(len, shown("look", text, "-m", tiny_folder, "--truncation", "end").splitlines()))
    assert widest > 80


# --- the program ---------------------------------------------------------------------------------------


EVERY_COMMAND = [command for commands in PANELS.values() for command in commands]


def test_commands_have_the_names_of_their_functions():
    assert {"look", "index-export", "next"} <= {command.name for command in EVERY_COMMAND}


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: command.name)
def test_help_of_each_command(command):
    text = shown(command.name, "--help")
    assert text.startswith(f"Usage: unmask {command.name}")
    assert command.help in " ".join(text.split())
    loaded = command.load()
    if isinstance(loaded, App):
        assert " ".join(loaded.help.split()) == command.help
        return
    summary, _, rest = inspect.cleandoc(loaded.__doc__).partition("\n\n")
    assert " ".join(summary.split()) == command.help
    first_word_of_rest = rest.split(maxsplit=1)[:1]
    assert all(word in text for word in first_word_of_rest), "the help of a command is all of its docstring"
    assert "--json" in text


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(arguments):
    text = shown(*arguments)
    assert text.startswith("Usage: unmask")
    listed = [line.split()[1] for line in text.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert [name for name in listed if not name.startswith("-")] == [one.name for one in EVERY_COMMAND]
    assert all(title in text for title in PANELS)


def test_the_list_of_commands_imports_none_of_them():
    code = "import sys; from unmask.cli.main import program; program()(['--help']); "
    code += "print(*(name for name in sys.modules if name.startswith('unmask.cli.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), timeout=60, check=True
    )
    listed = set(done.stdout.decode().splitlines()[-1].split())
    few = ("main", "commands", "streams")
    assert listed == {f"unmask.cli.{name}" for name in few}


def test_version():
    assert shown("--version").strip() == unmask.__version__


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "unmask", "--version"],
        capture_output=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert (done.stdout.decode().strip(), done.stderr) == (unmask.__version__, b"")


HELD_PARTS = """
import os, sys, time
from unmask.models.load import Model
import unmask.cli.inputs
unmask.cli.inputs.TEXTS_PER_PART = 2
embed, calls = Model.embed_encodings, []

def held(*arguments, **options):
    while calls and not os.path.exists(GATE):
        time.sleep(0.002)
    calls.append(1)
    return embed(*arguments, **options)

Model.embed_encodings = held
"""
"""Small parts, all but the first of which are written after the reader has gone."""


@pytest.mark.parametrize(("command", "lines_read"), [("embed", 1), ("inspect", 0)])
def test_a_reader_that_stops_early(command, lines_read, apart, tiny_folder, tmp_path):
    """As ``| head -1`` does: no traceback, and nothing else on standard error either."""
    arguments = {"embed": ["embed", "-m", tiny_folder], "inspect": ["inspect", tiny_folder]}[command]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stdin = b"the river bank\n" * 20
    gate = tmp_path / "gate"
    before = f"GATE = {str(gate)!r}\n{HELD_PARTS}"
    process = apart.start(*arguments, stdin=stdin, stdout=str(pipe), before=before)
    with pipe.open("rb") as reader:
        for _ in range(lines_read):
            assert reader.readline().endswith(b"\n")
    gate.touch()
    ran = process.wait()
    assert (ran.code, ran.err) == (1, "")


def test_lines_of_progress_outside_a_terminal(monkeypatch, capsys):
    from unmask.cli import output

    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)
    with output.progress("embedding", 4) as report:
        for done in (0, 1, 4):
            report(done, 4)
        report(5, 0)
    first, last, unknown = capsys.readouterr().err.splitlines()
    assert first.startswith("embedding: 1 of 4, about ")
    assert last == "embedding: 4 of 4, about 0 s left"
    assert unknown == "embedding: 5"


def test_lines_of_progress_are_some_seconds_apart(monkeypatch, capsys):
    from unmask.cli import output

    clock = iter((0.0, 4.9, 5.0, 5.1, 9.9, 10.0))
    # The clock of this module alone: threads of other tests read that of the process.
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with output.progress("embedding", 0) as report:
        for done in range(1, 6):
            report(done, 0)
    assert capsys.readouterr().err.splitlines() == ["embedding: 2", "embedding: 5"]


@pytest.mark.parametrize(
    "command", [("look", "-l", "0"), ("compare",), ("watch",), ("geometry", "--no-random"), ("fill",)]
)
def test_a_text_may_be_piped_in(command, tmp_path):
    """Without an argument as with -, and the same as the text itself."""
    text = "The old man opened the [MASK] and went into the house where he slept." * 3
    model = ("-m", "unmask-mini", "--json")
    piped = run_here(*command, *model, stdin=text.encode())
    named = run_here(command[0], "-", *command[1:], *model, stdin=text.encode())
    typed = run_here(command[0], text, *command[1:], *model)
    assert (piped.code, piped.out) == (0, named.out), piped.err
    if command[0] != "fill":  # which says where it read a line
        assert typed.out == piped.out


def test_a_missing_text_is_not_waited_for_on_a_terminal(monkeypatch):
    class Keyboard(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Keyboard())
    with pytest.raises(InvalidRequest, match="there is no text; give one, or pipe one in"):
        read_text(None)
