"""What may be wrong with a robot's computer before a launch file is started, one line each. No ROS.

`nodes/doctor.py` adds what only ROS shows: the robot, its camera and its odometry.
"""

from __future__ import annotations

import ctypes
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy.typing as npt

from edge_drafter import Mode
from edge_drafter.decoder import EdgeDecoder
from edge_drafter.draft_models import free_memory, load_draft
from edge_drafter.question import VerifierLost
from edge_drafter.settings import EdgeConfig
from spec_vlm_nav.cameras.multicast import address_of, interfaces
from spec_vlm_nav.diagnostics import Arrivals, Level, Status
from spec_vlm_nav.graph import EDGE
from spec_vlm_nav.motion import LAG_LIMIT_S
from spec_vlm_nav.odometry import LEAST_HZ, OdometryCheck, OdometrySample, Rhythm, frames_problem
from spec_vlm_nav.parameters import WATCHDOG_S
from spec_vlm_nav.preflight import parameters_of, problems
from spec_vlm_nav.process_graph import Graph
from speculation.address import addresses_of

ANSWER_S = 5.0
"""How long a verifier may take to answer."""
PING_S = 1.0
LEAST_MEMORY, GOOD_MEMORY = 500_000_000, 2_000_000_000
LEAST_DISK, GOOD_DISK = 100_000_000, 1_000_000_000
"""Bytes that are free, for logs, traces and the running goal."""
LEAST_FRAMES, LEAST_CONTRAST = 2.0, 2.0
"""Frames a second; standard deviation of pixels, of 255."""
CLOCKS_S, OTHER_CLOCK_S = 0.5, 10.0
"""Clocks that are apart by more are named; stamps that are older are another clock's, and no delay."""
SET_CLOCKS = "set both clocks by NTP"
REFUSED_BY_LOAD = (ValueError, OSError, ImportError, RuntimeError)
MOST_DOMAIN = 232
"""The largest ROS domain whose ports, 7400 + 250 a domain, all lie below 65536."""
_UNSYNCHRONISED, _STATUS_AT = 0x40, 40
NETWORKS = Path("/sys/class/net")
PROFILES = ("CYCLONEDDS_URI", "FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
"""Variables that name a middleware's settings: a file, of CycloneDDS also the text itself."""


def settings(graph: Graph, values: Mapping[str, str]) -> Iterator[Status]:
    """Give what the launch file would refuse: arguments, parameter files, keys, models, profiles."""
    found = [Status("settings", Level.ERROR, each) for each in problems(graph, values)]
    yield from found or [Status("settings", Level.OK, "the launch file takes these arguments")]


def clock() -> Status:
    """Return whether something keeps this machine's clock right."""
    # struct timex of Linux on 64 bits; without a mode the call only reads.
    times = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(times) < 0:
        return Status("clock", Level.OK, "this system does not say whether it is synchronised")
    status = int.from_bytes(times.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    if status & _UNSYNCHRONISED:
        words = "nothing synchronises it: start chrony or systemd-timesyncd (timedatectl set-ntp true)"
        return Status("clock", Level.WARN, words)
    return Status("clock", Level.OK, time.strftime("synchronised, %Y-%m-%d %H:%M:%S"))


def space(folder: Path) -> Iterator[Status]:
    """Give the free memory, and the free disk at `folder` or the nearest one above it."""
    free = free_memory()
    advice = "end other programs and the desktop, or take a smaller draft model (draft_quantisation:=nf4)"
    yield _enough("memory", free, LEAST_MEMORY, GOOD_MEMORY, advice)
    while not folder.exists():
        folder = folder.parent
    yield _enough(f"disk at {folder}", shutil.disk_usage(folder).free, LEAST_DISK, GOOD_DISK, "remove logs and bags")


def network(environment: Mapping[str, str], values: Mapping[str, str]) -> Iterator[Status]:
    """Give what is wrong with the network interfaces that arguments and the middleware's settings name."""
    found = [Status("network", Level.ERROR, each) for each in _network_problems(environment, values)]
    reach = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "").upper()
    if reach in ("LOCALHOST", "OFF") or environment.get("ROS_LOCALHOST_ONLY") == "1":
        variable = "ROS_AUTOMATIC_DISCOVERY_RANGE" if reach in ("LOCALHOST", "OFF") else "ROS_LOCALHOST_ONLY"
        words = f"{variable} keeps ROS on this machine: for a robot on a cable export ROS_AUTOMATIC_DISCOVERY_RANGE="
        found.append(Status("network", Level.WARN, f"{words}SUBNET ROS_LOCALHOST_ONLY=0"))
    up = ", ".join(name for name in interfaces() if name != "lo")
    yield from found or [Status("network", Level.OK, f"interfaces {up or 'lo only'}")]


def check_domain(environment: Mapping[str, str]) -> None:
    """Raise ValueError for a ROS domain beyond those that have ports: a middleware may end the process for it."""
    domain = environment.get("ROS_DOMAIN_ID") or "0"
    if not (domain.isdecimal() and int(domain) <= MOST_DOMAIN):
        raise ValueError(f"ROS_DOMAIN_ID is {domain!r}; give 0 to {MOST_DOMAIN}")


def verifiers(graph: Graph, values: Mapping[str, str]) -> Iterator[Status]:
    """Load the draft model as vlm_nav does, and ask each verifier for its Welcome. Raises nothing."""
    try:
        config = EDGE.settings(parameters_of(graph, graph.node("vlm_nav"), values))
        draft = load_draft(config.draft_model, config.draft)
    except REFUSED_BY_LOAD as error:
        yield Status("draft model", Level.ERROR, _sentence(error))
        return
    yield Status("draft model", Level.OK, f"{draft.name} loads on {config.draft.devices[0]}")
    if not Mode(config.decoding.mode).needs_link:
        yield Status("verifier", Level.OK, "none is asked in mode edge")
        return
    for address in addresses_of(config.connection.verifier):
        way = msgspec.structs.replace(config.connection, verifier=address)
        yield _verifier(address, msgspec.structs.replace(config, connection=way), draft)


def _verifier(address: str, config: EdgeConfig, draft: Any) -> Status:
    name, decoder = f"verifier {address}", None
    try:
        decoder = EdgeDecoder(config, vlm=draft)
        welcome = decoder.connect(ANSWER_S)
        until = time.monotonic() + PING_S
        while decoder.link_figures()[1] < 0.0 and time.monotonic() < until:
            time.sleep(0.02)
        return Status(name, Level.OK, f"{welcome.model} answers, round trip {decoder.link_figures()[1] * 1e3:.0f} ms")
    except (VerifierLost, *REFUSED_BY_LOAD) as error:
        return Status(name, Level.ERROR, _sentence(error))
    finally:
        if decoder is not None:
            decoder.close()


def _network_problems(environment: Mapping[str, str], values: Mapping[str, str]) -> Iterator[str]:
    here = interfaces()
    multicast = values.get("camera") == "multicast"
    named = [("camera_interface", values["camera_interface"])] if multicast and values["camera_interface"] else []
    if multicast and not named:
        yield f"camera:=multicast needs camera_interface:=NAME, one of {', '.join(here)}"
    for variable in PROFILES:
        try:
            named += [(variable, each) for each in _named_in(environment.get(variable, ""))]
        except (ValueError, OSError, ElementTree.ParseError) as error:
            yield f"{variable} cannot be read: {error}; correct the file, or unset the variable"
    for where, name in named:
        if name not in here and name not in _addresses(here):
            yield f"{where} names {name}, which this machine does not have: take one of {', '.join(here)} (ip -br addr)"
        elif name in here and _is_down(name):
            yield f"{where} names {name}, which is down: look at its cable, then ip link set {name} up"


def _named_in(setting: str) -> list[str]:
    """Return the interfaces and addresses that a middleware's settings limit it to. Raises OSError, ParseError."""
    found: list[str] = []
    # CycloneDDS takes several, separated by commas, each over the ones before.
    for part in [setting] if setting.lstrip().startswith("<") else filter(None, setting.split(",")):
        text = part if part.lstrip().startswith("<") else Path(part.removeprefix("file://")).read_text("utf-8")
        for each in ElementTree.fromstring(text.strip()).iter():
            tag = each.tag.rpartition("}")[2]
            words = [each.get("name"), each.get("address")] if tag == "NetworkInterface" else []
            if tag == "NetworkInterfaceAddress":
                words += (each.text or "").split(",")
            if tag in ("interfaceWhiteList", "interfaces"):
                words += [child.text or child.get("name") for child in each]
            found += [word.strip() for word in words if word and word.strip() and word.strip() != "auto"]
    return found


def _addresses(names: list[str]) -> set[str]:
    """Return the IPv4 addresses of those interfaces that have one."""
    found = {"127.0.0.1"}
    for name in names:
        with suppress(ValueError):
            found.add(address_of(name))
    return found


def _is_down(name: str) -> bool:
    try:
        return (NETWORKS / name / "operstate").read_text().strip() == "down"
    except OSError:
        return False


def _enough(name: str, free: int, least: int, good: int, advice: str) -> Status:
    level = Level.ERROR if free < least else Level.WARN if free < good else Level.OK
    words = f"{free / 1e9:.1f} GB free"
    return Status(name, level, words if level is Level.OK else f"{words}, leave {good / 1e9:g} GB: {advice}")


def _sentence(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


class OdometryWatch:
    """Takes every message of odometry, and says what is wrong with all of them. Time: steady clock, seconds."""

    def __init__(self) -> None:
        self._check, self._rhythm, self._arrivals = OdometryCheck(), Rhythm(WATCHDOG_S), Arrivals()
        self._lags: list[float] = []
        self._frames = ""

    def take(self, sample: OdometrySample, lag: float, frames: tuple[str, str]) -> None:
        """Take a message that came `lag` seconds after its stamp, by this machine's clock, and its two frames."""
        self._check.take(sample)
        self._rhythm.note(sample.arrived)
        self._arrivals.note(sample.arrived)
        self._frames = frames_problem(*frames)
        self._lags += [lag] if sample.stamp else []

    def status(self, now: float) -> Status:
        """Return the line; no message at all is for others to explain."""
        rate = self._arrivals.rate(now)
        slow = f"{rate:.1f} messages a second, at least {LEAST_HZ} are needed" if rate < LEAST_HZ else ""
        lag = median(self._lags) if self._lags else 0.0
        late = ""
        if LAG_LIMIT_S < lag <= OTHER_CLOCK_S:
            late = f"it comes {lag:.1f} s after its stamps, more than {LAG_LIMIT_S:g} s: take it from a cable"
        problem = self._check.problem or slow or self._rhythm.problem or late or self._frames
        if problem:
            return Status("odometry", Level.ERROR, problem)
        if abs(lag) > CLOCKS_S:
            words = f"its stamps are {abs(lag):.1f} s {'behind' if lag > 0.0 else 'ahead of'} this clock"
            return Status("odometry", Level.WARN, f"{rate:.0f} Hz; {words}: {SET_CLOCKS}")
        return Status("odometry", Level.OK, f"{rate:.0f} Hz, {lag * 1e3:.0f} ms after its stamps")


def camera(health: Status, pixels: npt.NDArray[Any] | None) -> Status:
    """Return the line about the camera, of what vlm_nav would report of it, and its newest picture [h, w, 3]."""
    rate, skew = float(health.values["rate Hz"]), float(health.values["clock skew s"])
    if health.level is Level.ERROR or pixels is None:
        return Status("camera", Level.ERROR, health.message or "no picture")
    if pixels.std() < LEAST_CONTRAST:
        words = f"all its pixels are alike (brightness {pixels.mean():.0f} of 255): lens cover, exposure, light"
        return Status("camera", Level.ERROR, words)
    if rate < LEAST_FRAMES:
        words = (
            f"{rate:.1f} frames a second, at least {LEAST_FRAMES:g} are needed: max_hz of go2_camera, Wi-Fi, its load"
        )
        return Status("camera", Level.ERROR, words)
    if abs(skew) > CLOCKS_S:
        words = f"its stamps are {abs(skew):.1f} s {'behind' if skew > 0.0 else 'ahead of'} this clock"
        return Status("camera", Level.WARN, f"{rate:.1f} Hz; {words}, its frames' ages are guesses: {SET_CLOCKS}")
    return Status("camera", health.level, health.message)
