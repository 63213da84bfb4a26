"""Runs whose inputs and output are in an object store: the same bytes, after a kill, too; clear errors."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.command import Ran, assert_one_sentence, environment

pytestmark = pytest.mark.filterwarnings("default")  # moto and botocore warn about themselves
REASON = "moto's server and s3fs are not installed: pip install 'moto[s3]' flask flask-cors s3fs"
moto_server = pytest.importorskip("moto.server", reason=REASON)
s3fs = pytest.importorskip("s3fs", reason=REASON)

ROWS = 150
"""As many shards, so that a run lasts a few seconds."""
ACCESS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint():
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def files(endpoint):
    """The store, with a bucket."""
    store = s3fs.S3FileSystem(
        key="key", secret="secret", endpoint_url=endpoint, use_listings_cache=False, skip_instance_cache=True
    )
    store.mkdir("bucket")
    return store


@pytest.fixture
def command(endpoint, monkeypatch):
    """``unmask ARGUMENTS``, started in a process that finds the store through its environment."""

    def start(*arguments, **changes):
        variables = environment(AWS_ENDPOINT_URL=endpoint, **ACCESS) | changes
        return subprocess.Popen(
            [sys.executable, "-m", "unmask", *map(str, arguments)],
            env={name: value for name, value in variables.items() if value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process):
    out, err = process.communicate(timeout=120)
    return Ran(process.returncode, out, err)


def digests(contents):
    """The SHA-256 of every shard."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents if "part-" in name}


def test_a_killed_run_resumes_to_the_bytes_of_a_local_one(command, files, tmp_path):
    rows = [{"id": number, "text": f"Passage {number} of this test."} for number in range(ROWS)]
    lines, table = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows[: ROWS // 2]))
    parquet.write_table(pyarrow.Table.from_pylist(rows[ROWS // 2 :]), table)
    files.put([str(lines), str(table)], "bucket/in/")
    options = ("-m", "unmask-mini", "--pooling", "mean", "--engine", "processes", "--rows-per-shard", 1)
    remote = ("embed", "s3://bucket/in/*", "-o", "s3://bucket/out", *options)

    killed = command(*remote, "--workers", 2)
    until = time.monotonic() + 60
    while len(files.glob("bucket/out/part-*")) < 5:
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    left = {path.rpartition("/")[2] for path in files.find("bucket/out")}
    assert "manifest.json" not in left
    assert 5 <= len([name for name in left if name.startswith("part-")]) < ROWS

    resumed = ended(command(*remote, "--workers", 2, "--json"))
    assert resumed.code == 0, resumed
    summary = json.loads(resumed.out)
    assert summary["shards"] == ROWS
    assert 4 <= summary["resumed_shards"] < ROWS
    local = ended(command("embed", lines, table, "-o", tmp_path / "out", *options))
    assert local.code == 0, local
    stored = {path.rpartition("/")[2]: files.cat(path) for path in files.find("bucket/out")}
    wanted = {name: (tmp_path / "out" / name).read_bytes() for name in os.listdir(tmp_path / "out")}
    assert stored.keys() == wanted.keys()
    assert digests(stored.items()) == digests(wanted.items())
    listed = json.loads(stored["manifest.json"])["shards"]
    assert {one["file"]: one["sha256"] for one in listed} == digests(stored.items())

    again = ended(command(*remote))
    assert_one_sentence(again, "s3://bucket/out is finished already")


def test_a_lance_dataset_is_read_from_the_store(command, endpoint, files):
    lance = pytest.importorskip("lance", reason="pylance is not installed: pip install unmask[lance]")
    options = {"aws_endpoint": endpoint, "allow_http": "true"} | {k.lower(): v for k, v in ACCESS.items()}
    rows = pyarrow.table({"text": ["One.", "Two.", "Three."]})
    lance.write_dataset(rows, "s3://bucket/texts.lance", storage_options=options)
    run = ("embed", "s3://bucket/texts.lance", "-o", "s3://bucket/of-lance", "-m", "unmask-mini")
    ran = ended(command(*run, "--pooling", "mean", "--engine", "processes", AWS_ALLOW_HTTP="true"))
    assert ran.code == 0, ran
    with files.open("bucket/of-lance/part-00000.parquet") as file:
        assert parquet.read_table(file)["text"] == rows["text"]


@pytest.mark.parametrize(
    ("source", "output", "changes", "said"),
    [
        (
            "s3://nowhere/a.txt",
            "x",
            {},
            "s3://nowhere/a.txt cannot be read: The specified bucket does not exist",
        ),
        ("s3://bucket/no.txt", "x", {}, "s3://bucket/no.txt cannot be read: there is no such file"),
        ("s3://bucket/*.txt", "x", {}, "s3://bucket/*.txt matches no file"),
        ("", "s3://nowhere/x", {}, "cannot write s3://nowhere/x: The specified bucket does not exist"),
        ("", "s3://nowhere", {}, "cannot write s3://nowhere: The specified bucket does not exist"),
        ("", "s3://bucket/x", {"AWS_ACCESS_KEY_ID": ""}, "cannot write s3://bucket/x: Unable to locate cred"),
        ("s3://bucket/a.txt", "x", {"AWS_ACCESS_KEY_ID": ""}, "s3://bucket/a.txt cannot be read: Unable to"),
        (
            "",
            "s3://bucket/x",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "cannot write s3://bucket/x: Could not",
        ),
    ],
)
def test_what_the_store_refuses_is_one_sentence(source, output, changes, said, command, files, tmp_path):
    ran = embedded(command, source, output, tmp_path, changes)
    assert_one_sentence(ran, said)
    assert not (tmp_path / "x").exists()
    assert not files.exists("bucket/x")
    assert not files.exists("nowhere")


def embedded(command, source, output, tmp_path, changes):
    """One text of a local file, or of ``source``, embedded; an output without a scheme is local."""
    local = tmp_path / "a.txt"
    local.write_text("One text.\n")
    output = output if "://" in output else tmp_path / output
    options = ("-m", "unmask-mini", "--pooling", "mean", "--engine", "processes")
    changes = {"AWS_EC2_METADATA_DISABLED": "true"} | changes
    return ended(command("embed", source or local, "-o", output, *options, **changes))


def test_wrong_credentials_are_one_sentence(command, files, tmp_path, monkeypatch):
    with monkeypatch.context() as checked:
        checked.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
        written = embedded(command, "", "s3://bucket/x", tmp_path, {})
        read = embedded(command, "s3://bucket/a.txt", "x", tmp_path, {})
    assert_one_sentence(written, "cannot write s3://bucket/x: The AWS Access Key Id you provided does not")
    assert_one_sentence(read, "s3://bucket/a.txt cannot be read: Forbidden")
    assert not files.exists("bucket/x")
