"""The process graph, declared once: which processes run, with which arguments, parameters and topic names.

`launch/*.launch.py` (real ROS 2 launch) and `runner.py` (where `ros2 launch` is missing) both read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml

import speculation
from edge_drafter import Mode
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.parameters import Parameters
from spec_vlm_nav.robots import ROBOTS, robot_of
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import Guidance, ResponseOrder
from speculation.service import SERVICE_CLASSES
from speculation.settings import Field, expanded, fields_of
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.scene import Difficulty

PACKAGE = "spec_vlm_nav"
_BESIDE = Path(speculation.__file__).resolve().parents[1]
PROJECT = _BESIDE if (_BESIDE / "pyproject.toml").is_file() else Path.cwd()
"""Where `models/` and `out/` are: the checkout, or the working directory where the packages come from a wheel."""
RESPAWNS, RESPAWN_S = 3, 2.0
"""How often a process that died is started again, and after how many seconds."""
REFUSED = 2
"""Exit status of a process that cannot use its settings, which starting it again would not change."""
NO, YES = "false", "true"


EDGE = Parameters(
    EdgeConfig,
    {
        "target": "target_fingerprint",
        "silence_s": "link_silence_s",
        "resume_s": "link_resume_s",
        "resume_elsewhere_s": "link_resume_elsewhere_s",
    },
    without=("text_only",),
    defaults={"draft_model": Path("models/draft"), "answers": CONSTRAINED},
)
"""The parameters of vlm_nav that its decoder is made with."""


@dataclass(frozen=True)
class Argument:
    """An argument of the whole graph. Empty as its default means that whoever uses it has its own default."""

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    kind: type[bool] | type[int] | type[float] | type[str] = str
    """Type of the parameter that it becomes."""
    least: float | None = None
    """Inclusive limit of a number."""
    most: float | None = None
    """Inclusive limit of a number."""
    pattern: str = ""
    """A regular expression for all of a text; empty: any text."""
    example: str = ""
    """What fits the pattern, where the default does not."""
    is_path: bool = False
    """It names a file or folder, in which ~ is the home folder: a shell does not expand that behind `:=`."""

    def problem(self, text: str) -> str:
        """Return what is wrong with a value, naming the limit; empty where nothing is."""
        if not text and not self.default:
            return ""
        if self.choices:
            return "" if text in self.choices else f"is none of {', '.join(self.choices)}"
        if self.pattern and not re.fullmatch(self.pattern, text):
            return f"does not look like {self.default or self.example or self.description}"
        if self.kind not in (int, float):
            return ""
        try:
            number = self.kind(text)
        except ValueError:
            return "is no whole number" if self.kind is int else "is no number"
        field = Field(self.name, self.kind, None, "", self.least, self.most)
        return f"is outside its limits: {field.problem(number)}" if field.problem(number) else ""

    def typed(self, text: str) -> bool | int | float | str:
        """Return a value that has no `problem` as its kind."""
        return text == YES if self.kind is bool else self.kind(text)


def argument_of(struct: type[msgspec.Struct], setting: str, **changes: Any) -> Argument:
    """Return the argument for a setting of a struct, with its limits; `changes` are other fields of `Argument`."""
    field = next(field for field in fields_of(struct) if field.name == setting)
    plain = getattr(field.default, "value", field.default)
    kind = field.kind if field.kind in (int, float, bool) else str
    default = "" if field.required or plain is None else str(plain).lower() if kind is bool else str(plain)
    choices = (YES, NO) if kind is bool else field.choices
    given = {"name": setting, "default": default, "description": field.description, "choices": choices, "kind": kind}
    return Argument(**{**given, "least": field.least, "most": field.most, **changes})


@dataclass(frozen=True)
class Use:
    """Stands for the value of the argument called `name`."""

    name: str


Value: TypeAlias = bool | int | float | str | tuple[str, ...] | Use


def always(values: Mapping[str, str]) -> bool:
    """Hold for all arguments."""
    return True


@dataclass(frozen=True)
class NodeSpec:
    """A ROS 2 node: an executable of this package."""

    executable: str
    config: str
    """Its parameter file, in the package's folder `config`; the file of the argument `params_file` is read over it."""
    parameters: tuple[tuple[str, Value], ...] = ()
    """Over those of `config`; over those of `params_file` as well where the argument is not at its default."""
    remaps: tuple[tuple[str, Value], ...] = ()
    """Topic names."""
    managed: bool = False
    """It is a lifecycle node, which lifecycle_manager brings up."""
    beats: bool = False
    """It has a heartbeat while it is ready."""
    respawns: int = RESPAWNS
    """How often it is started again; once more, and everything ends with a failure."""
    finite: bool = False
    """Its end with status 0 is the work done: everything ends."""
    when: Callable[[Mapping[str, str]], bool] = always
    """Whether it is started with these arguments."""
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
    respawns: int = RESPAWNS
    finite: bool = False
    when: Callable[[Mapping[str, str]], bool] = always
    settings: str = ""
    """The argument that names its settings file: a flag gives way to it where its argument is at its default."""


