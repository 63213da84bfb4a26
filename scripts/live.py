"""Builds what a saved page computes with: live.wasm and live.js of `unmask/explorer/live`.

    python scripts/live.py            write them; needs the extra ``release`` (Zig), and ``npm ci`` in web
    python scripts/live.py --check    only say whether they are of the present sources

Both are committed, so that nobody needs a compiler who does not change their sources.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hatch_build import ZIG  # noqa: E402

FOLDER = ROOT / "unmask" / "explorer" / "live"
WEB = ROOT / "web"
MANIFEST = FOLDER / "manifest.json"
OPTIONS = (
    *("-target", "wasm32-freestanding", "-nostdlib", "-msimd128", "-mbulk-memory", "-std=c++17", "-O3", "-s"),
    *("-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-Wl,--no-entry,--export=__heap_base"),
)
IMPORT = re.compile(r"^import (?!type ).*from '(\.[^']+)'", re.MULTILINE)
BUILD = ("npx", "vite", "build", "--config", "vite.live.config.js")


def sources() -> dict[str, str]:
    """The SHA-256 of the sources of each file that is built: paths and contents with LF line ends."""
    return {
        "live.js": _digest([*_modules(WEB / "src" / "live" / "main.ts"), WEB / "vite.live.config.js"]),
        "live.wasm": _digest([FOLDER / "live.cpp", Path(__file__)]),
    }


def _modules(start: Path) -> list[Path]:
    """A module of the page and all that it imports, directly or not, for more than types."""
    modules = [start]
    for module in modules:
        for name in IMPORT.findall(module.read_text(encoding="utf-8")):
            imported = (module.parent / f"{name}.ts").resolve()
            if imported not in modules:
                modules.append(imported)
    return sorted(modules)


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        name = path.resolve().relative_to(ROOT).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def main() -> None:
    """Build, or check."""
    if "--check" in sys.argv[1:]:
        built = json.loads(MANIFEST.read_text(encoding="utf-8"))
        old = [name for name, digest in sources().items() if built.get(name) != digest]
        if old:
            raise SystemExit(f"{' and '.join(old)}: built from other sources; run python scripts/live.py")
        return
    subprocess.run([*ZIG, *OPTIONS, str(FOLDER / "live.cpp"), "-o", str(FOLDER / "live.wasm")], check=True)
    (FOLDER / "live.wasm").chmod(0o644)
    subprocess.run(BUILD, cwd=WEB, check=True)
    MANIFEST.write_text(json.dumps(sources(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
