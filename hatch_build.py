"""Build the native library into the package where a C++ compiler is found; without one the package is pure.

The compiler is that of the environment variable CXX, else c++, g++ or clang++, else the one of the package
ziglang. `python hatch_build.py` builds it in a checkout. A wheel is for this machine, or for the platform
that the environment variable UNMASK_WHEEL names, one of `PLATFORMS`: Zig compiles for each of them anywhere.
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
from typing import Any, NamedTuple

HERE = Path(__file__).parent
FOLDER = HERE / "unmask" / "engines" / "native"
OPTIONS = (
    *("-std=c++17", "-O3", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
)
OF_SYSTEMS = {"Linux": ("-fPIC", "-s"), "Darwin": ("-fPIC",), "Windows": ("-s",)}
"""Options that differ."""
ZIG = (sys.executable, "-m", "ziglang", "c++")


class Platform(NamedTuple):
    """What a wheel is built for."""

    system: str
    """As `platform.system` has it."""
    machine: str
    target: str
    """As Zig has it, with the oldest version of the system's library."""


PLATFORMS = {
    "manylinux_2_28_x86_64": Platform("Linux", "x86_64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": Platform("Linux", "aarch64", "aarch64-linux-gnu.2.28"),
    "musllinux_1_2_x86_64": Platform("Linux", "x86_64", "x86_64-linux-musl"),
    "musllinux_1_2_aarch64": Platform("Linux", "aarch64", "aarch64-linux-musl"),
    "macosx_11_0_x86_64": Platform("Darwin", "x86_64", "x86_64-macos.11.0"),
    "macosx_11_0_arm64": Platform("Darwin", "arm64", "aarch64-macos.11.0"),
    "win_amd64": Platform("Windows", "amd64", "x86_64-windows-gnu"),
    "any": Platform("", "", ""),
}
"""Those of wheels, by their tags; the last one is without the library."""


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
    return [*ZIG] if find_spec("ziglang") else None


def build() -> list[Path]:
    """Build what is not there yet; the files of the library, or none where it cannot be built."""
    library = _library()
    levels = library.levels(platform.machine()) if platform.system() in library.SUFFIXES else ()
    if not levels:
        return []
    wanted = {level: library.file_of(level) for level in levels}
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
    suffix = library.SUFFIXES[platform.system()]
    for old in set(FOLDER.glob(f"engine-*.{suffix}")) - set(wanted.values()):
        with contextlib.suppress(OSError):  # Windows keeps one that is in use
            old.unlink()
    return list(wanted.values())


def build_for(name: str, folder: Path) -> list[Path]:
    """Build the library of a platform into a folder.

    Raises:
        SystemExit: the platform is not one of `PLATFORMS`, or Zig is not installed.
        subprocess.CalledProcessError: the compiler refused it.
    """
    if name not in PLATFORMS:
        raise SystemExit(f"unmask: UNMASK_WHEEL is {name!r}; it can be {', '.join(PLATFORMS)}")
    system, machine, target = PLATFORMS[name]
    library, files = _library(), []
    if library.levels(machine) and find_spec("ziglang") is None:
        raise SystemExit(f"unmask: a wheel for {name} needs the package ziglang; install it")
    for level in library.levels(machine):
        files.append(folder / library.file_of(level, system).name)
        _compile(command_of([*ZIG, "-target", target], level, system), library.SOURCE, files[-1])
    return files


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
            name = os.environ.get("UNMASK_WHEEL")
            if name:
                self.folder = tempfile.TemporaryDirectory()
                files = build_for(name, Path(self.folder.name))
                inside = FOLDER.relative_to(HERE)
                build_data["force_include"] |= {str(file): str(inside / file.name) for file in files}
            else:
                name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                files = build()
                build_data["artifacts"] += [str(file.relative_to(HERE)) for file in files]
            if files:
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{name}"

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Remove what was built for another platform."""
            if hasattr(self, "folder"):
                self.folder.cleanup()


if __name__ == "__main__":
    print(*build(), sep="\n")
