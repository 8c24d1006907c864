"""Writes that nobody waits for: their order, their memory, and what happens at the end."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from threading import Event
from threading import Thread
import warnings

import pytest

from optuna_treecv.storage import model_store
from optuna_treecv.storage.model_store import WriteQueue

pytestmark = pytest.mark.usefixtures("_real_queue")


def test_jobs_are_done_in_order_while_the_caller_goes_on():
    queue, go, done = WriteQueue(), Event(), []
    queue.put(lambda: go.wait(120) and done.append("first"))
    for i in range(50):
        queue.put(lambda i=i: done.append(i))
    assert not done
    go.set()
    queue.wait()
    assert done == ["first", *range(50)]
    queue.put(lambda: done.append("last"))  # by another thread
    queue.wait()
    assert done[-1] == "last"


def test_what_waits_is_bounded():
    queue, go, done = WriteQueue(), Event(), []
    most = model_store._MAX_QUEUED_BYTES
    queue.put(lambda: go.wait(120), most // 2)
    queue.put(lambda: done.append("half"), most // 2)
    putting = Thread(target=queue.put, args=(lambda: done.append("more"), 1))
    putting.start()
    putting.join(0.1)
    assert putting.is_alive() and not done
    go.set()
    putting.join(120)
    queue.wait()
    assert done == ["half", "more"] and queue._n_bytes == 0
    queue.put(lambda: done.append("too large, but alone"), 2 * most)
    queue.wait()
    assert len(done) == 3


def fail():
    raise MemoryError("of 4 GB")


def test_a_job_that_fails_is_a_warning():
    queue, done = WriteQueue(), []
    with pytest.warns(RuntimeWarning, match="a write to the store failed: MemoryError"):
        queue.put(fail)
        queue.put(lambda: done.append(1))
        queue.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        queue.put(fail, 100)
        queue.put(lambda: done.append(2))
        queue.wait()
    assert done == [1, 2] and queue._n_bytes == 0


def test_a_pickled_queue_is_empty():
    queue, go, done = WriteQueue(), Event(), []
    queue.put(lambda: go.wait(120))
    copy = pickle.loads(pickle.dumps(queue))
    copy.put(lambda: done.append(1))
    copy.wait()
    assert done == [1]
    go.set()
    queue.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_queue_of_its_own():
    queue, go = WriteQueue(), Event()
    queue.put(lambda: go.wait(120))
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
        child = os.fork()
    if child == 0:
        queue.put(lambda: os.write(write, b"done"))
        queue.wait()
        os._exit(0)
    assert os.read(read, 4) == b"done" and os.waitpid(child, 0)[1] == 0
    go.set()
    queue.wait()


@pytest.mark.slow
def test_what_was_put_is_done_before_python_exits(tmp_path):
    """Also what another thread puts after the main thread is done."""
    script = """
import threading, time
from optuna_treecv.storage.model_store import WriteQueue
queue, others, ends = WriteQueue(), WriteQueue(), threading.Event()
queue.put(lambda: print("before", flush=True), 1)
queue.wait()
main = threading.main_thread()
def late():
    main.join()
    queue.put(lambda: print("after", queue._n_bytes, flush=True), 7)
    print("left", queue._n_bytes, flush=True)
threading.Thread(target=late).start()
others.put(lambda: (ends.wait(), time.sleep(0.2)))
threading._register_atexit(ends.set)  # called at the end
others.put(lambda: print("written", flush=True))
print("end", flush=True)
raise SystemExit(3)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert [first, second] == ["before", "end"]
    assert sorted(rest) == ["after 7", "left 0", "written"]
    assert rest.index("after 7") < rest.index("left 0")
