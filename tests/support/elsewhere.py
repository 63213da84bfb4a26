"""The package on a system without what only POSIX has, in a process where that is hidden (`without_posix`).

``python -m tests.support.elsewhere FOLDER`` does in a new folder what most people do, and prints the results.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

TEXTS = ["the river bank was muddy.", "a text", "another river, a bank!"]


def modules():
    """Import every module of the package, those in Triton where it is installed; how many."""
    import unmask

    root = Path(unmask.__file__).parent
    files = [path.relative_to(root.parent) for path in root.rglob("*.py") if path.name != "__main__.py"]
    if find_spec("triton") is None:
        files = [file for file in files if "triton" not in file.parts]
    for file in files:
        importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
    return len(files)


def command(*arguments):
    """What a command printed, after its exit code."""
    from unmask.cli.main import main

    sys.argv = ["unmask", *map(str, arguments)]
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue()


def inference(place):
    """Vectors, labels and words of the shipped models, and an output that is resumed."""
    import unmask
    from unmask.base.resume import ResumableFile

    model = unmask.load("unmask-mini")
    lines = place / "lines.txt"
    lines.write_bytes("\r\n".join(TEXTS).encode())
    path = place / "rows.jsonl"
    with contextlib.suppress(KeyboardInterrupt), ResumableFile(path, str, 3) as rows:
        rows.append(b"1\n2\n", 2)
        raise KeyboardInterrupt
    with ResumableFile(path, str, 3) as rows:
        resumed = rows.rows_done
        rows.append(b"3\n", 1)
    return {
        "fill": model.fill("The [MASK] was muddy.")[0].predictions[0].probability,
        "embed": command("embed", lines, "-m", "unmask-mini", "--pooling", "mean", "-o", place / "v.npy"),
        "classify": command("classify", TEXTS[0], "-m", "default", "--adapter", "sentiment", "--json"),
        "resumed": resumed,
        "rows": path.read_text(),
    }


def search(place):
    """An index of files, one of which keeps its parser busy; processes, deletion, another writer."""
    from unmask import Index
    from unmask.search.documents.pages import PageParser
    from unmask.search.store import writing

    documents = place / "documents"
    (documents / "below").mkdir(parents=True)
    (documents / "a.txt").write_bytes(b"the river\r\nbank was muddy")
    (documents / "below" / "b.html").write_bytes(b"<p>another bank" + b"<p>of stones" * 1000)
    built = command("index", documents, "-o", place / "index", "-m", "default")
    index = Index.open(place / "index")
    many = index.add([f"text {number} of a bank" for number in range(20)], workers=2)
    with writing(place / "index"):
        refused = command("index", documents, "-o", place / "index")
    try:
        with PageParser(0.3) as pages:
            pages.text("<div " + " ".join(f"a{n}=1" for n in range(300_000)) + ">x")
    except Exception as error:
        slow = str(error)
    hits = [hit.document for hit in Index.open(place / "index", check="full").search("muddy river")]
    return {"built": built, "added": many.added, "refused": refused, "hits": hits, "slow": slow}


def training(place):
    """A run of a few steps, and what resumes it; whether both gave the same weights."""
    import pytest

    from tests.training.runs import ended, last_tensors, write_run, write_texts
    from unmask.training.pretrain import pretrain

    write_texts(place)
    few = {"steps": 4, "checkpoints": {"every": 2}, "log": {"every": 1}, "evaluation": {"every": 4}}
    pretrain(write_run(place, **few, out="whole"))
    run = write_run(place, **few, out="halves")
    table = run.read_text(encoding="utf-8")
    run.write_bytes(table.replace("\n", "\r\n").encode())
    ended(run, pytest.MonkeyPatch(), 3)
    stopped = sorted(folder.name for folder in (place / "halves" / "checkpoints").iterdir())
    pretrain(run)
    whole, halves = (last_tensors(place / name) for name in ("whole", "halves"))
    same = whole.keys() == halves.keys() and all((whole[name] == halves[name]).all() for name in whole)
    log = (place / "halves" / "log.jsonl").read_bytes()
    return {"stopped": stopped, "same": bool(same), "memory": b"memory_bytes" in log, "returns": b"\r" in log}


def serving():
    """Answers of the server, and its refusal to fork."""
    from starlette.testclient import TestClient

    import unmask
    from unmask.serve import make_app

    models = {"mini": unmask.load("unmask-mini")}
    try:
        make_app(models, workers=2)
    except unmask.errors.InvalidRequest as error:
        refused = str(error)
    app = make_app(models)
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        answer = client.post("/v1/masked_words", json={"texts": ["The [MASK] was muddy."]})
    app.state.service.close()
    return {"refused": refused, "status": answer.status_code}


def processes(place):
    """Work over files in two processes, and what a program writes to a pipe of another encoding."""
    from unmask.bulk import BatchEmbedder, run_shards

    (place / "texts.txt").write_bytes("\r\n".join(TEXTS).encode() + b"\r\n")
    summary = run_shards(
        [str(place / "texts.txt")],
        str(place / "bulk"),
        BatchEmbedder("default"),
        workers=2,
        rows_per_shard=2,
    )
    piped = subprocess.run(
        [sys.executable, "-m", "unmask", "fill", "日本 [MASK]", "-m", "unmask-mini", "--json"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    return {
        "texts": summary.texts,
        "left": sorted(path.name for path in (place / "bulk").iterdir()),
        "piped": piped.stdout.decode("utf-8"),
    }


def main():
    """Do everything, and print it as one line of JSON."""
    place = Path(sys.argv[1])
    hidden = sys.modules["fcntl"] is None and not hasattr(os, "fork")
    results = {
        "hidden": hidden,
        "modules": modules(),
        "inference": inference(place),
        "search": search(place),
        "training": training(place / "training"),
        "serving": serving(),
        "processes": processes(place),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
