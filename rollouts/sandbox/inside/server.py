"""First process of a sandbox: imports the modules of jobs once, then forks a fresh process for each job.

The server receives orders over the socket that is its standard input, one packet for each. It handles no data of jobs:
sources, inputs and outputs are in descriptors that only the job's process reads or writes. So a job leaves no data in
the server's memory that the next job could find. The server ends when the socket closes.

The server keeps objects that jobs inherit, such as datasets. It makes these objects from a recipe's options, never from
an answer.

    → {"job": 7, "module": "program", "cpu_seconds": 5, "memory_bytes": …}  with the job's descriptors
    → {"kill": 7}
    → {"prepare": "a1…", "forget": [], "module": "gym.dataset", "payload": {…}, "memory_bytes": …, "ends_after": 61}
    ← {"prepared": "a1…", "fault": "", "out_of_memory": false}
    ← {"job": 7, "confined": true, "signal": 0, "exit": 0, "cpu_seconds": 0.02}
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from . import confine

_MOST_PACKET = 64 * 1024
_MOST_DESCRIPTORS = 8
_NOBODY = 65534
_MOST_OPEN_FILES = 1024
_LONGEST_FAULT = 500


def main() -> None:
    """Reads its configuration (the first packet), drops its privileges, and serves until the socket closes."""
    orders_socket = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    orders = json.loads(orders_socket.recv(_MOST_PACKET))
    sys.path.extend(orders["import_from"])
    gc.disable()  # imports make little garbage, and to search for it takes a tenth of their time
    for name in orders["imports"]:
        importlib.import_module(name)
    gc.enable()
    if orders["steady"]:
        importlib.import_module("inside.steady").begin()
    if orders["user"] is not None:
        _become_user(orders["user"])
    confine.hide_process()
    gc.collect()
    gc.freeze()
    server = _Server(orders_socket, may_read_files=orders["may_read_files"], steady=orders["steady"])
    server.send({"ready": True, "pid": os.getpid(), "root": os.geteuid() == 0})
    server.serve()
    os._exit(0)  # skips the slow shutdown of imported libraries


def _become_user(user: int) -> None:
    """Irrevocably switches to this user id, or to the account `nobody` if the system refuses the id.

    If the system refuses both ids, the server still runs as root. With namespaces, `Sandbox` then refuses to use the
    server.
    """
    for each in (user, _NOBODY):
        with contextlib.suppress(OSError):  # a container's user namespace maps only a few ids
            os.setgroups([])
            os.setresgid(each, each, each)
            os.setresuid(each, each, each)
            return


class _Server:
    def __init__(self, orders: socket.socket, *, may_read_files: bool, steady: bool = False) -> None:
        self._socket = orders
        self._steady = steady
        self._may_read_files = may_read_files
        self._prepared: dict[str, object] = {}
        self._ended, wakeup = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup)

    def send(self, message: dict[str, Any]) -> None:
        self._socket.send(json.dumps(message).encode())

    def serve(self) -> None:
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, _MOST_PACKET, _MOST_DESCRIPTORS)
            if not packet:
                return
            order = json.loads(packet)
            if "prepare" in order:
                self.send({"prepared": order["prepare"], **self._prepare(order)})
            elif "module" in order:  # other orders are late kill requests for jobs that have ended
                self._run(order, descriptors)

    def _prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Makes an object; returns the error, empty if there was none, and whether the memory limit caused it.

        If the object takes too long, the server ends itself, because nobody else may be able to end it: the server does
        not read its socket meanwhile, and the sandbox's owner may have ended or may not be allowed to kill the server.
        """
        self._forget(order["forget"])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        memory = order["memory_bytes"]
        if hard != resource.RLIM_INFINITY:
            memory = min(memory, hard // 2)  # jobs inherit the object, and need memory besides it
        fault, out_of_memory = "", False
        faulthandler.dump_traceback_later(order["ends_after"], exit=True)  # needs no signal and no interpreter lock
        try:
            resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
            self._prepared[order["prepare"]] = importlib.import_module(order["module"]).prepare(order["payload"])
        except MemoryError:
            fault, out_of_memory = f"it needs more than {memory >> 20} MiB of memory", True
        except Exception as error:  # noqa: BLE001 - a library may raise any exception for bad options
            fault = f"{type(error).__name__}: {error}"[:_LONGEST_FAULT]
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            faulthandler.cancel_dump_traceback_later()
        gc.collect()
        gc.freeze()
        return {"fault": fault, "out_of_memory": out_of_memory}

    def _forget(self, keys: list[str]) -> None:
        """Frees objects that jobs no longer need."""
        for key in keys:
            self._prepared.pop(key, None)
        if keys:
            gc.unfreeze()  # a collection skips frozen objects, and only a collection frees reference cycles
            gc.collect()

    def _run(self, order: dict[str, Any], descriptors: list[int]) -> None:
        server = os.getpid()
        confirmation, confirm = os.pipe()
        child = os.fork()
        if child == 0:
            self._become_job(order, [*descriptors, confirm], server)
        for descriptor in (*descriptors, confirm):
            os.close(descriptor)
        confined = os.read(confirmation, 1) != b""
        os.close(confirmation)
        self._wait_or_kill(order["job"], child)
        _, status, usage = os.wait4(child, 0)
        _kill_leftover_processes()
        self.send(
            {
                "job": order["job"],
                "confined": confined,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
            }
        )

    def _wait_or_kill(self, job: int, child: int) -> None:
        """Waits for the child's end, and kills the child on request.

        If the socket closes, the method kills the child and ends the server.
        """
        while True:
            readable, _, _ = select.select([self._socket.fileno(), self._ended], [], [])
            if self._ended in readable:
                os.read(self._ended, 4096)
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            if self._socket.fileno() in readable:
                packet = self._socket.recv(_MOST_PACKET)
                if not packet:
                    os.kill(child, signal.SIGKILL)
                    os._exit(0)
                if json.loads(packet).get("kill") == job:
                    os.kill(child, signal.SIGKILL)

    def _become_job(self, order: dict[str, Any], descriptors: list[int], server: int) -> NoReturn:
        """Drops all privileges, confirms this on the last descriptor, and runs the job with the other descriptors.

        The last of the other descriptors has the job's payload.
        """
        code = 1
        try:
            confine.die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _place(descriptors)
            confirm = len(descriptors) - 1
            run = importlib.import_module(order["module"]).run
            confine.set_limits(cpu_seconds=order["cpu_seconds"], memory_bytes=order["memory_bytes"])
            payload = _read_payload(confirm - 1)
            if self._steady:
                importlib.import_module("inside.steady").seed()
            confine.filter_system_calls(may_read_files=self._may_read_files)
            os.write(confirm, b"1")
            os.close(confirm)
            code = run(payload) if order["needs"] is None else run(payload, self._prepared[order["needs"]])
        except BaseException:  # noqa: BLE001 - nothing may return to the server's loop
            traceback.print_exc()
        finally:
            os._exit(code)


def _place(descriptors: list[int]) -> None:
    """Moves the given descriptors to 0, 1, 2, …, and closes all other descriptors."""
    first_free = max(descriptors) + 1
    high = [os.dup2(each, first_free + position, inheritable=False) for position, each in enumerate(descriptors)]
    for position, each in enumerate(high):
        os.dup2(each, position, inheritable=False)
    os.closerange(len(descriptors), _MOST_OPEN_FILES)


def _read_payload(descriptor: int) -> dict[str, Any]:
    """Reads the job's payload from a descriptor, and closes the descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        payload: dict[str, Any] = json.load(file)
    return payload


def _kill_leftover_processes() -> None:
    """Kills processes that a job left in the sandbox's own pid namespace; a filtered job can't leave any."""
    if os.getpid() != 1:
        return
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
