"""Worker processes that end with the command that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from speculation import program_exit


@contextmanager
def terminable() -> Iterator[None]:
    """Let a SIGTERM end the block as Ctrl-C does: KeyboardInterrupt, so that what it started is ended in order.

    Python's own default would end this process at once and leave its children behind. Outside the main thread, which
    alone may set handlers, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    program_exit.release_signals()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def worker_pool(processes: int, preload: Sequence[str] = ()) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of `processes` workers whose forks share the imports of the modules `preload`.

    Workers are not forked from this process, whose GL context does not survive that. They end with the block: at once
    where it ends by an exception (Ctrl-C and `terminable` among them), and also where this process is killed.
    Raises RuntimeError where a worker was ended from outside.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, _begin)
    try:
        yield pool
    except BaseException as error:
        # Shutting the pool down alone would wait for the calls that run.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        if isinstance(error, BrokenProcessPool):
            raise RuntimeError("a worker process was ended from outside; the same command goes on") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    # Ctrl-C reaches all processes of a terminal; workers print no traceback of their own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
