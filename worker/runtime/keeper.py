"""Supervises one sandboxed task and outlives the worker.

It collects the task's output and records its exit code.

    python -I keeper.py DIRECTORY < launch.json

It uses only the standard library. A restarted worker finds the task by the files in DIRECTORY: `keeper.json` (process
id and start time, so that a reused id is detected), `output.jsonl` (newer lines), `output.1.jsonl` (older lines) and
`exit.json`. On SIGTERM, the keeper sends SIGTERM to the task, and kills the task after its grace period.
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
"""Maximum size of each of the two output files, in bytes."""
MOST_LINE_BYTES = 8192
"""Maximum length of a line, in bytes. Longer lines are split."""

_TICK_SECONDS = 0.25
"""Interval in seconds at which the keeper checks the task."""
_SETUP_SECONDS = 10
"""Maximum time in seconds that the keeper waits for the first process in the sandbox."""


class Output:
    """Writes lines with strictly increasing timestamps.

    It rotates the output file when the file is full.
    """

    def __init__(self, directory: Path) -> None:
        self._current = directory / "output.jsonl"
        self._older = directory / "output.1.jsonl"
        self._file: IO[bytes] = self._current.open("ab")
        self._partial = {"stdout": b"", "stderr": b""}
        self._last_ns = 0

    def feed(self, stream: str, data: bytes) -> None:
        """Adds output of the task."""
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
        """Writes the remaining output that has no line end."""
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
    """Runs a task until it ends."""

    def __init__(self, directory: Path, launch: dict[str, Any]) -> None:
        self._directory = directory
        self._launch = launch
        self._stop_at: float | None = None
        self._stop_requested = False
        self._killed_for_memory = False

    def run(self) -> None:
        """Starts the task, collects its output and records its exit code."""
        output = Output(self._directory)
        task = subprocess.Popen(
            self._launch["sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            umask=0o022,  # the task's user must be able to enter directories that bubblewrap creates
            preexec_fn=self._before_exec,  # noqa: PLW1509 - this program has one thread
        )
        signal.signal(signal.SIGTERM, lambda *_: self._request_stop())
        # The task starts only when the keeper writes the command to the pipe, after running.json exists. If the keeper
        # is killed before that, the sandbox reads the end of the file and exits by itself.
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
            if self._stop_requested and not forwarded:
                forwarded = _terminate_inside(task.pid)
            if (self._stop_at is not None and time.monotonic() >= self._stop_at) or self._over_memory(task.pid):
                task.kill()  # `--die-with-parent` then ends all processes in the sandbox
        code = task.wait()
        return 128 - code if code < 0 else code

    def _request_stop(self) -> None:
        if self._stop_at is None:
            self._stop_requested = True
            self._stop_at = time.monotonic() + float(self._launch["grace_seconds"])

    def _before_exec(self) -> None:
        if self._launch["niceness"]:  # nice(0) is skipped, because a system call filter may refuse it
            os.nice(self._launch["niceness"])
        for group in self._launch["cgroups"]:
            (Path(group) / "cgroup.procs").write_text(str(os.getpid()))

    def _over_memory(self, pid: int) -> bool:
        """Returns True once, when the task exceeds its memory limit.

        It never returns True if a control group enforces the limit.
        """
        limit = self._launch["memory_watch_bytes"]
        if limit is None or self._killed_for_memory:
            return False
        held = sum(_resident_bytes(process) for process in _descendants(pid))
        self._killed_for_memory = held > limit
        return self._killed_for_memory

    def _cgroup_killed(self) -> bool:
        for group in self._launch["cgroups"]:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError, ValueError):
                    events = dict(line.split() for line in (Path(group) / name).read_text().splitlines())
                    if int(events.get("oom_kill", "0")) > 0:
                        return True
        return False

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_whole(self._directory / name, content)


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file atomically."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks since boot.

    None if the process has ended or is a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _first_inside(sandbox: subprocess.Popen[bytes]) -> int:
    """Returns the id of the first process in the sandbox; 0 if the sandbox did not start.

    The end of this process kills all others in the sandbox.
    """
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


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        found += _children(process)
    return found


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _terminate_inside(sandbox: int) -> bool:
    """Sends SIGTERM to the task; returns False if the task has not started.

    The task is a grandchild: bubblewrap, the first process in the sandbox, the task.
    """
    sent = False
    for first in _children(sandbox):
        for task in _children(first):
            with contextlib.suppress(ProcessLookupError):
                os.kill(task, signal.SIGTERM)
                sent = True
    return sent


def main() -> None:
    """Supervises the task whose directory is the first command-line argument."""
    directory = Path(sys.argv[1])
    launch = json.load(sys.stdin)
    os.umask(0o077)
    # If the worker has removed the directory meanwhile, this first write fails, and no task is started.
    write_whole(directory / "keeper.json", {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
    Keeper(directory, launch).run()


if __name__ == "__main__":
    main()
