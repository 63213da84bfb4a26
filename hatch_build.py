"""Build the native library into the package where a C++ compiler is found; without one the package is pure.

The compiler is that of the environment variable CXX, else c++, g++ or clang++, else the one of the package
ziglang. `python hatch_build.py` builds it in a checkout.
"""

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "unmask" / "engines" / "native"
OPTIONS = (
    *("-std=c++17", "-O3", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
)
OF_SYSTEMS = {"Linux": ("-fPIC", "-s"), "Darwin": ("-fPIC",), "Windows": ("-s",)}
"""Options that differ."""


def compiler() -> list[str] | None:
    """The command of a C++ compiler; None if there is none."""
    command = os.environ.get("CXX")
    if command:
        return shlex.split(command)
    # On Windows GCC keeps vectors where the stack is not aligned for them (its bug 54412).
    for name in ("clang++",) if platform.system() == "Windows" else ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return [path]
    return [sys.executable, "-m", "ziglang", "c++"] if find_spec("ziglang") else None


def build() -> list[Path]:
    """Build what is not there yet; the files of the library, or none where it cannot be built."""
    library = _library()
    if not library.LEVELS:
        return []
    wanted = {level: library.file_of(level) for level in library.LEVELS}
    command = compiler()
    for level, file in wanted.items():
        if file.exists():
            continue
        if command is None:
            print("unmask: no C++ compiler was found; encoders will run in torch", file=sys.stderr)
            return []
        try:
            _compile(command_of(command, level, platform.system()), library.SOURCE, file)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            print(
                f"unmask: the native library was not built, encoders will run in torch: {reason}",
                file=sys.stderr,
            )
            return []
    for old in set(FOLDER.glob(f"engine-*.{library.SUFFIX}")) - set(wanted.values()):
        with contextlib.suppress(OSError):  # Windows keeps one that is in use
            old.unlink()
    return list(wanted.values())


def command_of(compiler: list[str], level: str, system: str) -> list[str]:
    """The compiler and its options for a level and an operating system."""
    vectors = ("-mprefer-vector-width=512",) if level.startswith("x86") else ()
    if "ziglang" in compiler:  # spells levels with underscores, and has another word for the only one of Arm
        level = "generic" if level == "armv8-a" else level.replace("-", "_")
    return [*compiler, *OPTIONS, *OF_SYSTEMS[system], *vectors, f"-march={level}"]


def _compile(command: list[str], source: Path, file: Path) -> None:
    """Compile in a folder apart, so that the file appears whole and alone."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        apart = Path(folder) / file.name
        subprocess.run([*command, str(source), "-o", str(apart)], check=True, capture_output=True, text=True)
        apart.replace(file)


def _library() -> Any:
    """`unmask.engines.native.library`, without what importing the package would need."""
    name = "unmask_native_library"
    interface = FOLDER / "interface.py"
    for module, file in (("unmask.engines.native.interface", interface), (name, FOLDER / "library.py")):
        spec = spec_from_file_location(module, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[name]


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    pass
else:

    class NativeLibrary(BuildHookInterface[Any]):
        """Adds the native library to wheels, which are then for one platform."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build, and name the files."""
            if self.target_name != "wheel":
                return
            files = build()
            if files:
                system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{system}"
                build_data["artifacts"] += [str(file.relative_to(HERE)) for file in files]


if __name__ == "__main__":
    print(*build(), sep="\n")
