"""A bulk job on Ray beside one process, whole and killed twice: how long it takes, and that bytes agree.

    python -m benchmarks.bulk_kills [--texts 100000] [--workers 2] [--dtype float32]

The texts are the sentences of SST-2, repeated with a number before each. Every run embeds them with "default"
into shards of its own folder. The killed run gets SIGKILL at two random moments, while shards are being
written, and is started again. All shards must have the same SHA-256 in all runs.
"""

import argparse
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def written_texts(place: Path, count: int) -> Path:
    """A JSONL file of that many texts."""
    source = Path(__file__).parents[2] / "shared/data/glue/SST-2/train.tsv.xz"
    with lzma.open(source, "rt", encoding="utf-8") as file:
        sentences = [line.split("\t")[0] for line in list(file)[1:]]
    path = place / "texts.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            text = f"{number}: {sentences[number % len(sentences)]}"
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return path


def started(given: argparse.Namespace, texts: Path, output: Path, *options: str) -> subprocess.Popen[bytes]:
    """``unmask embed`` as a process."""
    fixed = ["--rows-per-shard", str(given.rows), "--dtype", given.dtype, "--threads", "1", "--json"]
    command = [sys.executable, "-m", "unmask", "embed", str(texts), "-o", str(output), *options, *fixed]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def whole(given: argparse.Namespace, texts: Path, output: Path, *options: str) -> float:
    """Seconds of one run."""
    began = time.monotonic()
    if started(given, texts, output, *options).wait():
        raise SystemExit(f"the run into {output} failed")
    return time.monotonic() - began


def killed(given: argparse.Namespace, texts: Path, output: Path, *options: str) -> list[int]:
    """A run with two kills; how many shards were finished at each."""
    draw, found = random.Random(given.seed), []
    shards = -(-given.texts // given.rows)
    for part in range(2):
        process = started(given, texts, output, *options)
        after = draw.randint(part * shards // 2 + 1, (part + 1) * shards // 2 - 1)
        while len(list(output.glob("part-*"))) < after and process.poll() is None:
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 1))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found.append(len(list(output.glob("part-*"))))
    whole(given, texts, output, *options)
    return found


def hashes(output: Path) -> dict[str, str]:
    """The SHA-256 of each shard, as the manifest has it."""
    shards = json.loads((output / "manifest.json").read_text())["shards"]
    return {one["file"]: one["sha256"] for one in shards}


def main() -> None:
    """Run all, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=2500, help="of a shard")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ray = ("--engine", "ray", "--workers", str(given.workers))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        texts = written_texts(place, given.texts)
        alone = whole(given, texts, place / "alone", "--engine", "processes", "--workers", "1")
        together = whole(given, texts, place / "together", *ray)
        at = killed(given, texts, place / "killed", *ray)
        reference = hashes(place / "alone")
        same = all(hashes(place / name) == reference for name in ("together", "killed"))
    report = {
        "texts": given.texts,
        "shards": len(reference),
        "dtype": given.dtype,
        "one_process_s": round(alone, 1),
    }
    report |= {"ray_s": round(together, 1), "speed_up": round(alone / together, 2), "killed_with_shards": at}
    print(json.dumps(report | {"identical": same, "load": round(os.getloadavg()[0], 1)}))
    sys.exit(not same)


if __name__ == "__main__":
    main()