class Ends:
    """What follows when a process ends, time after time."""

    def __init__(self, spec: NodeSpec | CommandSpec) -> None:
        self._spec, self.respawns = spec, 0

    def again(self, status: int) -> bool:
        """Return whether it is started again, False where its work is done.

        Raises RuntimeError, in a sentence, for a failure that ends everything.
        """
        spec = self._spec
        if spec.finite and status == 0:
            return False
        if status == REFUSED or self.respawns >= spec.respawns:
            tried = f" after {self.respawns} new starts" if self.respawns else ""
            raise RuntimeError(f"{spec.name} ended with status {status}{tried}")
        self.respawns += 1
        return True


@dataclass(frozen=True)
class Graph:
    """Arguments and processes, in starting order. Raises ValueError where a process uses an undeclared argument.

    Managed nodes are activated in this order: go2_bridge, which makes the robot stand, after what must work before.
    """

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
        """Return the values of all arguments.

        Raises ValueError, naming the argument, for an unknown name, and for a value that does not parse, is outside its
        limits or is no choice, and for a file of settings that cannot be read.
        """
        known = {argument.name: argument for argument in self.arguments}
        for name, value in given.items():
            if name not in known:
                near = get_close_matches(name, known, 1, 0.7)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise ValueError(f"unknown argument {name!r}; {hint}")
            if problem := known[name].problem(value):
                raise ValueError(f"argument {name}:={value} {problem}")
        values = {name: given.get(name, argument.default) for name, argument in known.items()}
        values |= {name: _path(name, value) for name, value in values.items() if known[name].is_path and value}
        for name in FILES & known.keys():
            if values[name]:
                load(name, values[name])
        return values

    def started(self, values: Mapping[str, str]) -> list[NodeSpec | CommandSpec]:
        """Return the processes that are started with these values; lifecycle_manager knows which nodes it manages."""
        chosen = [process for process in self.processes if process.when(values)]
        managed = [node for node in chosen if isinstance(node, NodeSpec) and node.managed]
        names: tuple[tuple[str, Value], ...] = (
            ("node_names", tuple(node.name for node in managed)),
            ("heartbeats", tuple(node.name for node in managed if node.beats)),
        )
        return [
            replace(process, parameters=(*process.parameters, *names))
            if isinstance(process, NodeSpec) and process.name == MANAGER
            else process
            for process in chosen
        ]

    def given(self, process: NodeSpec, values: Mapping[str, str]) -> dict[str, Any]:
        """Return a node's parameters beyond its files: names and typed values.

        An argument at its default gives way to `params_file`, and to the node's own default where it is empty.
        """
        by_file = {name for _, name, _ in held_for(values.get(PARAMS_FILE.name, ""), process.name)}
        found: dict[str, Any] = {}
        for name, value in process.parameters:
            if not isinstance(value, Use):
                found[name] = list(value) if isinstance(value, tuple) else value
                continue
            argument, text = self.argument(value.name), values[value.name]
            at_default = text == argument.default
            if not (at_default and (not text or name in by_file)):
                found[name] = argument.typed(text)
        return found

    def command(self, process: CommandSpec, values: Mapping[str, str]) -> list[str]:
        """Return the words of a command; a `--flag` before an empty value goes with it."""
        by_file = load(process.settings, values[process.settings]) if values.get(process.settings) else {}
        words: list[str] = []
        for part in process.command:
            word = values[part.name] if isinstance(part, Use) else part
            flag = words[-1] if words and words[-1].startswith("--") else ""
            if isinstance(part, Use) and word == self.argument(part.name).default:
                word = "" if flag[2:].replace("-", "_") in by_file else word
            if word:
                words.append(word)
            elif flag:
                words.pop()
        return words

    @staticmethod
    def remaps(process: NodeSpec, values: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return a node's topic names and what they become.

        /tf goes with the namespace, as in nav2: each of several robots has its own.
        """
        named = [(name, values[value.name] if isinstance(value, Use) else str(value)) for name, value in process.remaps]
        return [*(pair for pair in named if pair[1]), ("/tf", "tf"), ("/tf_static", "tf_static")]


def _path(name: str, value: str) -> str:
    """Return a path as it is in this folder: processes may run in another. Raises ValueError for an unknown user's."""
    try:
        path = expanded(value)
    except ValueError as error:
        raise ValueError(f"argument {name}:={error}") from None
    return str(path.absolute()) if name not in NAMES or path.exists() else str(path)


def uses(process: NodeSpec | CommandSpec) -> list[Use]:
    """Return the arguments that a process uses."""
    if isinstance(process, CommandSpec):
        return [part for part in process.command if isinstance(part, Use)]
    return [value for _, value in (*process.parameters, *process.remaps) if isinstance(value, Use)]


def load(argument: str, path: str) -> dict[str, Any]:
    """Return what a YAML file holds. Raises ValueError, naming the argument, where it holds no names and values."""
    try:
        held = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"argument {argument}:={path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"argument {argument}:={path} is no YAML: {' '.join(str(error).split())}") from None
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise ValueError(f"argument {argument}:={path} holds no names with values")
    return held


def held_for(path: str, node: str) -> Iterator[tuple[str, str, Any]]:
    """Give what a ROS parameter file sets for a node: the node's name or *, name and value; nothing for no path.

    Raises ValueError, naming the file, for one that is no file of ROS parameters.
    """
    for key, held in _nodes_in(load(PARAMS_FILE.name, path) if path else {}):
        name = key.rpartition("/")[2]
        if name not in (node, "**", "*"):
            continue
        parameters = held.get("ros__parameters") if isinstance(held, dict) else None
        if not isinstance(parameters, dict):
            raise ValueError(f"params_file {path}: {key} holds no ros__parameters with names and values")
        for parameter, value in parameters.items():
            yield ("*" if name == "**" else name), str(parameter), value


def _nodes_in(held: Mapping[Any, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Give the nodes of a parameter file, whose namespaces may be nested, and what it holds for each."""
    for key, value in held.items():
        is_namespace = isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values())
        if is_namespace and "ros__parameters" not in value:
            yield from _nodes_in(value, f"{within}{key}/")
        else:
            yield f"{within}{key}", value


NAMESPACE = Argument(
    "namespace",
    "",
    "namespace of all nodes, for several robots in one ROS domain",
    pattern=r"/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*",
    example="dog1",
)
LOG_LEVEL = Argument("log_level", "info", "how much the nodes log", ("debug", "info", "warn", "error"))
PARAMS_FILE = Argument(
    "params_file", "", "YAML file of ROS parameters, read over the package's own; empty: none", is_path=True
)
_SETTINGS = Path(__file__).resolve().parent / "config" / "verifier.yaml"
VERIFIER_CONFIG = Argument(
    "verifier_config",
    str(_SETTINGS) if _SETTINGS.is_file() else "",
    "settings file of the verifier, YAML or JSON; empty: none",
    is_path=True,
)
FILES = {PARAMS_FILE.name, VERIFIER_CONFIG.name}
NAMES = {"target_model", "draft_model", "server_draft", "fed_head"}
"""Paths that may be something else: a model on the hub, or off."""
MANAGER = "lifecycle_manager"

VERIFIER_ADDRESS = Argument(
    "verifier",
    "tcp://127.0.0.1:5555",
    "address of the verifier, tcp://HOST:PORT; without a verifier on this machine also several, separated by commas",
    pattern=r"tcp://[^/\s,]+:(\d+|\*)(,tcp://[^/\s,]+:\d+)*",
)
TARGET = Argument("target_model", str(PROJECT / "models" / "target"), "folder of the target model", is_path=True)
DRAFT = Argument("draft_model", str(PROJECT / "models" / "draft"), "folder of the draft model", is_path=True)
FED_HEAD = argument_of(
    EdgeConfig,
    "fed_head",
    default="",
    description="folder of a fed head, which drafts from the target's features in the draft model's place; empty: none",
    is_path=True,
)
KEYS = Argument("keys", "", "folder of CURVE keys for the link; empty: plain TCP, for loopback only", is_path=True)
ALLOW_PLAIN = Argument(
    "allow_plain",
    "false",
    "without keys, trust an address that is not this machine's; for networks that you trust",
    (YES, NO),
    bool,
)
PROFILE = Argument("profile", "raw", "device profile of config/profiles.json whose times are waited for")
LINK = Argument("link", "", "link of config/links.json that is emulated, e.g. lte; empty: none")
TRACE = Argument(
    "trace", "", "file for the trace (Perfetto JSON), written whenever a goal ends; empty: none", is_path=True
)
MODE = Argument(
    "mode",
    Mode.FULL.value,
    "who decodes, and how (docs/decoding.md); server_sd needs server_draft",
    tuple(mode.value for mode in Mode),
)
DRAFTING = Argument("drafting", "", "changes of the mode's drafting settings, e.g. interrupt=off,gamma=auto")
SERVER_DRAFT = Argument(
    "server_draft",
    "",
    "folder of a draft model beside the target, for mode server_sd and for full where it is faster",
    is_path=True,
)
SERVICE_CLASS = argument_of(EdgeConfig, "service_class", choices=tuple(SERVICE_CLASSES))
RESPONSE_ORDER = Argument(
    "response_order",
    ResponseOrder.ACTION_FIRST.value,
    "what answers begin with: their reasons, or their action",
    tuple(order.value for order in ResponseOrder),
)
GUIDE = Argument(
    "guide",
    Guidance.AUTO.value,
    "whether prompts explain the robot to the model; auto: to models that have no objects.json",
    tuple(guidance.value for guidance in Guidance),
)

SERVING = (
    Argument(
        "target_device",
        "",
        "where the target model runs, e.g. cuda; cuda:0,cuda:1: spread over both",
        pattern=r"[a-z]+(:\d+)?(,[a-z]+:\d+)*",
    ),
    argument_of(EdgeConfig, "dtype", name="target_dtype", default="", description="what the target model computes in"),
    Argument("target_quantisation", "", "rounding of the target's weights", ("none", "nf4", "int8_weight_only")),
    Argument("max_sessions", "", "robots at once", kind=int, least=1, most=1024),
    Argument("max_batch", "", "robots in one forward of the target", kind=int, least=1, most=256),
    Argument("capacity", "", "cache slots of a robot at the verifier", kind=int, least=128, most=1 << 20),
    VERIFIER_CONFIG,
)
"""Of the verifier: what is empty is as in its settings file, and else as `serve` has it."""
DRAFTING_MODEL = (
    argument_of(EdgeConfig, "device", name="draft_device", default="", pattern=r"[a-z]+(:\d+)?"),
    argument_of(EdgeConfig, "dtype", name="draft_dtype", default=""),
    argument_of(EdgeConfig, "quantisation", name="draft_quantisation", default=""),
)
VERIFIER = CommandSpec(
    "verifier",
    (
        "python3", "-m", "cloud_verifier", "serve", "--config", Use("verifier_config"), "--model", Use("target_model"),
        "--bind", Use("verifier"), "--profile", Use("profile"), "--keys", Use("keys"),
        "--allow-plain", Use("allow_plain"), "--draft-model", Use("server_draft"), "--device", Use("target_device"),
        "--dtype", Use("target_dtype"), "--quantisation", Use("target_quantisation"),
        "--max-sessions", Use("max_sessions"), "--max-batch", Use("max_batch"), "--capacity", Use("capacity"),
        "--fed-head", Use("fed_head"),
    ),
    settings=VERIFIER_CONFIG.name,
)  # fmt: skip
LOCAL_VERIFIER = replace(VERIFIER, when=lambda values: values["start_verifier"] == YES)
START_VERIFIER = Argument(
    "start_verifier", YES, "start a verifier on this machine; false: use one that runs already", (YES, NO), bool
)
_NAVIGATION = (
    ("draft_model", Use("draft_model")),
    ("verifier", Use("verifier")),
    ("mode", Use("mode")),
    ("drafting", Use("drafting")),
    ("fed_head", Use("fed_head")),
    ("profile", Use("profile")),
    ("link", Use("link")),
    ("keys", Use("keys")),
    ("allow_plain", Use("allow_plain")),
    ("service_class", Use("service_class")),
    ("trace", Use("trace")),
    ("response_order", Use("response_order")),
    ("guide", Use("guide")),
    ("device", Use("draft_device")),
    ("dtype", Use("draft_dtype")),
    ("quantisation", Use("draft_quantisation")),
)
ROS = (NAMESPACE, LOG_LEVEL, PARAMS_FILE)
NAVIGATING = (
    MODE, DRAFTING, DRAFT, FED_HEAD, *DRAFTING_MODEL, VERIFIER_ADDRESS, PROFILE, LINK, KEYS, ALLOW_PLAIN, SERVICE_CLASS,
    TRACE, RESPONSE_ORDER, GUIDE,
)  # fmt: skip
"""Of every graph with a navigation node."""


def manager(config: str) -> NodeSpec:
    """Return the node that brings the managed ones up: the last to start, and the one whose end ends everything."""
    return NodeSpec(MANAGER, config, respawns=0)


VIEW = Argument("view", NO, "nav_view too: annotated image, path and markers", (YES, NO), bool)
ALWAYS = 1_000_000
"""Respawns of a node that is for people only: it never ends the robot's."""


def view(config: str, *remaps: tuple[str, Value]) -> NodeSpec:
    """Return the node that shows people what the others do."""
    return NodeSpec("nav_view", config, remaps=remaps, respawns=ALWAYS, when=lambda values: values[VIEW.name] == YES)


VERIFIER_GRAPH = Graph(
    (TARGET, SERVER_DRAFT, FED_HEAD, VERIFIER_ADDRESS, PROFILE, KEYS, ALLOW_PLAIN, *SERVING), (VERIFIER,)
)
"""The cloud side alone."""

SIM_GRAPH = Graph(
    (
        Argument("seed", "0", "which simulated room", kind=int, least=0, most=2**31 - 1),
        Argument("difficulty", "middle", "what the room is like", tuple(level.name.lower() for level in Difficulty)),
        Argument("target", "silver bottle", "the object that is hidden in the room"),
        Argument("layout", "room", "how many rooms there are", tuple(layout.value for layout in Layout)),
        *NAVIGATING, TARGET, SERVER_DRAFT, START_VERIFIER, VIEW, *SERVING, *ROS,
    ),
    (
        LOCAL_VERIFIER,
        NodeSpec(
            "sim_go2", "sim.yaml", tuple((name, Use(name)) for name in ("seed", "difficulty", "target", "layout"))
        ),
        NodeSpec("vlm_nav", "sim.yaml", _NAVIGATION, managed=True, beats=True),
        NodeSpec("go2_bridge", "sim.yaml", managed=True, beats=True),
        NodeSpec("stop_watchdog", "sim.yaml"),
        NodeSpec("action_executor", "sim.yaml", managed=True),
        view("sim.yaml"),
        manager("sim.yaml"),
    ),
)  # fmt: skip
"""Simulated robot, edge and cloud on one machine, each process as on the real ones."""


def robot_graph(name: str) -> Graph:
    """Return the robot side on a real robot of `ROBOTS`; the verifier runs elsewhere (`verifier.launch.py`).

    Its parameters are in config/NAME.yaml. The robot's own topics have its names, in the root namespace, unless an
    argument names others. Raises ValueError for an unknown robot.
    """
    robot, config = robot_of(name), f"{name}.yaml"
    odometry, camera = ("odom", Use("odom_topic")), ("camera/image/compressed", Use("camera_topic"))
    topics = tuple(Argument(topic.argument, topic.name, f"{topic.kind} of the robot") for topic in robot.topics)
    own = tuple((topic.name.lstrip("/"), Use(topic.argument)) for topic in robot.topics)
    return Graph(
        (
            Argument("odom_topic", robot.odom_topic, "nav_msgs/Odometry of the robot"),
            Argument("camera_topic", robot.camera_topic, "sensor_msgs/CompressedImage of the front camera, JPEG"),
            *topics,
            Argument(
                "motion_service", "", "which of the robot's services walks", ("sport", "obstacles_avoid")
            ),
            Argument("guard", "", "what watches the way ahead, on guard_topic", ("off", "cloud", "scan", "range")),
            Argument(
                "camera",
                "videohub",
                "where frames come from: videohub, multicast, topic:NAME (images that somebody publishes, e.g. raw), a "
                "source of cv2.VideoCapture (number, file, URL), or none: camera_topic is published by somebody else",
            ),
            Argument("camera_interface", "", "network interface of the camera's multicast, e.g. eth0"),
            *NAVIGATING, VIEW, *ROS,
        ),
        (
            NodeSpec(
                "go2_camera",
                config,
                (("source", Use("camera")), ("interface", Use("camera_interface"))),
                (camera, ("api/videohub/request", "/api/videohub/request"),
                 ("api/videohub/response", "/api/videohub/response")),
                managed=True,
                beats=True,
                when=lambda values: values["camera"] != "none",
            ),
            NodeSpec("vlm_nav", config, _NAVIGATION, (odometry, camera), managed=True, beats=True),
            NodeSpec(
                "go2_bridge",
                config,
                (("robot", name), ("motion_service", Use("motion_service")), ("guard", Use("guard"))),
                (odometry, *own),
                managed=True,
                beats=True,
            ),
            NodeSpec("stop_watchdog", config, (("robot", name),), own),
            NodeSpec("action_executor", config, remaps=(odometry,), managed=True),
            view(config, odometry, camera),
            manager(config),
        ),
    )  # fmt: skip


REPLAY_GRAPH = Graph(
    (
        Argument(
            "bag",
            "",
            "bag (folder, .mcap or .db3) or data set (LeRobot v3) that is played",
            is_path=True,
        ),
        Argument("instruction", "", "instruction for its frames, e.g. find the silver bottle"),
        Argument(
            "out",
            "",
            "folder of a new bag with the played frames and the answers; empty: nothing is recorded",
            is_path=True,
        ),
        Argument("camera_topic", "", "camera topic of the bag, or camera of the data set; empty: the only one"),
        Argument("odom_topic", "", "nav_msgs/Odometry topic of the bag; empty: its first, if it has one"),
        Argument("rate", "1.0", "how many times as fast as it was recorded", kind=float, least=0.01, most=100.0),
        Argument("start", "0.0", "seconds of the bag that are left out at its start", kind=float, least=0.0, most=1e6),
        Argument("laps", "1", "how often it is played; 0: for ever", kind=int, least=0, most=1_000_000),
        *NAVIGATING, TARGET, SERVER_DRAFT, START_VERIFIER, VIEW, *SERVING, *ROS,
    ),
    (
        LOCAL_VERIFIER,
        NodeSpec("vlm_nav", "replay.yaml", _NAVIGATION, managed=True, beats=True),
        view("replay.yaml"),
        manager("replay.yaml"),
        NodeSpec(
            "bag_player",
            "replay.yaml",
            tuple(
                (name, Use(name))
                for name in ("bag", "instruction", "out", "camera_topic", "odom_topic", "rate", "start", "laps")
            ),
            respawns=0,
            finite=True,
            module="vlm_nav_evaluation.nodes.bag_player",
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
