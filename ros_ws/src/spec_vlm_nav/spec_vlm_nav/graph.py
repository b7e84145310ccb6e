"""The process graph, declared once: which processes run, with which arguments, parameters and topic names.

`launch/*.launch.py` (real ROS 2 launch) and `runner.py` (where `ros2 launch` is missing) both read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import speculation
from edge_drafter import Mode
from simulation.layouts import Layout
from simulation.scene import Difficulty
from spec_vlm_nav.robots import ROBOTS, robot_of
from speculation.prompts import Guidance, ResponseOrder

PACKAGE = "spec_vlm_nav"
_BESIDE = Path(speculation.__file__).resolve().parents[1]
PROJECT = _BESIDE if (_BESIDE / "pyproject.toml").is_file() else Path.cwd()
"""Where `models/` and `out/` are: the checkout, or the working directory where the packages come from a wheel."""


@dataclass(frozen=True)
class Argument:
    """An argument of the whole graph."""

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    kind: type[bool] | type[int] | type[float] | type[str] = str
    """Type of the parameter that it becomes."""


@dataclass(frozen=True)
class Use:
    """Stands for the value of the argument called `name`."""

    name: str


Value: TypeAlias = bool | int | float | str | Use


@dataclass(frozen=True)
class NodeSpec:
    """A ROS 2 node: an executable of this package."""

    executable: str
    config: str
    parameters: tuple[tuple[str, Value], ...] = ()
    """Over those of `config`."""
    remaps: tuple[tuple[str, Value], ...] = ()
    """Topic names."""
    essential: bool = False
    """When it ends, everything ends."""
    finite: bool = False
    """Its end with status 0 is the work done, not a failure."""
    module: str = ""
    """Where its `main` is; empty for the one of its name in `spec_vlm_nav.nodes`."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.executable


@dataclass(frozen=True)
class CommandSpec:
    """A process that is no ROS 2 node. Arguments whose value is empty are left out with the flag before them."""

    name: str
    command: tuple[str | Use, ...]
    essential: bool = False
    finite: bool = False


