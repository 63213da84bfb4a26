"""The server with the oldest libraries that the extra allows."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.places import REPOSITORY

FILES = ("test_access.py", "test_stalling.py", "test_routes.py", "test_special_tokens.py")


@pytest.mark.slow
def test_the_oldest_starlette_and_uvicorn(tmp_path):
    extras = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    bounds = {name: set(re.findall(rf'"{name}>=([0-9.]+)"', extras)) for name in ("starlette", "uvicorn")}
    assert all(len(one) == 1 for one in bounds.values())
    wanted = [f"{name}=={version}" for name, (version,) in bounds.items()]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "old"]
    if subprocess.run([*install, *wanted], capture_output=True, check=False).returncode:
        pytest.skip(f"{' and '.join(wanted)} cannot be installed here")
    ran = subprocess.run(
        # They use names of other packages that have been renamed since.
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore::DeprecationWarning", "-p", "no:cacheprovider"]
        + [str(REPOSITORY / "tests" / "serve" / name) for name in FILES],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'old'}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
