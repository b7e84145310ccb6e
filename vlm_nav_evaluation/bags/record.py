"""`record`: the oracle walks through simulated rooms and leaves a bag with camera, odometry, instruction and labels."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from spec_vlm_nav.graph import RESPONSE_ORDER
from spec_vlm_nav.messages import AskedPrompt
from spec_vlm_nav.motion import Motion, MotionConfig, Outcome, PlanarPose
from spec_vlm_nav.safety import ZERO, Velocity
from spec_vlm_nav.simulated_go2 import scene_of
from speculation.images import COMPRESSED
from speculation.language.prompts import (
    ACTIONS,
    PROMPT_FORMS,
    SEARCH_FORM,
    ActionSize,
    Blocked,
    NavigationAction,
    Past,
    ResponseOrder,
)
from speculation.progress import progress
from speculation.settings import path_flag
from vlm_nav_evaluation.bags.files import BagWriter, make
from vlm_nav_evaluation.bags.frames import INSTRUCTION, ORACLE, PROMPT, TEXT, OracleLabel
from vlm_nav_evaluation.bags.playback import ODOMETRY
from vlm_nav_evaluation.options import MEASURED_ORDER
from vlm_nav_evaluation.search_prompts import Asking, SearchPrompts
from vlm_nav_simulation.camera import Image
from vlm_nav_simulation.dataset import encode_jpeg
from vlm_nav_simulation.geometry import Pose
from vlm_nav_simulation.ground_truth import Sighting, observe
from vlm_nav_simulation.oracle import Decision, Oracle, Reason
from vlm_nav_simulation.scene import UNSEEN_SEED, Difficulty, Scene
from vlm_nav_simulation.world import World

START_NS = 1_700_000_000 * 1_000_000_000
"""Stamps begin here whenever the bag is made, so that the same command makes the same bag."""
ODOMETRY_HZ = 10
TICKS_PER_ODOMETRY = 2
PAUSE_S = 2.0
"""So much time passes between two rooms."""
FRAMES_PER_ROOM = 60
ASTRAY = 0.5
"""How often the robot turns away instead of approaching."""
TURNS = tuple(action for action in ACTIONS if action.radians and action.size is not ActionSize.LARGE)


class Look(NamedTuple):
    """A camera frame, taken `seconds` after the walk began, with what the oracle sees in it and would do.

    `past`: the actions that the walk had carried out by then, those that were blocked as such.
    """

    seconds: float
    image: Image
    decision: Decision
    visible: tuple[str, ...]
    past: tuple[Past, ...]
    pose: Pose
    target: Sighting


class Odometry(NamedTuple):
    """Where the base is and how it moves, `seconds` after the walk began."""

    seconds: float
    pose: Pose
    velocity: Velocity


def walk(scene: Scene, camera_hz: float, size: int = 224) -> Iterator[Look | Odometry]:
    """Let the oracle walk to the scene's target; yield what camera and odometry see, on simulated time.

    The robot moves at the executor's speeds. Whenever it stands it takes the oracle's action for the newest frame, or
    now and then a random turn: a faultless walk shows the target straight ahead and hardly ever to the right.
    Frames are taken and labelled while it moves as well. Ends with the frame that the oracle stops at.
    """
    rng = random.Random(scene.seed)
    oracle, limits = Oracle(scene), MotionConfig()
    rate = ODOMETRY_HZ * TICKS_PER_ODOMETRY
    motion: Motion | None = None
    done: list[NavigationAction] = []
    past: list[Past] = []
    with World(scene, size) as world:
        looks = tick = 0
        while looks < FRAMES_PER_ROOM:
            now = tick / rate
            if now >= looks / camera_hz:
                looks += 1
                sightings = observe(world)
                decision = oracle.decide(world.pose, scene.target_index, sightings, done)
                seen = tuple(f"{item.colour} {item.object_class}" for item in sightings if item.visible)
                target = sightings[scene.target_index]
                yield Look(now, world.render(), decision, seen, tuple(past), world.pose, target)
                if motion is None and not decision.action.kind.moves:
                    return
                if motion is None:
                    strays = decision.reason is Reason.APPROACH and rng.random() < ASTRAY
                    action = rng.choice(TURNS) if strays else decision.action
                    motion = Motion(action, PlanarPose(*world.pose), now, limits)
            velocity = ZERO
            if motion is not None:
                step = motion.update(PlanarPose(*world.pose), now)
                velocity = step.velocity
                if step.outcome is not Outcome.RUNNING:
                    done.append(motion.action)
                    past.append(Blocked(motion.action) if step.outcome is Outcome.BLOCKED else motion.action)
                    motion = None
            if tick % TICKS_PER_ODOMETRY == 0:
                yield Odometry(now, world.pose, velocity)
            world.move(velocity.vx, velocity.vy, velocity.wz, 1.0 / rate)
            tick += 1


def write_look(bag: BagWriter, stamp_ns: int, look: Look, prompt: str) -> None:
    """Write a frame, what a model would be asked about it, and its label."""
    data = np.frombuffer(encode_jpeg(look.image), np.uint8)
    header = _header(bag, stamp_ns, "front_camera_optical_frame")
    image = make(bag.types, COMPRESSED, header=header, format="jpeg", data=data)
    bag.put("/camera/image/compressed", stamp_ns, image)
    label = OracleLabel(stamp_ns, look.decision.action.text, look.decision.reason.value, look.visible)
    for topic, text in ((f"/vlm_nav/{PROMPT}", AskedPrompt(stamp_ns, prompt)), (f"/{ORACLE}", label)):
        bag.put(topic, stamp_ns, make(bag.types, TEXT, data=text.to_json()))


def write_odometry(bag: BagWriter, stamp_ns: int, moment: Odometry) -> None:
    """Write where the base is."""
    message = make(bag.types, ODOMETRY, header=_header(bag, stamp_ns, "odom"), child_frame_id="base_link")
    pose, speed, velocity = message.pose.pose, message.twist.twist, moment.velocity
    pose.position.x, pose.position.y, yaw = moment.pose
    pose.orientation.z, pose.orientation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    speed.linear.x, speed.linear.y, speed.angular.z = velocity.vx, velocity.vy, velocity.wz
    bag.put("/odom", stamp_ns, message)


def _header(bag: BagWriter, stamp_ns: int, frame: str) -> Any:
    seconds, rest = divmod(stamp_ns, 1_000_000_000)
    stamp = make(bag.types, "builtin_interfaces/msg/Time", sec=seconds, nanosec=rest)
    return make(bag.types, "std_msgs/msg/Header", stamp=stamp, frame_id=frame)


def record(bag: BagWriter, options: argparse.Namespace) -> int:
    """Write as many frames as the options want, room after room; return the number of rooms begun."""
    room, left, start_ns = options.seed, options.frames, START_NS
    how = Asking(ResponseOrder(options.response_order), form=options.form)
    with progress(total=left, unit="frame") as bar:
        while left:
            scene = scene_of(room, options.difficulty, options.target)
            room += 1
            prompts = SearchPrompts(scene.target, how)
            bag.put(f"/{INSTRUCTION}", start_ns, make(bag.types, TEXT, data=prompts.instruction))
            end_ns = start_ns
            for moment in walk(scene, options.camera_hz, options.size):
                end_ns = start_ns + round(moment.seconds * 1e9)
                if isinstance(moment, Odometry):
                    write_odometry(bag, end_ns, moment)
                    continue
                write_look(bag, end_ns, moment, prompts.ask(moment.pose, moment.past))
                prompts.see(moment.target)
                bar.update()
                left -= 1
                if not left:
                    break
            start_ns = end_ns + round(PAUSE_S * 1e9)
    return int(room - options.seed)


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises ValueError for options that cannot be used."""
    for name, least, most in (("frames", 1, 100_000), ("camera_hz", 0.1, 20.0), ("size", 56, 960)):
        value = getattr(options, name)
        if not least <= value <= most:
            raise ValueError(f"--{name.replace('_', '-')} {value} is outside {least:g} to {most:g}")
    if options.out.exists() and not (options.out / "metadata.yaml").exists():
        raise ValueError(f"--out {options.out} is there and is no bag, so it is not replaced; choose another name")
    with closing(BagWriter(options.out)) as bag:
        rooms = record(bag, options)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    frames = f"{options.frames} frame{'s' * (options.frames != 1)}"
    print(f"{options.out}: {frames} of {rooms} room{'s' * (rooms != 1)}, {size / 1e6:.2f} MB")
    return 0


def add_options(line: argparse.ArgumentParser) -> None:
    """Register the options of `record`."""
    line.add_argument(
        "--out", type=path_flag, required=True, metavar="BAG", help="folder; a bag that is there is replaced"
    )
    line.add_argument("--seed", type=int, default=UNSEEN_SEED, help="first room (default: %(default)s, held out)")
    line.add_argument("--frames", type=int, default=80, help="camera frames (default: 80)")
    line.add_argument("--camera-hz", type=float, default=1.0, help="frames per second (default: 1)")
    line.add_argument("--difficulty", default="middle", choices=[level.name.lower() for level in Difficulty])
    line.add_argument("--target", default="", help="what is hidden in every room, e.g. 'silver bottle'; empty: by room")
    line.add_argument("--response-order", default=MEASURED_ORDER, choices=RESPONSE_ORDER.choices,
                      help="what the recorded prompts ask for first (default: %(default)s)")  # fmt: skip
    line.add_argument("--form", type=int, default=SEARCH_FORM, choices=PROMPT_FORMS, help="form of the recorded "
                      "prompts; 1: without what was searched and blocked (default: %(default)s)")  # fmt: skip
    line.add_argument("--size", type=int, default=224, help="pixels a side (default: 224)")
