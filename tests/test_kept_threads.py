"""Threads that are used again: how many there are, and when they end."""

from __future__ import annotations

import os
import pickle
from queue import SimpleQueue
import signal
import subprocess
import sys
from threading import Barrier
from threading import Event
from threading import get_ident
from threading import RLock
from threading import Thread
import time
import warnings
import weakref

import pytest

from optuna_treecv.storage import outages
from optuna_treecv.storage.outages import KeptThreads


@pytest.fixture
def started(monkeypatch) -> list[Thread]:
    """Return the threads that are started from now on."""
    found, start = [], Thread.start

    def note(thread):
        found.append(thread)
        start(thread)

    monkeypatch.setattr(Thread, "start", note)
    return found


def test_callers_one_after_the_other_need_one_thread(started, monkeypatch):
    monkeypatch.setattr(outages, "KEPT_SECONDS", 3600.0)

    class Slow(list):
        def append(self, jobs):
            time.sleep(1e-4)
            super().append(jobs)

    threads = KeptThreads()
    threads._idle = Slow()
    used = [threads.submit(get_ident).result(120) for _ in range(1000)]
    assert len(started) == 1 and set(used) == {started[0].ident}


def test_no_work_waits_for_other_work(started, monkeypatch):
    monkeypatch.setattr(outages, "KEPT_SECONDS", 3600.0)
    threads, go = KeptThreads(), Event()
    stuck = threads.submit(lambda: go.wait(120))
    assert [threads.submit(lambda i=i: i).result(120) for i in range(100)] == list(range(100))
    assert len(started) == 2 and not stuck.done()
    go.set()
    assert stuck.result(120)
    barrier = Barrier(5)
    for answer in [threads.submit(barrier.wait) for _ in range(5)]:
        answer.result(120)
    assert len(started) == 5


def test_an_error_is_that_of_the_caller_and_ends_no_thread(started, monkeypatch):
    monkeypatch.setattr(outages, "KEPT_SECONDS", 3600.0)
    threads = KeptThreads()
    for kind in (ValueError, SystemExit, KeyboardInterrupt):
        answer = threads.submit(lambda kind=kind: (_ for _ in ()).throw(kind("no")))
        with pytest.raises(kind, match="no"):
            answer.result(120)
    assert threads.submit(lambda: 3).result(120) == 3
    assert len(started) == 1


def test_threads_without_work_end(started, monkeypatch):
    monkeypatch.setattr(outages, "KEPT_SECONDS", 0.05)
    threads, barrier = KeptThreads(), Barrier(4)
    answers = [threads.submit(barrier.wait) for _ in range(4)]
    answers.append(threads.submit(lambda: 1 / 0))
    for answer in answers:
        answer.exception(120)
    for thread in started:
        thread.join(120)
    assert not any(thread.is_alive() for thread in started)
    assert threads.submit(lambda: 3).result(120) == 3


class Jobs(SimpleQueue):
    """A queue in which nothing comes until the test says that it has waited long enough."""

    is_over = Event()

    def get(self, timeout):
        if self.empty():
            assert self.is_over.wait(120)
        return super().get(block=False)


class NoticedLock:
    """A lock that one thread can take twice, and that says when another one waits for it."""

    def __init__(self):
        self.lock, self.is_wanted = RLock(), Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.is_wanted.set()
            self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_work_that_comes_as_a_thread_would_end_is_done(started, monkeypatch):
    monkeypatch.setattr(outages, "SimpleQueue", Jobs)
    threads = KeptThreads()
    threads._lock = lock = NoticedLock()
    threads.submit(int).result(120)
    with lock:
        lock.is_wanted.clear()
        Jobs.is_over.set()
        assert lock.is_wanted.wait(120)
        answer = threads.submit(lambda: 3)
    assert answer.result(120) == 3 and len(started) == 1


def test_a_thread_without_work_holds_no_result(monkeypatch):
    monkeypatch.setattr(outages, "KEPT_SECONDS", 3600.0)

    class Large:
        pass

    threads = KeptThreads()
    answer = threads.submit(Large)
    found = weakref.ref(answer.result(120))
    del answer
    threads.submit(int).result(120)  # the thread has come back from the work before
    assert found() is None


def test_a_pickled_one_has_no_threads(started):
    threads = KeptThreads()
    threads.submit(int).result(120)
    assert pickle.loads(pickle.dumps(threads)).submit(lambda: 3).result(120) == 3
    assert len(started) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own():
    threads = KeptThreads()
    threads.submit(int).result(120)
    threads._lock.acquire()  # as if another thread held it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(120)  # instead of waiting for ever
        try:
            os._exit(threads.submit(lambda: 3).result(120))
        finally:
            os._exit(1)
    threads._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_python_exits_without_stuck_threads(tmp_path):
    script = """
import time
from optuna_treecv.storage.outages import KeptThreads
threads = KeptThreads()
threads.submit(lambda: time.sleep(1000))
threads.submit(int).result(120)
raise SystemExit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 3
