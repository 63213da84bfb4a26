"""Commands in processes of their own that start in milliseconds: one parent imports, each command is a fork.

Nothing of torch runs in the parent, so there are no threads that a fork could lose, and what the hub's
client reads from the environment it reads in the child.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.command import Ran, environment
from tests.support.waiting import HANG_SECONDS, wait_until

PARENT = r"""
import gc, json, math, os, sys
import unmask.cli, unmask.cli.tasks.embed, unmask.cli.output, unmask.models.load
from unmask.families import FAMILIES
from unmask.weights.build import on_meta
on_meta(FAMILIES[0].published[0].spec)  # torch imports much more for the first encoder
unmask.cli.output.SECONDS_BETWEEN_LINES = math.inf  # a busy machine must not add lines of progress
os.fsync = lambda _: None  # no test cuts the power
gc.freeze()  # or each child copies and frees all that was imported, which takes it a second
requests, answers = map(int, sys.argv[1:])
with os.fdopen(requests) as lines:
    for line in lines:
        one = json.loads(line)
        if "wait" in one:
            answer = os.waitstatus_to_exitcode(os.waitpid(one["wait"], 0)[1])
        elif "ended" in one:
            answer = os.waitid(os.P_PID, one["ended"], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        else:
            answer = os.fork()
            if answer == 0:
                break
        os.write(answers, b"%d\n" % answer)
    else:
        sys.exit()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(one[name], flags), number)
os.close(answers)
os.environ.update(one["env"])
sys.argv = ["unmask", *map(os.fsdecode, map(bytes.fromhex, one["arguments"]))]
exec(one["before"], {})
unmask.cli.main()
"""


class Process:
    """A command that runs."""

    def __init__(self, parent, pid, folder):
        self._parent = parent
        self._folder = folder
        self.pid = pid

    def send(self, what):
        os.kill(self.pid, what)

    def until(self, what):
        """`wait_until` for what the command does; if it ends before, its output is the failure."""

        def reached():
            ended = self._parent.ask({"ended": self.pid})
            found = what()
            assert found or not ended, self.wait()
            return found

        return wait_until(reached)

    def wait(self):
        """Its exit code (or minus the signal that ended it) and what it wrote."""
        code = self._parent.ask({"wait": self.pid})
        out, err = ((self._folder / name).read_bytes().decode() for name in ("stdout", "stderr"))
        return Ran(code, out, err)


class Parent:
    """The process that imports once and forks for each command; ``also`` is a module that it imports too."""

    def __init__(self, also="unmask"):
        theirs, self._requests = os.pipe()
        self._answers, theirs_too = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {also}\n{PARENT}", str(theirs), str(theirs_too)],
            env=environment(),
            pass_fds=(theirs, theirs_too),
        )
        os.close(theirs)
        os.close(theirs_too)
        self._folders = tempfile.TemporaryDirectory()

    def ask(self, request):
        # The first answer comes after all imports, which is minutes on a machine that does much else.
        os.write(self._requests, json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], HANG_SECONDS)
            part = os.read(self._answers, 64) if ready else b""
            assert part, "no answer from the process that starts commands"
            answer += part
        return int(answer)

    def start(self, *arguments, stdin=b"", stdout=None, env=None, before=""):
        """Begin ``unmask ARGUMENTS``; ``before`` is Python that runs first in its process."""
        folder = Path(tempfile.mkdtemp(dir=self._folders.name))
        (folder / "stdin").write_bytes(stdin)
        raw = [part if isinstance(part, bytes) else os.fsencode(str(part)) for part in arguments]
        request = {
            "arguments": [part.hex() for part in raw],
            "stdin": str(folder / "stdin"),
            "stdout": stdout or str(folder / "stdout"),
            "stderr": str(folder / "stderr"),
            "env": env or {},
            "before": before,
        }
        if stdout:
            (folder / "stdout").touch()
        return Process(self, self.ask(request), folder)

    def run(self, *arguments, **options):
        """`start` and wait."""
        return self.start(*arguments, **options).wait()

    def stop(self):
        os.close(self._requests)
        if self._process.wait(timeout=30) != 0:
            self._process.send_signal(signal.SIGKILL)
        os.close(self._answers)
        self._folders.cleanup()
