"""Whatever is wrong, a command ends in a non-zero exit and one sentence, and leaves nothing half made."""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import Ran, assert_one_sentence, environment, run_here
from tests.support.full_disk import smallest_files
from tests.support.tiny import MAX_TOKENS, change_json, change_tensors
from unmask.base.files import whole_file, whole_folder
from unmask.errors import InvalidText, OutputError

NORM = "embeddings.LayerNorm.weight"
LIMIT = MAX_TOKENS - 4  # what sentence_bert_config.json of the tiny checkpoint says


def config(**changes):
    return lambda folder: change_json(folder / "config.json", **changes)


def null(key):
    def change(folder):
        value = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(value | {key: None}))

    return change


def written(name, content):
    """A file of the folder with other contents."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def removed(name):
    return lambda folder: (folder / name).unlink()


def put(name, make):
    """Something else in the place of a file."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def socket_at(path):
    # The name of a socket may have 107 bytes, fewer than those of a folder of pytest.
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
        made.bind(path.name)


def lfs_pointer(path):
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 13986800\n",
        encoding="ascii",
    )


def cut_short(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def tensors(change):
    return lambda folder: change_tensors(folder, change)


def norm(value):
    return tensors(lambda stored: stored.update({NORM: value}))


def without(part):
    def change(stored):
        for name in [name for name in stored if part in name]:
            del stored[name]

    return tensors(change)


def only_pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")


def index(content):
    """An index instead of the weights, which are under another name."""

    def change(folder):
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        (folder / "model.safetensors.index.json").write_text(content)

    return change


DEEP = b"[" * 100_000

DAMAGE = {
    # config.json
    "no config": (removed("config.json"), ("holds no config.json",)),
    "config not JSON": (written("config.json", "{"), ("config.json is not JSON",)),
    "config empty": (written("config.json", ""), ("config.json is not JSON",)),
    "config not text": (written("config.json", b"\xff\xfe\x00"), ("config.json is not JSON",)),
    "config too deep": (written("config.json", DEEP), ("config.json is not JSON",)),
    "config a list": (written("config.json", "[]"), ("config.json is not a JSON object",)),
    "model type unknown": (config(model_type="gpt2"), ("model_type", "'gpt2'", "built are: ", "bert")),
    "model type absent": (config(model_type=None), ("config.json", "model_type", "bert")),
    "model type a list": (config(model_type=["bert"]), ("model_type", "['bert']")),
    "relative positions": (config(position_embedding_type="relative_key"), ("'relative_key'", "'absolute'")),
    "activation unknown": (config(hidden_act="quick_gelu"), ("hidden_act", "'quick_gelu'", "'gelu'")),
    "activation a list": (config(hidden_act=["gelu"]), ("hidden_act", "['gelu']")),
    "decoder": (config(add_cross_attention=True), ("add_cross_attention is True",)),
    "decoder a number": (config(is_decoder=1), ("is_decoder is 1",)),
    "width a string": (config(hidden_size="30"), ("hidden_size is '30'",)),
    "width null": (null("hidden_size"), ("hidden_size is None",)),
    "feed-forward a truth": (config(intermediate_size=True), ("intermediate_size is True",)),
    "no layers": (config(num_hidden_layers=0), ("num_hidden_layers is 0", "at least 1")),
    "heads that do not divide": (config(num_attention_heads=7), ("width 30", "7 heads")),
    "no heads": (config(num_attention_heads=0), ("heads", "0")),
    "no vocabulary": (config(vocab_size=-1), ("vocab_size is -1",)),
    "no positions": (config(max_position_embeddings=0), ("max_position_embeddings is 0",)),
    "norm of nothing": (config(layer_norm_eps=0), ("layer_norm_eps is 0",)),
    "dropout over 1": (config(hidden_dropout_prob=1.5), ("hidden_dropout_prob is 1.5",)),
    "deviation below 0": (config(initializer_range=-1.0), ("initializer_range is -1.0",)),
    # weights
    "weights absent": (removed("model.safetensors"), ("holds no model.safetensors",)),
    **{
        f"weights of {size} bytes": (
            cut_short("model.safetensors", size),
            ("model.safetensors is damaged", "again"),
        )
        for size in (0, 5, 500, 90_000)
    },
    "weights one byte short": (cut_short("model.safetensors", -1), ("model.safetensors is damaged",)),
    "a tensor of another shape": (norm(torch.zeros(7)), (NORM, "7", "30")),
    "a tensor of another rank": (norm(torch.zeros(30, 1)), (NORM, "30 x 1")),
    "a tensor of whole numbers": (norm(torch.ones(30, dtype=torch.int64)), (NORM, "I64")),
    "a layer missing": (without("layer.1."), ("16 tensors are missing", "encoder.layer.1.", "13 more")),
    "a tensor too many": (
        tensors(lambda stored: stored.update({"encoder.layer.3.foo": torch.zeros(7)})),
        ("encoder.layer.3.foo", "config.json"),
    ),
    "not a number": (norm(torch.full((30,), float("nan"))), (NORM, "not finite")),
    "infinite": (norm(torch.full((30,), -float("inf"))), (NORM, "not finite")),
    "infinite in the dtype": (norm(torch.full((30,), 1e300, dtype=torch.float64)), (NORM, "not finite")),
    "a result that is infinite": (norm(torch.full((30,), 3e38)), ("line 1 of <stdin>", "not finite")),
    **{
        f"weights that are {what}": (put("model.safetensors", make), ("model.safetensors", part))
        for what, make, part in (
            ("a named pipe", os.mkfifo, "a named pipe, not a file"),
            ("a socket", socket_at, "a socket, not a file"),
            ("a device", lambda path: path.symlink_to("/dev/zero"), "a device, not a file"),
            ("a folder", os.mkdir, "a folder, not a file"),
            (
                "a pointer of Git LFS",
                lfs_pointer,
                "is a Git LFS pointer, not the file itself; run `git lfs pull`",
            ),
        )
    },
    **{
        f"a named pipe as {name}": (put(name, os.mkfifo), (f"{name}: it is a named pipe",))
        for name in (
            "config.json",
            "vocab.txt",
            "tokenizer_config.json",
            "modules.json",
            "1_Pooling/config.json",
        )
    },
    "a named pipe as index": (
        lambda folder: (
            put("model.safetensors.index.json", os.mkfifo)(folder),
            removed("model.safetensors")(folder),
        ),
        ("index.json: it is a named pipe",),
    ),
    "a named pipe as shard": (
        lambda folder: (
            os.mkfifo(folder / "part.safetensors"),
            index('{"weight_map": {"a": "part.safetensors"}}')(folder),
        ),
        ("part.safetensors: it is a named pipe",),
    ),
    "a named pipe as checksums": (put("unmask_checksums.json", os.mkfifo), ("it is a named pipe",)),
    "only pickled weights": (only_pickled, ("pickled", "unmask convert")),
    "index not JSON": (index("{"), ("index.json is not JSON",)),
    "index of numbers": (index('{"weight_map": {"a": 3}}'), ("index.json",)),
    "index of a shard that is not there": (
        index('{"weight_map": {"a": "model-2.safetensors"}}'),
        ("names model-2.safetensors",),
    ),
    "index that leaves the folder": (index('{"weight_map": {"a": "../x.safetensors"}}'), ("../x",)),
    # tokenizer
    "tokenizer absent": (
        removed("vocab.txt"),
        ("checkpoint holds no tokenizer (tokenizer.json, vocab.txt", "no text can be read", "give token ids"),
    ),
    "half a tokenizer": (
        lambda folder: (folder / "vocab.txt").rename(folder / "vocab.json"),
        ("vocab.json with merges.txt",),
    ),
    "tokenizer damaged": (written("tokenizer.json", "{}"), ("tokenizer.json holds no tokenizer",)),
    "tokenizer not text": (written("tokenizer.json", b"\xff"), ("tokenizer.json holds no tokenizer",)),
    "vocabulary not text": (written("vocab.txt", b"\xff"), ("vocab.txt is not UTF-8",)),
    "vocabulary empty": (written("vocab.txt", ""), ("vocab.txt lacks", "[UNK]")),
    "tokenizer config not JSON": (
        written("tokenizer_config.json", "{"),
        ("tokenizer_config.json is not JSON",),
    ),
    "tokenizer config a list": (written("tokenizer_config.json", "[]"), ("tokenizer_config.json",)),
    **{
        f"tokenizer config {content}": (written("tokenizer_config.json", content), ("tokenizer_config.json",))
        for content in (
            '{"cls_token": 3}',
            '{"cls_token": null}',
            '{"cls_token": {"a": 1}}',
            '{"do_lower_case": "yes"}',
            '{"model_max_length": -1}',
        )
    },
    # the sentence embedding
    "modules no list": (written("modules.json", "{}"), ("modules.json is not a list",)),
    "a module nowhere": (written("modules.json", '[{"type": "a.Pooling", "path": 3}]'), ("modules.json",)),
    "a module that leaves the folder": (
        written("modules.json", '[{"type": "a.Pooling", "path": "../1_Pooling"}]'),
        ("modules.json names '../1_Pooling', which is outside",),
    ),
    **{
        f"pooling {content}": (written("1_Pooling/config.json", content), ("1_Pooling",))
        for content in ("{", "[]", "{}", '{"pooling_mode": 3}', '{"pooling_mode": [[1]]}')
    },
    "no pooling": (written("modules.json", "[]"), ("name a pooling",)),
    "sentence limit a string": (
        written("sentence_bert_config.json", '{"max_seq_length": "19"}'),
        ("sentence_bert_config.json", "max_seq_length"),
    ),
    "sentence limit 0": (
        written("sentence_bert_config.json", '{"max_seq_length": 0}'),
        ("sentence_bert_config.json", "max_seq_length"),
    ),
    "prompts no object": (
        written("config_sentence_transformers.json", '{"prompts": [1], "default_prompt_name": "x"}'),
        ("config_sentence_transformers.json",),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint(damage, tiny_copy, tmp_path):
    change, parts = DAMAGE[damage]
    change(tiny_copy)
    out = tmp_path / "out"
    out.mkdir()
    ran = run_here("embed", "-m", tiny_copy, "-o", out / "rows.jsonl", stdin=b"the river\n")
    assert_one_sentence(ran, *parts)
    assert ran.out == ""
    assert list(out.iterdir()) == []


def test_what_may_be_null_or_absent_is_accepted(tiny_copy):
    null("pad_token_id")(tiny_copy)
    written("config_sentence_transformers.json", '{"prompts": null, "default_prompt_name": null}')(tiny_copy)
    written("tokenizer_config.json", '{"mask_token": null, "model_max_length": 1e30}')(tiny_copy)
    model = unmask.load(tiny_copy)
    assert model.spec.embedding.padding_id is None
    assert model.max_tokens == LIMIT


BANKS = "bank " * 40

COMMANDS = {
    "checkpoint that is not there": (["look", "the", "-m", "{}/nowhere/at/all"], b"", ("is not a folder",)),
    "checkpoint that is a file": (["look", "the", "-m", "{}/file.txt"], b"", ("is a file, not a folder",)),
    "revision of a folder": (
        ["look", "the", "--revision", "main", "-m", "TINY"],
        b"",
        ("'main'", "not on a hub"),
    ),
    "text too long": (["look", BANKS], b"", ("42 tokens", f"at most {LIMIT}", "--truncation end")),
    "line too long": (
        ["embed"],
        f"the\n{BANKS}\n".encode(),
        ("line 2 of <stdin>", "42", f"{LIMIT}", "--truncation"),
    ),
    "pair too long": (["look", "bank " * 10, "river " * 30], b"", ("43 tokens", f"at most {LIMIT}")),
    "no UTF-8 on standard input": (["embed"], b"the\nri\xffver\n", ("line 2 of <stdin>", "0xff", "byte 3")),
    "no UTF-8 in a file": (["embed", "{}/latin.txt"], b"", ("line 2 of", "latin.txt", "0xe9", "byte 4")),
    "no UTF-8 to look at": (["look", "-"], b"\xff", ("standard input", "0xff", "byte 1")),
    "UTF-16": (["embed"], "the river\n".encode("utf-16"), ("line 1 of <stdin>", "UTF-8")),
    "no input": (["embed"], b"", ("no text",)),
    "blank line": (["embed"], b"the\n\nriver\n", ("line 2 of <stdin>", "--blank skip")),
    "line of spaces": (["embed"], b"the\n \t\xc2\xa0\n", ("line 2 of <stdin>", "--blank skip")),
    "only blank lines": (["embed", "--blank", "skip"], b"\n\n", ("no text",)),
    "line of control characters": (["embed"], b"the\n\x01\x02\n", ("line 2 of <stdin>", "no words")),
    "empty text": (["look", ""], b"", ("no words",)),
    "text of spaces": (["look", "  "], b"", ("no words",)),
    "empty pair": (["look", "the", ""], b"", ("pair", "no words")),
    "empty text of a pair": (["look", "", "the"], b"", ("no words",)),
    "lone surrogate": (["look", "a\udcffb"], b"", ("U+DCFF", "character 1")),
    "lone surrogate in JSON": (
        ["embed", "--field", "t"],
        b'{"t": "a\\ud800"}\n',
        ("line 1 of <stdin>", "U+D800"),
    ),
    "field of no JSON": (["embed", "--field", "t"], b"the\n", ("line 1 of <stdin>", "not JSON")),
    "field too deep": (["embed", "--field", "t"], DEEP + b"\n", ("line 1 of <stdin>", "not JSON")),
    "field absent": (["embed", "--field", "t"], b'{"s": "a"}\n', ("line 1 of <stdin>", "'t'")),
    "field no string": (["embed", "--field", "t"], b'{"t": 1}\n', ("line 1 of <stdin>", "'t'")),
    "field of a list": (["embed", "--field", "t"], b"[1]\n", ("line 1 of <stdin>", "JSON object")),
    "file that is not there": (["embed", "{}/nothing.txt"], b"", ("nothing.txt", "No such file")),
    "file with a newline in its name": (["embed", "{}/no\nfile"], b"", ("no\\nfile", "No such file")),
    "checkpoint with a newline in its name": (
        ["look", "the", "-m", "{}/no/such\nfile"],
        b"",
        ("such\\nfile",),
    ),
    "name of 5,000 characters": (
        ["embed", "{}/" + "x" * 5000],
        b"",
        ("cannot read", "xxx ... xxx", "too long"),
    ),
    "file that is a folder": (["embed", "{}"], b"", ("cannot read", "directory")),
    "kernel unknown": (["embed", "--kernel", "magic"], b"the\n", ("'magic'", "sdpa")),
    "layer too high": (["look", "the", "--layer", "3"], b"", ("layer is 3", "0 to 2")),
    "layer below 0": (["look", "the", "--layer", "-1"], b"", ("layer is -1", "0 to 2")),
    "head too high": (["look", "the", "--layer", "0", "--head", "5"], b"", ("head is 5", "0 to 4")),
    "head of no layer": (["look", "the", "--head", "0"], b"", ("--head 0", "--layer")),
    "no strongest keys": (["look", "the", "-l", "0", "-H", "0", "--top", "0"], b"", ("0", "at least 1")),
    "output of another kind": (["embed", "-o", "{}/rows.txt"], b"the\n", ("rows.txt", ".jsonl", ".npy")),
    "output that is a folder": (["embed", "-o", "{}/folder.npy"], b"the\n", ("folder.npy is a folder",)),
    "output in no folder": (["embed", "-o", "{}/no/rows.npy"], b"the\n", ("cannot write", "no/rows.npy")),
    "output below a file": (["embed", "-o", "{}/file.txt/rows.npy"], b"the\n", ("cannot write", "rows.npy")),
    "output name too long": (["embed", "-o", "{}/" + "x" * 250 + ".npy"], b"the\n", ("cannot write",)),
    "blank lines of a matrix": (
        ["embed", "--blank", "skip", "-o", "{}/rows.npy"],
        b"the\n",
        ("--blank skip", ".jsonl"),
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_bad_argument_or_text(case, tiny_folder, tmp_path):
    arguments, stdin, parts = COMMANDS[case]
    (tmp_path / "file.txt").write_text("the\n")
    (tmp_path / "latin.txt").write_bytes("the\ncafé\n".encode("latin-1"))
    (tmp_path / "folder.npy").mkdir()
    before = sorted(tmp_path.rglob("*"))
    filled = [
        argument.replace("{}", str(tmp_path)).replace("TINY", str(tiny_folder)) for argument in arguments
    ]
    model = [] if "-m" in filled else ["-m", tiny_folder]
    ran = run_here(*filled, *model, stdin=stdin)
    assert_one_sentence(ran, *parts)
    assert ran.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["nothing"], ('"nothing"', "look")),
        (["embed", "--nothing"], ("--nothing",)),
        (["embed", "--dtype", "int3"], ('"int3"', "float32")),
        (["embed", "--truncation", "maybe"], ('"maybe"', "end")),
        (["look", "the", "--layer", "first"], ('"first"', "--layer")),
        (["head"], ("HEAD is missing",)),
        (["convert", "folder"], ("OUT is missing",)),
        (["inspect"], ("CHECKPOINT is missing",)),
        (["scaling", "--memory", "-1GiB"], ("--memory=-1GiB",)),
        (["embed", "--model"], ("--model",)),
        (["look", "the", "a", "text"], ("text",)),
    ],
)
def test_misuse_exits_with_2(arguments, parts):
    ran = run_here(*arguments)
    assert_one_sentence(ran, *parts, "unmask --help", code=2)
    assert ran.out == ""


def test_a_device_that_is_not_here(tiny_folder):
    with pytest.raises(unmask.UnmaskError, match="'toaster'"):
        unmask.load(tiny_folder, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(unmask.UnmaskError, match="no CUDA device"):
            unmask.load(tiny_folder, device="cuda")
    with pytest.raises(unmask.UnmaskError, match="'int3'"):
        unmask.load(tiny_folder, dtype="int3")


@pytest.mark.parametrize("text", [b"the", 3, None, "a\ud800b", ["the"]])
def test_what_is_no_text_is_refused_by_the_functions(tiny_model, text):
    for call in (tiny_model.embed, tiny_model.hidden_states, tiny_model.tokenize):
        with pytest.raises(InvalidText, match="text 2"):
            call(["the", text])
    with pytest.raises(InvalidText, match="the text"):
        tiny_model.attention(text)


def test_bytes_of_an_argument_that_are_no_text(apart, tiny_folder):
    assert_one_sentence(apart.run("look", b"a\xffb", "-m", tiny_folder), "U+DCFF", "character 1")


# --- disks that refuse ---------------------------------------------------------------------------------


def test_an_output_folder_that_cannot_be_written(tiny_folder, tmp_path):
    """Root may write anywhere but /proc; anyone else is refused by a read-only folder too."""
    places = ["/proc"] if os.path.isdir("/proc") else []
    if os.geteuid() != 0:
        (tmp_path / "shut").mkdir(mode=0o500)
        places.append(tmp_path / "shut")
    if not places:
        pytest.skip("no folder here refuses this user")
    for place in places:
        for name in ("rows.jsonl", "rows.npy"):
            ran = run_here("embed", "-m", tiny_folder, "-o", f"{place}/{name}", stdin=b"the\n")
            assert_one_sentence(ran, "cannot write", f"{place}/{name}")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.npy"])
def test_a_full_disk_while_embedding(name, tiny_folder, tmp_path):
    with smallest_files():
        ran = run_here("embed", "-m", tiny_folder, "-o", tmp_path / name, stdin=b"the river\n" * 100)
    assert_one_sentence(ran, "cannot write", name)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_converting(tiny_copy, tmp_path):
    from safetensors.torch import load_file

    torch.save(load_file(tiny_copy / "model.safetensors"), tiny_copy / "pytorch_model.bin")
    (tiny_copy / "model.safetensors").unlink()
    out = tmp_path / "out"
    out.mkdir()
    with smallest_files():
        ran = run_here("convert", tiny_copy, out / "new")
    assert_one_sentence(ran, "cannot write", "new")
    assert list(out.iterdir()) == []


@contextmanager
def small_disk(folder, size):
    """A disk of ``size`` bytes mounted on ``folder``."""
    library = ctypes.CDLL(None, use_errno=True)
    options = f"size={size}".encode()
    if library.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) != 0:
        pytest.skip(f"this user cannot mount a disk: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        assert library.umount(os.fsencode(folder)) == 0


def test_a_disk_that_is_really_full(tiny_folder, tiny_model, tmp_path):
    with small_disk(tmp_path, 65536):
        texts = b"the river\n" * 4000
        for name in ("rows.jsonl", "rows.npy"):
            ran = run_here("embed", "-m", tiny_folder, "-o", tmp_path / name, stdin=texts)
            assert_one_sentence(ran, "cannot write", name, "No space left")
            assert list(tmp_path.iterdir()) == []
        with pytest.raises(unmask.UnmaskError, match=r"cannot write.*tiny"):
            tiny_model.save(tmp_path / "tiny")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["embed", "look", "inspect", "models", "kernels", "--help", "--version"])
def test_standard_output_on_a_full_disk(command, apart, tiny_folder):
    arguments = {
        "embed": ["embed", "-m", tiny_folder],
        "look": ["look", "the", "-m", tiny_folder],
        "inspect": ["inspect", tiny_folder],
    }.get(command, [command])
    ran = apart.run(*arguments, stdin=b"the river\n", stdout="/dev/full")
    assert_one_sentence(ran, "No space left", "standard output")


@pytest.mark.parametrize(("closed", "command"), [("<&-", "embed"), (">&-", "models")])
def test_a_stream_that_is_closed(closed, command, tiny_folder):
    arguments = f"embed -m '{tiny_folder}'" if command == "embed" else command
    done = subprocess.run(
        f"'{sys.executable}' -m unmask {arguments} {closed}",
        shell=True,
        capture_output=True,
        env=environment(),
        timeout=120,
        check=False,
    )
    assert_one_sentence(Ran(done.returncode, "", done.stderr.decode()))


@pytest.mark.parametrize("kind", [whole_file, whole_folder])
@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), ValueError("mine"), KeyboardInterrupt()]
)
def test_a_fault_while_writing_leaves_nothing(kind, fault, tmp_path):
    path = tmp_path / "result"
    if kind is whole_file:
        path.write_text("before")

    def write():
        with kind(path) as partial:
            assert partial.parent == tmp_path
            (partial if kind is whole_file else partial / "part").write_text("half")
            raise fault

    with pytest.raises(OutputError if isinstance(fault, OSError) else type(fault)):
        write()
    assert [one.read_text() for one in tmp_path.iterdir()] == (["before"] if kind is whole_file else [])


def test_the_same_inputs_undamaged_are_fine(tiny_folder, tiny_model, tmp_path):
    """Were the tiny checkpoint itself refused, every test above would pass for a wrong reason."""
    ran = run_here("embed", "-m", tiny_folder, "-o", tmp_path / "rows.npy", stdin=b"the river\n")
    assert (ran.code, ran.err) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), tiny_model.embed(["the river"]))
