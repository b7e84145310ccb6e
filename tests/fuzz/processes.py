"""Faults of real processes: robots with real links and a verifier that is killed, frozen and ended, again and again.

`python -m tests.fuzz.processes --faults 20`. Between two faults every robot gets two whole answers, all the target's.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_drafter import Drafter, DraftingConfig, Interruption, Mode, StepInterrupted, StepRequest, sources_of
from edge_drafter.link import LinkConfig, ZmqLink
from speculation.progress import progress
from tests.cloud_verifier.process import ANSWER, Target, Verifier, make_target, start
from tests.cloud_verifier.test_engine import PROMPTS, jpeg
from tests.fuzz.edge import TimedModel

FAULTS = ("kill", "freeze", "end")
MODES = (Mode.FULL, Mode.SD, Mode.CLOUD)
PATIENCE_S = 120.0
FROZEN_S = 1.5
"""More than the silence after which these links are given up."""


class Robot(threading.Thread):
    """Asks one question after another and compares the answers."""

    def __init__(self, address: str, target: Target, number: int) -> None:
        super().__init__(daemon=True)
        self.answers = self.interrupted = 0
        self.problem = ""
        self.changed = threading.Condition()
        self._over = False
        self._target, self._number = target, number
        self._truth: list[int] = []
        config = LinkConfig(address, target.hello, ping_s=0.1, silent_s=1.0, hello_s=0.3)
        self._link = ZmqLink(config)
        self._model = TimedModel(time.sleep, self._guess, target.hello.vocabulary)

    def run(self) -> None:
        """Ask until `finish`."""
        drafters = [self._drafter(mode) for mode in MODES]
        count = self._number
        try:
            while not self._over and not self.problem:
                count += 1
                self._ask(drafters[count % len(MODES)], count % len(PROMPTS))
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._link.close()
            with self.changed:
                self.changed.notify_all()

    def finish(self) -> None:
        """Stop asking."""
        self._over = True
        self.join(PATIENCE_S)

    def answers_again(self, more: int = 2) -> None:
        """Wait for so many more answers. Raises AssertionError for a wrong one, or where none comes."""
        with self.changed:
            wanted = self.answers + more
            came = self.changed.wait_for(lambda: self.answers >= wanted or self.problem, PATIENCE_S)
        assert not self.problem, f"robot {self._number}: {self.problem}"
        assert came, f"robot {self._number} was not served again: {self._link.why}"

    def _drafter(self, mode: Mode) -> Drafter:
        config = DraftingConfig.of(mode, patience_s=5.0, resend_s=0.5)
        return Drafter(sources_of(config, self._model), self._link, config)

    def _guess(self, prefix: Sequence[int]) -> int:
        """Return the target's next token, but for every fourth."""
        wrong = len(prefix) % 4 == 3 or len(prefix) >= len(self._truth)
        return 5 + len(prefix) if wrong else self._truth[len(prefix)]

    def _ask(self, drafter: Drafter, question: int) -> None:
        self._truth = self._target.truths[question]
        committed: tuple[int, ...] = ()
        while not self._over:
            if not self._link.wait_nominal(1.0, lambda: self._over) or self._link.welcome is None:
                continue
            number = (self.answers + self.interrupted) * 2 + 1
            eos = tuple(self._link.welcome.eos)
            request = StepRequest(number, PROMPTS[question], jpeg(question), eos, ANSWER, 60.0, committed)
            try:
                tokens = drafter.run(request).tokens
            except StepInterrupted as stop:
                self.interrupted += 1
                committed = stop.committed
                ended = stop.cause is Interruption.REFUSED and "was stopped" in str(stop)
                if stop.cause is not Interruption.LINK_LOST and not ended:
                    raise
                if list(committed) != self._truth[: len(committed)]:
                    raise AssertionError(f"{committed} was committed, the answer is {self._truth}") from stop
                continue
            if list(tokens) != self._truth:
                raise AssertionError(f"{tokens} was committed, the answer is {self._truth}")
            with self.changed:
                self.answers += 1
                self.changed.notify_all()
            return


def serve(target: Target, address: str = "tcp://127.0.0.1:*") -> Verifier:
    """Start a verifier of the target, at an address that was free a moment ago."""
    return start(target.folder, "--dtype", "float64", "--max-sessions", "4", "--bind", address)


def inject(
    target: Target, faults: int, seed: int, progress: Callable[[int], object] = lambda count: None
) -> list[float]:
    """Inject so many faults; return the seconds after which all robots had two more answers, of each.

    Raises AssertionError for a wrong token, a lost step or a robot that is not served again.
    """
    rng, verifier = random.Random(seed), serve(target)
    address, seconds = verifier.address, list[float]()
    robots = [Robot(address, target, number) for number in range(2)]
    try:
        for robot in robots:
            robot.start()
        for robot in robots:
            robot.answers_again()
        for count in range(faults):
            what = FAULTS[count] if count < len(FAULTS) else rng.choice(FAULTS)
            time.sleep(rng.uniform(0.0, 0.2))
            began = time.monotonic()
            if what == "freeze":
                verifier.process.send_signal(signal.SIGSTOP)
                time.sleep(FROZEN_S)
                verifier.process.send_signal(signal.SIGCONT)
            else:
                verifier.stop(signal.SIGKILL if what == "kill" else signal.SIGTERM)
                verifier = serve(target, address)
            for robot in robots:
                robot.answers_again()
            seconds.append(time.monotonic() - began)
            progress(1)
    finally:
        for robot in robots:
            robot.finish()
        verifier.stop(signal.SIGKILL)
    assert sum(robot.interrupted for robot in robots) > 0
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where nothing broke."""
    from tests.models import tiny_model

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.processes", description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, progress(total=options.faults, unit=" faults") as bar:
        target = make_target(tiny_model(Path(folder) / "tiny", layers=4, seed=0), Path(folder))
        seconds = sorted(inject(target, options.faults, options.seed, bar.update))
    print(
        f"{options.faults} faults: 0 wrong tokens, 0 steps lost; all robots had two more answers after "
        f"{seconds[len(seconds) // 2]:.1f} s (median), {seconds[-1]:.1f} s (most)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
