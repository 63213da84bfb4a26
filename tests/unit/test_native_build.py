"""The hook that builds the native library: with a compiler, without one, and with one that fails."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from unmask.engines.native import library

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """The hook of a checkout whose library was never built."""
    monkeypatch.delenv("CXX", raising=False)
    folder = tmp_path / "unmask" / "engines" / "native"
    shutil.copytree(ROOT / "unmask" / "engines" / "native", folder, ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    spec = importlib.util.spec_from_file_location("hook_under_test", tmp_path / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept = sys.modules.get("unmask.engines.native.interface")
    yield module
    if kept is not None:  # the hook loads it by its file
        sys.modules["unmask.engines.native.interface"] = kept


def built(hook):
    return sorted(path.name for path in hook.FOLDER.glob("engine-*.so"))


def test_without_a_compiler_nothing_is_built_and_nothing_fails(hook, monkeypatch, capsys):
    monkeypatch.setattr(hook.shutil, "which", lambda name: None)
    monkeypatch.setattr(hook, "find_spec", lambda name: None)
    assert hook.build() == []
    assert built(hook) == []
    assert "no C++ compiler was found; encoders will run in torch" in capsys.readouterr().err


def test_a_compiler_that_fails_leaves_no_file(hook, monkeypatch, capsys):
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'raise SystemExit(\"no such option\")'")
    assert hook.build() == []
    assert built(hook) == []
    assert {path.suffix for path in hook.FOLDER.iterdir()} <= {".py", ".cpp", ""}
    assert "no such option" in capsys.readouterr().err


def test_the_compiler_of_a_package_is_the_last_choice(hook, monkeypatch):
    monkeypatch.setattr(hook.shutil, "which", lambda name: None)
    monkeypatch.setattr(hook, "find_spec", lambda name: object())
    assert hook.compiler() == [sys.executable, "-m", "ziglang", "c++"]
    asked = []
    monkeypatch.setattr(hook.subprocess, "run", lambda command, **_: asked.append(command) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hook.build()
    assert "-march=x86_64_v4" in asked[0], "as Zig spells it"
    assert "-march=generic" in hook.command_of(hook.compiler(), "armv8-a", "Linux"), "as Zig calls it"


@pytest.mark.parametrize(
    ("system", "machine", "compiler", "suffix", "position"),
    [
        ("Linux", "x86_64", "c++", ".so", True),
        ("Darwin", "arm64", "c++", ".dylib", True),
        ("Windows", "AMD64", "clang++", ".dll", False),
    ],
)
def test_each_system_has_its_compiler_and_file(
    hook, monkeypatch, system, machine, compiler, suffix, position
):
    monkeypatch.setattr(hook.platform, "system", lambda: system)
    monkeypatch.setattr(hook.platform, "machine", lambda: machine)
    monkeypatch.setattr(hook.shutil, "which", lambda name: name)
    asked = []

    def compiled(command, **_):
        asked.append(command)
        Path(command[-1]).touch()

    monkeypatch.setattr(hook.subprocess, "run", compiled)
    files = hook.build()
    assert len(files) == len(asked) == (1 if machine == "arm64" else 2)
    assert {path.suffix for path in files} == {suffix}
    assert {command[0] for command in asked} == {compiler}
    assert all(("-fPIC" in command) == position for command in asked)


@pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler here"
)
def test_a_changed_source_is_built_anew_and_the_old_library_goes(hook):
    source = hook.FOLDER / "engine.cpp"
    source.write_text("int answer() { return 1; }\n")  # the engine itself takes seconds
    first = hook.build()
    assert built(hook) == sorted(path.name for path in first)
    assert len(first) == 2
    assert hook.build() == first
    source.write_text(source.read_text() + "// changed\n")
    again = hook.build()
    assert built(hook) == sorted(path.name for path in again)
    assert not set(first) & set(again)


def test_a_wheel_for_another_platform_has_its_files_and_needs_no_machine_of_it(hook, monkeypatch, tmp_path):
    asked = []

    def compiled(command, **_):
        asked.append(command)
        Path(command[-1]).touch()

    monkeypatch.setattr(hook.subprocess, "run", compiled)
    monkeypatch.setattr(hook, "find_spec", lambda name: object())
    for name, (_, _, target) in hook.PLATFORMS.items():
        folder = tmp_path / name
        folder.mkdir()
        asked.clear()
        files = hook.build_for(name, folder)
        suffix = ".so" if "linux" in name else ".dylib" if "macosx" in name else ".dll"
        assert {file.suffix for file in files} <= {suffix}, name
        assert len(files) == (0 if name == "any" else 2 if name.endswith(("x86_64", "amd64")) else 1)
        assert all(file.parent == folder for file in files)
        assert all(target in command for command in asked)
    assert built(hook) == [], "nothing is left in the checkout"


def test_a_platform_that_is_not_known_is_refused_in_a_sentence(hook, tmp_path):
    with pytest.raises(
        SystemExit, match=r"UNMASK_WHEEL is 'solaris'; it can be manylinux_2_28_x86_64, .*any$"
    ):
        hook.build_for("solaris", tmp_path)


def test_a_wheel_is_not_built_without_its_compiler(hook, monkeypatch, tmp_path):
    monkeypatch.setattr(hook, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="a wheel for win_amd64 needs the package ziglang; install it"):
        hook.build_for("win_amd64", tmp_path)


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("fpu sse4_2 avx", []),
        ("fma f16c bmi2 avx2", ["x86-64-v3"]),
        ("fma f16c bmi2 avx2 avx512f avx512dq avx512cd avx512bw", ["x86-64-v3"]),
        ("fma f16c bmi2 avx2 avx512f avx512dq avx512cd avx512bw avx512vl", ["x86-64-v4", "x86-64-v3"]),
    ],
)
def test_the_processor_is_asked_before_a_library_is_loaded(monkeypatch, flags, levels):
    """What runs while a library is loaded was compiled with its instructions, too."""
    monkeypatch.setattr(library.platform, "system", lambda: "Linux")
    monkeypatch.setattr(
        library.Path, "read_text", lambda *_: f"vendor_id : x\nflags\t\t: {flags}\nbugs : y\n"
    )
    assert [level for level in library.FEATURES if library.may_load(level)] == levels


def test_a_library_that_the_processor_cannot_load_is_not_opened(monkeypatch):
    monkeypatch.setattr(library, "may_load", lambda level: False)
    monkeypatch.setattr(library, "opened", lambda level: pytest.fail(f"{level} was opened"))
    monkeypatch.delenv("UNMASK_ISA", raising=False)
    if any(level not in library.FEATURES for level in library.levels(library.platform.machine())):
        pytest.skip("every processor of this kind can load it")
    assert "lacks the instruction set" in library.connected.__wrapped__()
