"""`ros2 run spec_vlm_nav find "the red ball"`: one goal from the command line, followed to its end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args

from spec_vlm_nav.client import GoalEnd, Outcome, Progress, Request, instruction_of
from spec_vlm_nav.nodes.goal_client import GoalClient
from spec_vlm_nav.transcript import Transcript, closing_words
from speculation.settings import CommandLine

CLEAR_LINE = "\r\x1b[2K"


class Screen:
    """Standard output: lines that stay and, on a terminal, the answer as it is written below them."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._transcript = Transcript()
        self._note = ""
        self.gone = False
        """Whether nobody can read any more: the terminal was closed, or the program that reads has ended."""

    def take(self, progress: Progress) -> None:
        """Show a feedback message."""
        self.write(self._transcript.take(progress))
        if self._terminal:
            self._print(CLEAR_LINE + self._transcript.live(shutil.get_terminal_size().columns))

    def note(self, text: str) -> None:
        """Show what the goal waits for, once."""
        if text != self._note:
            self._note = text
            self.write([f"... {text}"] if text else [])

    def end(self) -> None:
        """Show what is left of the last answer."""
        self.write(self._transcript.rest())

    def write(self, lines: Sequence[str]) -> None:
        """Write whole lines."""
        for line in lines:
            self._print((CLEAR_LINE if self._terminal else "") + line + "\n")

    def _print(self, text: str) -> None:
        if not self.gone:
            try:
                print(text, end="", flush=True)
            except OSError:
                self.gone = True
                # Python would fail once more when it flushes at its end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def arguments_of(words: Sequence[str]) -> Request:
    """Return the request of a command line. Ends the process, with a message, for one that is wrong."""
    parser = CommandLine(prog="find", description=__doc__)
    parser.add_argument("what", nargs="+", help='such as "the red ball"; any wording; "find" is put before a bare name')
    parser.add_argument("--time", type=float, default=0.0, metavar="S", help="time allowance; default: that of vlm_nav")
    parser.add_argument("--max-actions", type=int, default=0, metavar="N", help="most actions; 0: no limit but time")
    parser.add_argument("--dry-run", action="store_true", help="decide only; the robot stands")
    given = parser.parse_args(words)
    try:
        return Request(instruction_of(" ".join(given.what)), given.time, given.max_actions, given.dry_run)
    except ValueError as error:
        parser.error(str(error))


def pursue(node: Node, request: Request, presses: Sequence[int]) -> int:
    """Follow a goal to its end and return the exit status. `presses` grows with every signal."""
    screen, ends, started = Screen(), list[GoalEnd](), time.monotonic()
    client = GoalClient(node, screen.take, ends.append)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    screen.write([request.instruction])
    client.send(request)
    assert client.pursuit is not None
    while not ends:
        executor.spin_once(timeout_sec=0.1)
        if presses or screen.gone:
            client.cancel()
        if presses.count(signal.SIGINT) > 1:
            screen.write([f"left before {client.server} confirmed the stop: watch the robot"])
            return Outcome.CANCELLED.value
        # The wait for a server that is there is over before a person could read of it.
        if time.monotonic() - started > 1.0 or presses:
            screen.note(client.pursuit.note)
    screen.end()
    screen.write([*closing_words(ends[0], client.server, time.monotonic() - started)])
    client.destroy()
    return ends[0].outcome.value


def main() -> None:
    """Run the command. The first Ctrl-C (or SIGTERM, or the end of the terminal) cancels, the second one leaves."""
    presses: list[int] = []
    request = arguments_of(remove_ros_args(sys.argv)[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: presses.append(received))
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = Node("find")
        status = pursue(node, request, presses)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    sys.exit(status)


if __name__ == "__main__":
    main()
