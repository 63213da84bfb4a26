"""Build the archives that a release consists of: `python scripts/wheels.py` writes them to dist/.

Of `unmask`: the source archive, and a wheel for each platform of hatch_build.py, whose native library Zig
compiles on any machine. Of `unmask-models`: both. auditwheel checks that a wheel for Linux needs no newer
glibc than its tag says. Two runs on the same commit write the same files. Needs the extra ``release``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hatch_build import PLATFORMS  # noqa: E402


def build(kind: str, package: Path, folder: Path, platform: str = "") -> Path:
    """Build the ``wheel`` or the ``sdist`` of the package in a folder; the file."""
    committed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    environment = os.environ | {"SOURCE_DATE_EPOCH": committed or "0", "UNMASK_WHEEL": platform}
    with tempfile.TemporaryDirectory(dir=folder) as apart:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", apart]
        ran = subprocess.run(
            command, cwd=package, env=environment, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise SystemExit(f"release: the {kind} {platform} of {package.name} was not built: {ran.stderr}")
        (file,) = Path(apart).iterdir()
        return file.replace(folder / file.name)


def audit(wheel: Path, platform: str) -> None:
    """Refuse a wheel for Linux that needs a newer system library than its tag says."""
    if not platform.startswith("manylinux"):
        return
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=False
    )
    version, (_, allowed) = shown.stdout.partition('tag: "manylinux_')[2], platform.split("_")[1:3]
    needed = version.split("_")[1] if version else ""
    if not needed.isdigit() or int(needed) > int(allowed):
        raise SystemExit(f"release: {wheel.name} needs glibc 2.{needed or '?'}: {shown.stdout}{shown.stderr}")


def main() -> None:
    """Build what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "platforms", nargs="*", metavar="PLATFORM", help=f"of {', '.join(PLATFORMS)}; all if none"
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    unknown = set(asked.platforms) - set(PLATFORMS)
    if unknown:
        parser.error(f"no platform is called {', '.join(sorted(unknown))}; there are {', '.join(PLATFORMS)}")
    folder = asked.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    files = [build("sdist", package, folder) for package in (ROOT, ROOT / "models")]
    files.append(build("wheel", ROOT / "models", folder))
    for platform in asked.platforms or PLATFORMS:
        files.append(build("wheel", ROOT, folder, platform))
        audit(files[-1], platform)
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")


if __name__ == "__main__":
    main()
