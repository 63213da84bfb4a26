"""Use an installation of unmask: `python scripts/smoke.py VERSION EXTRA`, in its environment."""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import numpy as np

import unmask
from unmask.base.optional import has_torch, require

TEXTS = ["A river bank.", "The bank lends money.", "人工智能", "नमस्ते दुनिया", "مرحبا"]


def core() -> None:
    """Embed, compare, index without extras, and the command line."""
    model = unmask.load("default")
    vectors = model.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), 384)
    assert np.isfinite(vectors).all()
    assert np.array_equal(model.embed(TEXTS[1]), vectors[1]), "the same text has the same bits"
    assert unmask.load("default", dtype="int8").embed(TEXTS).shape == vectors.shape
    command = [sys.executable, "-m", "unmask"]
    shown = run([*command, "--version"], capture_output=True, text=True, check=True)
    assert sys.argv[1] in shown.stdout
    assert "embed" in run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    refused = run([*command, "fill", "-m", "nowhere", "x"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1, refused.stderr


def models() -> None:
    """The weights of unmask-models."""
    model = unmask.load("default", adapter="sentiment")
    assert [result.label for result in model.classify(["A wonderful film.", "Dull."])] == [
        "positive",
        "negative",
    ]
    assert unmask.load("unmask-mini").fill("The old man opened the [MASK].")


def torch() -> None:
    """Attention, and the same vectors from both engines."""
    model, other = unmask.load("default"), unmask.load("default", backend="torch")
    assert model.attention(TEXTS[0]).probabilities(layer=0, head=0).shape[0] > 2
    assert np.abs(model.embed(TEXTS) - other.embed(TEXTS)).max() < 1e-5


def search() -> None:
    """Index a file and search it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "notes.txt").write_text("\n\n".join(TEXTS), "utf-8")
        command = [sys.executable, "-m", "unmask"]
        run([*command, "index", folder, "-o", f"{folder}/index"], capture_output=True, check=True)
        hits = run(
            [*command, "search", f"{folder}/index", "money"], capture_output=True, text=True, check=True
        )
        assert "lends" in hits.stdout, hits.stdout


def serve() -> None:
    """The application of the server."""
    from unmask.serve import make_app

    make_app({"default": unmask.load("default")}).state.service.close()


def explorer() -> None:
    """The page as one file, and the application that serves it."""
    from unmask.explorer import make_app

    make_app(unmask.load("default"), token="a" * 24, port=0)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        command = [
            sys.executable,
            "-m",
            "unmask",
            "report",
            "A river bank.",
            "--views",
            "map",
            "-o",
            str(page),
        ]
        run(command, capture_output=True, check=True)
        assert page.stat().st_size > 100_000


def main() -> None:
    """The core, then what the extra adds."""
    version, extra = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    assert unmask.__version__ == version
    assert Path(unmask.__file__).parts[-3] == "site-packages", unmask.__file__
    core()
    if extra:
        require(extra)
    if has_torch():
        torch()
    if find_spec("unmask_models"):
        models()
    for name, use in (("search", search), ("serve", serve), ("explorer", explorer)):
        if extra == name:
            use()
    print(f"unmask {version} {extra or 'core'}: works with Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
