"""The graphs of this project, declared once: which processes run, with which arguments, parameters and topic names.

`launch/*.launch.py` (real ROS 2 launch) and `runner.py` (where `ros2 launch` is missing) both read it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import speculation
from edge_drafter import Mode
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.navigator import NavigatorConfig
from spec_vlm_nav.parameters import MOTION_SERVICES, Parameters, VlmNavSettings
from spec_vlm_nav.process_graph import (
    MANAGER,
    NO,
    PARAMS_FILE,
    YES,
    Argument,
    CommandSpec,
    Graph,
    NodeSpec,
    Use,
    argument_of,
)
from spec_vlm_nav.robots import ROBOTS, robot_of
from spec_vlm_nav.sighting import FrameSettings
from speculation.language.grammar import CONSTRAINED
from speculation.language.prompts import ResponseOrder
from speculation.service_classes import SERVICE_CLASSES
from vlm_nav_simulation.layouts import Layout
from vlm_nav_simulation.scene import Difficulty

PACKAGE = "spec_vlm_nav"
_BESIDE = Path(speculation.__file__).resolve().parents[1]
PROJECT = _BESIDE if (_BESIDE / "pyproject.toml").is_file() else Path.cwd()
"""Where `models/` and `out/` are: the checkout, or the working directory where the packages come from a wheel."""
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

NAMESPACE = Argument(
    "namespace",
    "",
    "namespace of all nodes, for several robots in one ROS domain",
    pattern=r"/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*",
    example="dog1",
)
LOG_LEVEL = Argument("log_level", "info", "how much the nodes log", ("debug", "info", "warn", "error"))
USER_PARAMETERS = Argument(
    PARAMS_FILE,
    "",
    "YAML file of ROS parameters, read over the package's own; empty: none",
    is_path=True,
    is_yaml=True,
)
_SETTINGS = Path(__file__).resolve().parent / "config" / "verifier.yaml"
VERIFIER_CONFIG = Argument(
    "verifier_config",
    str(_SETTINGS) if _SETTINGS.is_file() else "",
    "settings file of the verifier, YAML or JSON; empty: none",
    is_path=True,
    is_yaml=True,
)

VERIFIER_ADDRESS = Argument(
    "verifier",
    "tcp://127.0.0.1:5555",
    "address of the verifier, tcp://HOST:PORT; without a verifier on this machine also several, separated by commas",
    pattern=r"tcp://[^/\s,]+:(\d+|\*)(,tcp://[^/\s,]+:\d+)*",
)
TARGET = Argument(
    "target_model", str(PROJECT / "models" / "target"), "folder of the target model", is_path=True, may_be_name=True
)
DRAFT = Argument(
    "draft_model",
    str(PROJECT / "models" / "draft"),
    "folder of the draft model, or MODEL.gguf[,MMPROJ.gguf]",
    is_path=True,
    may_be_name=True,
)
FED_HEAD = argument_of(
    EdgeConfig,
    "fed_head",
    default="",
    description="folder of a fed head, which drafts from the target's features in the draft model's place; empty: none",
    is_path=True,
    may_be_name=True,
)
KEYS = argument_of(EdgeConfig, "keys", is_path=True)
ALLOW_PLAIN = argument_of(
    EdgeConfig,
    "allow_plain",
    description="without keys, trust an address that is not this machine's; for networks that you trust",
)
PROFILE = argument_of(EdgeConfig, "profile")
LINK = argument_of(EdgeConfig, "link")
TRACE = argument_of(VlmNavSettings, "trace", is_path=True)
MODE = Argument(
    "mode",
    Mode.FULL.value,
    "who decodes, and how (docs/decoding.md); server_sd needs server_draft:=FOLDER, which demo sets",
    tuple(mode.value for mode in Mode),
)
DRAFTING = argument_of(EdgeConfig, "drafting")
SERVER_DRAFT = Argument(
    "server_draft",
    "",
    "folder of a draft model beside the target, for mode server_sd and for full where it is faster",
    is_path=True,
    may_be_name=True,
)
SERVICE_CLASS = argument_of(EdgeConfig, "service_class", choices=tuple(SERVICE_CLASSES))
RESPONSE_ORDER = argument_of(NavigatorConfig, "order", name="response_order", default=ResponseOrder.ACTION_FIRST.value)
GUIDE = argument_of(NavigatorConfig, "guide")
SIGHTINGS = argument_of(FrameSettings, "sightings")
MOTION_SERVICE = Argument(
    "motion_service", "", "what walks: one of the robot's services, or nav2 by its behaviours", MOTION_SERVICES
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
"""Arguments of the verifier: what is empty is as in its settings file, and else as `serve` has it."""
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


def same(*names: str) -> tuple[tuple[str, Use], ...]:
    """Return parameters that have the names and values of arguments."""
    return tuple((name, Use(name)) for name in names)


_NAVIGATION = (
    *same(
        "draft_model", "verifier", "mode", "drafting", "fed_head", "profile", "link", "keys", "allow_plain",
        "service_class", "trace", "response_order", "guide", "sightings",
    ),
    ("device", Use("draft_device")),
    ("dtype", Use("draft_dtype")),
    ("quantisation", Use("draft_quantisation")),
)  # fmt: skip
ROS = (NAMESPACE, LOG_LEVEL, USER_PARAMETERS)
NAVIGATING = (
    MODE, DRAFTING, DRAFT, FED_HEAD, *DRAFTING_MODEL, VERIFIER_ADDRESS, PROFILE, LINK, KEYS, ALLOW_PLAIN, SERVICE_CLASS,
    TRACE, RESPONSE_ORDER, GUIDE, SIGHTINGS,
)  # fmt: skip
"""Arguments of every graph with a navigation node."""


def manager(config: str) -> NodeSpec:
    """Return the node that brings the managed ones up: the last to start, and the one whose end ends everything."""
    return NodeSpec(MANAGER, config, respawns=0)


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
        MOTION_SERVICE, *NAVIGATING, TARGET, SERVER_DRAFT, START_VERIFIER, *SERVING, *ROS,
    ),
    (
        LOCAL_VERIFIER,
        NodeSpec("sim_go2", "sim.yaml", same("seed", "difficulty", "target", "layout")),
        NodeSpec("vlm_nav", "sim.yaml", _NAVIGATION, managed=True, beats=True),
        NodeSpec("go2_bridge", "sim.yaml", same("motion_service"), managed=True, beats=True),
        NodeSpec("stop_watchdog", "sim.yaml"),
        NodeSpec("action_executor", "sim.yaml", same("motion_service"), managed=True),
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
            MOTION_SERVICE,
            Argument("guard", "", "what watches the way ahead, on guard_topic", ("off", "cloud", "scan", "range")),
            Argument(
                "camera",
                "videohub",
                "where frames come from: videohub, multicast, topic:NAME (images that a driver publishes), or "
                "none: camera_topic is published by somebody else",
            ),
            Argument("camera_interface", "", "network interface of the camera's multicast, e.g. eth0"),
            *NAVIGATING, *ROS,
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
                (("robot", name), *same("motion_service", "guard")),
                (odometry, *own),
                managed=True,
                beats=True,
            ),
            NodeSpec("stop_watchdog", config, (("robot", name),), own),
            NodeSpec("action_executor", config, same("motion_service"), (odometry,), managed=True),
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
        *NAVIGATING, TARGET, SERVER_DRAFT, START_VERIFIER, *SERVING, *ROS,
    ),
    (
        LOCAL_VERIFIER,
        NodeSpec("vlm_nav", "replay.yaml", _NAVIGATION, managed=True, beats=True),
        manager("replay.yaml"),
        NodeSpec(
            "bag_player",
            "replay.yaml",
            same("bag", "instruction", "out", "camera_topic", "odom_topic", "rate", "start", "laps"),
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
"""All graphs by the name of their launch file."""
