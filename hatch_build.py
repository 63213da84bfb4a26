"""Build the native library into the package where a C++ compiler is found; without one the package is pure.

The compiler is that of the environment variable CXX, else c++, g++ or clang++, else the one of the package
ziglang. `python hatch_build.py` builds it in a checkout.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "unmask" / "engines" / "native"
OPTIONS = (
    *("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-s"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
)


def compiler() -> list[str] | None:
    """The command of a C++ compiler; None if there is none."""
    command = os.environ.get("CXX")
    if command:
        return shlex.split(command)
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return [path]
    return [sys.executable, "-m", "ziglang", "c++"] if find_spec("ziglang") else None


def build() -> list[Path]:
    """Build what is not there yet; the files of the library, or none where it cannot be built."""
    library = _library()
    if platform.system() != "Linux" or not library.LEVELS:
        return []
    wanted = {level: library.file_of(level) for level in library.LEVELS}
    command = compiler()
    zig = command is not None and "ziglang" in command
    for level, file in wanted.items():
        if file.exists():
            continue
        if command is None:
            print("unmask: no C++ compiler was found; encoders will run in torch", file=sys.stderr)
            return []
        # Zig spells levels with underscores.
        apart = file.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run(
                [
                    *command,
                    *OPTIONS,
                    *(["-mprefer-vector-width=512"] if level.startswith("x86") else []),
                    f"-march={level.replace('-', '_') if zig else level}",
                    str(library.SOURCE),
                    "-o",
                    str(apart),
                ],
                check=True,
                capture_output=True,
                text=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            print(
                f"unmask: the native library was not built, encoders will run in torch: {reason}",
                file=sys.stderr,
            )
            apart.unlink(missing_ok=True)
            return []
        apart.replace(file)
    for old in set(FOLDER.glob("engine-*.so")) - set(wanted.values()):
        old.unlink()
    return list(wanted.values())


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
