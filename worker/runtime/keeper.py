"""Keeps one sandboxed task: outlives the worker, collects the output, and writes down how the task ended.

    python -I keeper.py DIRECTORY < launch.json

Standard library only. The worker finds the task again by the files in DIRECTORY: `keeper.json` (process id and its
start time, so that a reused id is not mistaken for it), `output.jsonl` (`output.1.jsonl` is the older half),
`exit.json`.
SIGTERM to the keeper asks the task to end and kills it after its grace.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

MOST_OUTPUT_BYTES = 16 << 20
"""Of each of the two output files."""
MOST_LINE_BYTES = 8192

_TICK_SECONDS = 0.25
_SETUP_SECONDS = 10


class Output:
    """Appends stamped lines; turns the file over when it is full. Stamps grow strictly."""

    def __init__(self, directory: Path) -> None:
        self._current = directory / "output.jsonl"
        self._older = directory / "output.1.jsonl"
        self._file: IO[bytes] = self._current.open("ab")
        self._partial = {"stdout": b"", "stderr": b""}
        self._last_ns = 0

    def feed(self, stream: str, data: bytes) -> None:
        """Takes what the task wrote."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        while len(rest) > MOST_LINE_BYTES:
            lines.append(rest[:MOST_LINE_BYTES])
            rest = rest[MOST_LINE_BYTES:]
        self._partial[stream] = rest
        for line in lines:
            for start in range(0, max(1, len(line)), MOST_LINE_BYTES):
                self._write(stream, line[start : start + MOST_LINE_BYTES])
        self._file.flush()

    def end(self) -> None:
        """Writes what was left without a line's end."""
        for stream, rest in self._partial.items():
            if rest:
                self._write(stream, rest)
        self._file.close()

    def _write(self, stream: str, line: bytes) -> None:
        self._last_ns = max(self._last_ns + 1, time.time_ns())
        text = line.rstrip(b"\r").decode(errors="replace")
        self._file.write(json.dumps([self._last_ns, stream, text]).encode() + b"\n")
        if self._file.tell() > MOST_OUTPUT_BYTES:
            self._file.close()
            self._current.replace(self._older)
            self._file = self._current.open("ab")


class Keeper:
    """Runs the task to its end."""

    def __init__(self, directory: Path, launch: dict[str, Any]) -> None:
        self._directory = directory
        self._launch = launch
        self._stop_at: float | None = None
        self._asked = False
        self._killed_for_memory = False

    def run(self) -> None:
        """Starts the task, follows it, writes down its end."""
        output = Output(self._directory)
        task = subprocess.Popen(
            self._launch["sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            umask=0o022,  # the directories that bubblewrap makes on the way to its mounts are for the task's user too
            preexec_fn=self._stand_back,  # noqa: PLW1509 - this program has one thread
        )
        signal.signal(signal.SIGTERM, lambda *_: self._ask())
        # The task starts when it is told its command, which is after it can be found again: had this process been
        # killed before, the sandbox would read the end of its input and go away by itself.
        first = _first_inside(task)
        self._write(
            "running.json", {"started_ns": time.time_ns(), "first_pid": first, "start_ticks": start_ticks(first)}
        )
        with contextlib.suppress(BrokenPipeError):
            _stream(task.stdin).write(json.dumps(self._launch["enter"]).encode())
            _stream(task.stdin).close()
        del self._launch["enter"]
        code = self._follow(task, output)
        output.end()
        out_of_memory = self._killed_for_memory or self._cgroup_killed()
        self._write("exit.json", {"exit_code": code, "out_of_memory": out_of_memory, "finished_ns": time.time_ns()})
        for group in self._launch["cgroups"]:
            with contextlib.suppress(OSError):
                Path(group).rmdir()

    def _follow(self, task: subprocess.Popen[bytes], output: Output) -> int:
        streams = selectors.DefaultSelector()
        for name, stream in (("stdout", _stream(task.stdout)), ("stderr", _stream(task.stderr))):
            os.set_blocking(stream.fileno(), False)
            streams.register(stream, selectors.EVENT_READ, name)
        forwarded = False
        while task.poll() is None or streams.get_map():
            for key, _ in streams.select(_TICK_SECONDS):
                data = os.read(key.fd, 65536)
                if data:
                    output.feed(key.data, data)
                else:
                    streams.unregister(key.fileobj)
            if task.poll() is not None and not streams.get_map():
                break
            if not streams.get_map():
                time.sleep(_TICK_SECONDS)
            if self._asked and not forwarded:
                forwarded = _ask_inside(task.pid)
            if (self._stop_at is not None and time.monotonic() >= self._stop_at) or self._over_memory(task.pid):
                task.kill()  # its death takes the sandbox along
        code = task.wait()
        return 128 - code if code < 0 else code

    def _ask(self) -> None:
        if self._stop_at is None:
            self._asked = True
            self._stop_at = time.monotonic() + float(self._launch["grace_seconds"])

    def _stand_back(self) -> None:
        if self._launch["niceness"]:  # else nothing is asked that a filter of system calls may refuse
            os.nice(self._launch["niceness"])
        for group in self._launch["cgroups"]:
            (Path(group) / "cgroup.procs").write_text(str(os.getpid()))

    def _over_memory(self, pid: int) -> bool:
        """Only where no control group does it: looks at what the task's processes hold."""
        limit = self._launch["memory_watch_bytes"]
        if limit is None or self._killed_for_memory:
            return False
        held = sum(_resident(process) for process in _family(pid))
        self._killed_for_memory = held > limit
        return self._killed_for_memory

    def _cgroup_killed(self) -> bool:
        for group in self._launch["cgroups"]:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError, ValueError):
                    words = dict(line.split() for line in (Path(group) / name).read_text().splitlines())
                    if int(words.get("oom_kill", "0")) > 0:
                        return True
        return False

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_whole(self._directory / name, content)


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file, whole or not at all."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def start_ticks(pid: int) -> int | None:
    """When the process started, in ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _first_inside(sandbox: subprocess.Popen[bytes]) -> int:
    """The first process inside the sandbox: killing it ends all that run there. 0 if the sandbox did not come up."""
    deadline = time.monotonic() + _SETUP_SECONDS
    while sandbox.poll() is None and time.monotonic() < deadline:
        for child in _children(sandbox.pid):
            return child
        time.sleep(0.002)
    return 0


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the task was started without a pipe")
    return stream


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def _family(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        found += _children(process)
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _ask_inside(sandbox: int) -> bool:
    """Sends SIGTERM to the task itself: bubblewrap → its first process inside → the task. False if it is not up yet."""
    sent = False
    for first in _children(sandbox):
        for task in _children(first):
            with contextlib.suppress(ProcessLookupError):
                os.kill(task, signal.SIGTERM)
                sent = True
    return sent


def main() -> None:
    """Keeps the task whose directory is the first argument."""
    directory = Path(sys.argv[1])
    launch = json.load(sys.stdin)
    os.umask(0o077)
    # First of all: if the worker has removed the directory meanwhile, this fails and nothing is started.
    write_whole(directory / "keeper.json", {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
    Keeper(directory, launch).run()


if __name__ == "__main__":
    main()
