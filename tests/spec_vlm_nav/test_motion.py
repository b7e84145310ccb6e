"""Closed-loop motion on a simple robot that obeys, lags, slips or is stuck."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_vlm_nav.motion import Motion, MotionConfig, MotionStep, Outcome, PlanarPose, wrap
from spec_vlm_nav.safety import ZERO, Limits, SlewLimiter, Velocity
from speculation.language.prompts import MOTIONS, ActionKind, ActionSize, NavigationAction

CONFIG = MotionConfig()
DT = 0.05


def walk(
    action: NavigationAction,
    start: PlanarPose,
    *,
    scale: float = 1.0,
    freeze_after: float = math.inf,
    drift: float = 0.0,
    shown: float = 1.0,
) -> tuple[MotionStep, PlanarPose, float]:
    """Run a motion on a robot that does `scale` of its command, after one tick; return the end of it.

    shown: what odometry shows of the way; the pose returned is where the robot really is.
    """
    motion, pose, now = Motion(action, start, 100.0, CONFIG), start, 100.0
    limiter, obeyed = SlewLimiter(Limits()), ZERO
    while True:
        seen = PlanarPose(
            start.x + shown * (pose.x - start.x),
            start.y + shown * (pose.y - start.y),
            wrap(start.yaw + shown * wrap(pose.yaw - start.yaw)),
        )
        step = motion.update(seen, now)
        if step.outcome is not Outcome.RUNNING:
            return step, pose, now - 100.0
        scaled = Velocity(obeyed.vx * scale, 0.0, obeyed.wz * scale)
        obeyed = limiter.step(step.velocity, DT)
        now += DT
        if now - 100.0 < freeze_after:
            yaw = pose.yaw + (scaled.wz + drift) * DT
            pose = PlanarPose(
                pose.x + scaled.vx * math.cos(yaw) * DT, pose.y + scaled.vx * math.sin(yaw) * DT, wrap(yaw)
            )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MOTIONS), st.floats(-3.1, 3.1), st.floats(0.7, 1.2))
def test_an_action_ends_where_it_says(action: NavigationAction, yaw: float, scale: float) -> None:
    start = PlanarPose(1.0, -2.0, yaw)
    step, pose, _ = walk(action, start, scale=scale)
    assert step.outcome is Outcome.DONE
    assert step.velocity == ZERO
    along = (pose.x - start.x) * math.cos(yaw) + (pose.y - start.y) * math.sin(yaw)
    assert along == pytest.approx(action.metres, abs=0.04)
    assert wrap(pose.yaw - yaw) == pytest.approx(action.radians, abs=math.radians(4))


def test_forward_holds_its_heading_against_drift() -> None:
    action = NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)
    _, pose, _ = walk(action, PlanarPose(0, 0, 0), drift=0.05)
    assert abs(pose.y) < 0.05


@pytest.mark.parametrize("action", [MOTIONS[0], MOTIONS[-1]], ids=lambda action: action.text)
def test_a_robot_that_does_not_move_is_blocked_soon_and_before_the_cap(action: NavigationAction) -> None:
    step, _, elapsed = walk(action, PlanarPose(0, 0, 0), freeze_after=0.3)
    assert step.outcome is Outcome.BLOCKED
    assert step.velocity == ZERO
    assert elapsed < CONFIG.blocked_after_s + 0.6


def test_a_robot_that_crawls_runs_into_the_time_cap() -> None:
    action = NavigationAction(ActionKind.FORWARD, ActionSize.LARGE)
    step, _, elapsed = walk(action, PlanarPose(0, 0, 0), scale=0.33)
    assert step.outcome is Outcome.TIMEOUT
    assert elapsed == pytest.approx(0.75 / CONFIG.forward_speed * CONFIG.cap_factor + CONFIG.cap_margin_s, abs=2 * DT)


@pytest.mark.parametrize("shown", [-1.0, 0.0, 0.2])
@pytest.mark.parametrize("action", [MOTIONS[0], MOTIONS[-1]], ids=lambda action: action.text)
def test_odometry_that_shows_too_little_stops_the_robot_early(action: NavigationAction, shown: float) -> None:
    """It walked 1.14 m for 0.25 m on a tenth, up to the time cap."""
    start = PlanarPose(0, 0, 0)
    step, pose, elapsed = walk(action, start, shown=shown)
    assert (step.outcome, step.velocity) == (Outcome.BLOCKED, ZERO)
    assert elapsed <= CONFIG.blocked_after_s + 2 * DT
    assert math.hypot(pose.x, pose.y) <= 0.45 and abs(pose.yaw) <= 0.6
    assert re.search(
        r"odometry shows .* of .* commanded in 1\.2 s: something blocks the robot, or its odometry", step.message
    )


@pytest.mark.parametrize(("field", "bad"), [("x", math.nan), ("y", math.inf), ("yaw", -math.inf)])
def test_no_motion_goes_on_from_a_pose_that_is_not_finite(field: str, bad: float) -> None:
    motion = Motion(MOTIONS[0], PlanarPose(0, 0, 0), 0.0, CONFIG)
    assert motion.update(PlanarPose(0, 0, 0), 0.05).outcome is Outcome.RUNNING
    ended = motion.update(PlanarPose(**({"x": 0.0, "y": 0.0, "yaw": 0.0} | {field: bad})), 0.1)
    assert (ended.outcome, ended.velocity) == (Outcome.NO_ODOMETRY, ZERO) and "not finite" in ended.message
    assert motion.update(PlanarPose(0, 0, 0), 0.15) == ended, "an ended motion stays ended"


FORWARD = [NavigationAction(ActionKind.FORWARD, size) for size in ActionSize]
LEFT = [NavigationAction(ActionKind.TURN_LEFT, size) for size in ActionSize]


def test_neither_another_kind_nor_an_extension_resumes_a_motion_that_failed() -> None:
    motion = Motion(FORWARD[0], PlanarPose(0, 0, 0), 0.0, CONFIG)
    with pytest.raises(ValueError, match="'forward' cannot become 'turn left'"):
        motion.extend(LEFT[0], 0.1)
    failed = motion.update(PlanarPose(math.nan, 0, 0), 0.2)
    motion.extend(FORWARD[2], 0.3)
    assert motion.update(PlanarPose(0, 0, 0), 0.4) == failed


@pytest.mark.parametrize("scale", [0.1, 0.5])
@pytest.mark.parametrize("action", [FORWARD[2], LEFT[2]], ids=["forward", "left"])
def test_a_share_of_the_speeds_is_kept_and_gets_more_time(action: NavigationAction, scale: float) -> None:
    at = PlanarPose(0, 0, 0)
    full, part = (Motion(action, at, 0.0, CONFIG, share) for share in (1.0, scale))
    velocity = part.update(at, 0.05).velocity
    speed, creep = (CONFIG.turn_speed, 0.15) if part.turning else (CONFIG.forward_speed, 0.1)
    assert max(velocity.vx, velocity.wz) == pytest.approx(max(creep, scale * speed))
    margin = CONFIG.cap_margin_s
    assert part.time_cap - margin == pytest.approx((full.time_cap - margin) * speed / max(creep, scale * speed))