@dataclass(frozen=True)
class Graph:
    """Arguments and processes, in starting order. Raises ValueError where a process uses an undeclared argument."""

    arguments: tuple[Argument, ...]
    processes: tuple[NodeSpec | CommandSpec, ...]

    def __post_init__(self) -> None:
        declared = {argument.name for argument in self.arguments}
        for process in self.processes:
            for use in uses(process):
                if use.name not in declared:
                    raise ValueError(f"{process.name} uses the argument {use.name!r}, which the graph does not declare")

    def argument(self, name: str) -> Argument:
        """Return the argument called `name`."""
        return next(argument for argument in self.arguments if argument.name == name)

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the values of all arguments. Raises ValueError for unknown names and values that are no choice."""
        for name, value in given.items():
            known = {argument.name: argument for argument in self.arguments}
            if name not in known:
                raise ValueError(f"unknown argument {name!r}; known are {', '.join(known)}")
            choices = known[name].choices
            if choices and value not in choices:
                raise ValueError(f"argument {name}:={value} is none of {', '.join(choices)}")
        return {argument.name: given.get(argument.name, argument.default) for argument in self.arguments}


def uses(process: NodeSpec | CommandSpec) -> list[Use]:
    """Return the arguments that a process uses."""
    if isinstance(process, CommandSpec):
        return [part for part in process.command if isinstance(part, Use)]
    return [value for _, value in (*process.parameters, *process.remaps) if isinstance(value, Use)]


def resolve(value: Value, values: Mapping[str, str]) -> str:
    """Return a value as text, arguments looked up."""
    if isinstance(value, Use):
        return values[value.name]
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_line(spec: CommandSpec, values: Mapping[str, str]) -> list[str]:
    """Return the words of a command; a `--flag` before an empty value goes with it."""
    words: list[str] = []
    for part in spec.command:
        word = resolve(part, values)
        if word:
            words.append(word)
        elif words and words[-1].startswith("--"):
            words.pop()
    return words


VERIFIER_ADDRESS = Argument("verifier", "tcp://127.0.0.1:5555", "address of the verifier, tcp://HOST:PORT")
TARGET = Argument("target_model", str(PROJECT / "models" / "target"), "folder of the target model")
DRAFT = Argument("draft_model", str(PROJECT / "models" / "draft"), "folder of the draft model")
KEYS = Argument("keys", "", "folder of CURVE keys for the link; empty: plain TCP, for loopback only")
ALLOW_PLAIN = Argument(
    "allow_plain",
    "false",
    "without keys, trust an address that is not this machine's; for networks that you trust",
    ("true", "false"),
    bool,
)
PROFILE = Argument("profile", "raw", "device profile of config/profiles.json whose times are waited for")
LINK = Argument("link", "", "link of config/links.json that is emulated, e.g. lte; empty: none")
TRACE = Argument("trace", "", "file for the trace (Perfetto JSON), written whenever a goal ends; empty: none")
MODE = Argument(
    "mode",
    Mode.FULL.value,
    "who decodes, and how (docs/decoding.md); server_sd needs server_draft",
    tuple(mode.value for mode in Mode),
)
DRAFTING = Argument("drafting", "", "changes of the mode's drafting settings, e.g. interrupt=off,gamma=auto")
SERVER_DRAFT = Argument("server_draft", "", "folder of a draft model beside the target, for mode server_sd")
RESPONSE_ORDER = Argument(
    "response_order",
    ResponseOrder.REASON_FIRST.value,
    "what answers begin with: their reasons, or their action",
    tuple(order.value for order in ResponseOrder),
)
GUIDE = Argument(
    "guide",
    Guidance.AUTO.value,
    "whether prompts explain the robot to the model; auto: to models that have no objects.json",
    tuple(guidance.value for guidance in Guidance),
)

VERIFIER = CommandSpec(
    "verifier",
    (
        "python3", "-m", "cloud_verifier", "serve", "--model", Use("target_model"), "--bind", Use("verifier"),
        "--profile", Use("profile"), "--keys", Use("keys"), "--allow-plain", Use("allow_plain"),
        "--draft-model", Use("server_draft"),
    ),
)  # fmt: skip
_NAVIGATION = (
    ("draft_model", Use("draft_model")),
    ("verifier", Use("verifier")),
    ("mode", Use("mode")),
    ("drafting", Use("drafting")),
    ("profile", Use("profile")),
    ("link", Use("link")),
    ("keys", Use("keys")),
    ("allow_plain", Use("allow_plain")),
    ("trace", Use("trace")),
    ("response_order", Use("response_order")),
    ("guide", Use("guide")),
)

VERIFIER_GRAPH = Graph(
    (TARGET, SERVER_DRAFT, VERIFIER_ADDRESS, PROFILE, KEYS, ALLOW_PLAIN),
    (CommandSpec(VERIFIER.name, VERIFIER.command, essential=True),),
)
"""The cloud side alone."""

SIM_GRAPH = Graph(
    (
        Argument("seed", "0", "which simulated room", kind=int),
        Argument("difficulty", "middle", "what the room is like", tuple(level.name.lower() for level in Difficulty)),
        Argument("target", "silver bottle", "the object that is hidden in the room"),
        Argument("layout", "room", "how many rooms there are", tuple(layout.value for layout in Layout)),
        MODE, DRAFTING, TARGET, DRAFT, SERVER_DRAFT, VERIFIER_ADDRESS, PROFILE, LINK, KEYS, ALLOW_PLAIN, TRACE,
        RESPONSE_ORDER, GUIDE,
    ),
    (
        VERIFIER,
        NodeSpec(
            "sim_go2",
            "sim.yaml",
            tuple((name, Use(name)) for name in ("seed", "difficulty", "target", "layout")),
            essential=True,
        ),
        NodeSpec("go2_bridge", "sim.yaml"),
        NodeSpec("action_executor", "sim.yaml"),
        NodeSpec("vlm_nav", "sim.yaml", _NAVIGATION, essential=True),
    ),
)  # fmt: skip
"""Simulated robot, edge and cloud on one machine, each process as on the real ones."""


def robot_graph(name: str) -> Graph:
    """Return the robot side on a real robot of `ROBOTS`; the verifier runs elsewhere (`verifier.launch.py`).

    Its parameters are in config/NAME.yaml. Raises ValueError for an unknown robot.
    """
    robot, config = robot_of(name), f"{name}.yaml"
    odometry, camera = ("odom", Use("odom_topic")), ("camera/image/compressed", Use("camera_topic"))
    return Graph(
        (
            Argument("odom_topic", robot.odom_topic, "nav_msgs/Odometry of the robot"),
            Argument("camera_topic", robot.camera_topic, "sensor_msgs/CompressedImage of the front camera, JPEG"),
            MODE, DRAFTING, DRAFT, VERIFIER_ADDRESS, PROFILE, LINK, KEYS, ALLOW_PLAIN, TRACE, RESPONSE_ORDER, GUIDE,
        ),
        (
            NodeSpec("go2_bridge", config, (("robot", name),), (odometry,)),
            NodeSpec("action_executor", config, remaps=(odometry,)),
            NodeSpec("vlm_nav", config, _NAVIGATION, (odometry, camera), essential=True),
        ),
    )  # fmt: skip


REPLAY_GRAPH = Graph(
    (
        Argument("bag", "", "folder of the bag that is played"),
        Argument("instruction", "", "instruction for its frames, e.g. find the silver bottle"),
        Argument("out", "", "folder of a new bag with the played frames and the answers; empty: nothing is recorded"),
        Argument("camera_topic", "", "Image or CompressedImage topic of the bag; empty: its first"),
        Argument("odom_topic", "", "nav_msgs/Odometry topic of the bag; empty: its first, if it has one"),
        Argument("rate", "1.0", "how many times as fast as it was recorded", kind=float),
        Argument("start", "0.0", "seconds of the bag that are left out at its start", kind=float),
        Argument("laps", "1", "how often it is played; 0: for ever", kind=int),
        MODE, DRAFTING, TARGET, DRAFT, SERVER_DRAFT, VERIFIER_ADDRESS, PROFILE, LINK, KEYS, ALLOW_PLAIN, TRACE,
        RESPONSE_ORDER, GUIDE,
    ),
    (
        CommandSpec(VERIFIER.name, VERIFIER.command, essential=True),
        NodeSpec("vlm_nav", "replay.yaml", _NAVIGATION, essential=True),
        NodeSpec(
            "bag_player",
            "replay.yaml",
            tuple(
                (name, Use(name))
                for name in ("bag", "instruction", "out", "camera_topic", "odom_topic", "rate", "start", "laps")
            ),
            essential=True,
            finite=True,
            module="evaluation.nodes.bag_player",
        ),
    ),
)  # fmt: skip
"""A recorded bag in place of the robot: nothing executes actions, so nothing can move."""

GRAPHS = {
    "sim": SIM_GRAPH,
    "verifier": VERIFIER_GRAPH,
    "replay": REPLAY_GRAPH,
    **{name: robot_graph(name) for name in ROBOTS},
}
"""By the name of the launch file."""
