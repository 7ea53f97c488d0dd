"""Where the slow calls of a log run: in the caller's thread, or in one of their own."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: Calls a function in the owner's thread, soon; the reactor's `callFromThread` is one.
CallInLoop = Callable[..., object]


class Runner(Protocol):
    """Runs jobs one after the other."""

    def run(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job, and give its result to `done` in the owner's thread."""

    def close(self) -> None:
        """Return when all jobs have run."""


class Inline:
    """Runs a job at once, in the caller's thread."""

    def run(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        done(job())

    def close(self) -> None:
        pass


class WorkerThread:
    """Runs jobs in a thread, which starts with the first one."""

    def __init__(self, name: str, call_in_loop: CallInLoop) -> None:
        self._name = name
        self._call_in_loop = call_in_loop
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None]
        self._jobs = SimpleQueue()
        self._thread: Thread | None = None

    def run(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        if self._thread is None:
            # A daemon: a disk that hangs must not keep a process from ending.
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((job, done))

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                result = job()
            except BaseException as error:
                # A mistake of ours: it must not end with this thread, unnoticed.
                self._call_in_loop(_raise, error)
            else:
                self._call_in_loop(done, result)


def _raise(error: BaseException) -> None:
    raise error
