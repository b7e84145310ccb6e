"""Camera frames of a recorded bag as questions: a JPEG, what is asked, and the oracle's label where there is one.

Frames come one by one, in order of time; nothing but the texts of a bag (instructions, prompts, labels) is held in
memory. What cannot be used is passed on as a sentence, and the frames around it are still good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from adapters_training.sources import LeftOut
from adapters_training.sources.rosbag2 import Topic
from spec_vlm_nav.messages import AskedPrompt
from speculation.images import COMPRESSED, RAW, to_jpeg
from speculation.language.instructions import sentence_for
from speculation.language.prompts import ResponseOrder, Vocabulary, compose, to_navigation_action
from speculation.settings import CheckedSettings
from vlm_nav_evaluation.bags.files import VIDEOS, BagReader, header_stamp, nanoseconds
from vlm_nav_evaluation.bags.video import Picture, Video, check_video

CAMERAS = (RAW, COMPRESSED, *VIDEOS)
"""Types of topics that show what a camera saw."""
TEXT = "std_msgs/msg/String"
INSTRUCTION = "instruction"
"""Last part of the name of the topic of instructions."""
PROMPT = "prompt"
"""Last part of the name of the topic that carries an `AskedPrompt` per frame that a model was asked about."""
STATS = "spec_vlm_nav_interfaces/msg/DecodingStats"
"""Type of the topic that has the answers that were given while the bag was recorded."""
ORACLE = "oracle_action"
"""Last part of the name of the topic that carries an `OracleLabel` per frame."""


class OracleLabel(msgspec.Struct, frozen=True):
    """What the oracle would do about the frame whose header is stamped `stamp_ns`, and which objects it shows.

    Raises ValueError for an action that is none.
    """

    stamp_ns: int
    action: str
    """In words, e.g. 'turn left small'."""
    reason: str = ""
    visible: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if to_navigation_action(self.action) is None:
            raise ValueError(f"an oracle label has the action {self.action!r}, which is none")

    def to_json(self) -> str:
        """Return the text of the topic's std_msgs/String."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> OracleLabel:
        """Read the text of a label. Raises ValueError, naming the field, for anything else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ValueError(f"an oracle label must be JSON with stamp_ns and action: {error}") from None


class Selection(CheckedSettings, frozen=True):
    """Which frames of a bag are asked about what. Raises ValueError, naming the setting, for a value out of range."""

    topic: Annotated[str, Meta(description="camera: topic of a bag, key of a LeRobot data set; empty: its own")] = ""
    skip: Annotated[int, Meta(ge=0, description="frames passed over at the start of each bag")] = 0
    fps: Annotated[float, Meta(ge=0, description="at most so many frames per second of the bag's time; 0: all")] = 0.0
    limit: Annotated[int, Meta(ge=0, description="at most so many frames of each bag; 0: all")] = 0
    instruction: Annotated[str, Meta(description="asked instead of the bag's own")] = ""
    anew: bool = False
    """Make the prompt anew also where the bag has the one that was asked about the frame."""
    asked: bool = False
    """Take only the frames that a model was asked about while the bag was recorded."""
    order: ResponseOrder = ResponseOrder.REASON_FIRST
    guide: bool = False
    """How the prompt is made, as in `speculation.language.prompts.compose`."""

    def expected(self, count: int, seconds: float) -> int:
        """Return about how many frames are chosen of `count` in so many seconds."""
        count = max(0, count - self.skip)
        if self.fps:
            count = min(count, int(seconds * self.fps) + 1)
        return min(count, self.limit) if self.limit else count


class Given(NamedTuple):
    """An answer that was given while a bag was recorded: the mode, and the text."""

    mode: str
    text: str


@dataclass(frozen=True)
class BagFrame:
    """One question. `index` counts the camera's frames in the bag from 0; `stamp_ns` is when it was received.

    `instruction` is the one that was valid then; `prompt` is made of the sentence that the model is asked for it.
    """

    index: int
    stamp_ns: int
    jpeg: bytes
    instruction: str
    prompt: str
    label: OracleLabel | None = None
    given: Given | None = None
    """What was answered while the bag was recorded, if the prompt is that one."""


class CameraFrame(NamedTuple):
    """A camera message as it was taken: the JPEG, and stamp (ns) and name of its header."""

    jpeg: bytes
    stamp_ns: int
    frame_id: str


@dataclass(frozen=True)
class Shown:
    """One frame of a bag's camera, not converted yet: its number among the camera's messages, and when it came (ns)."""

    index: int
    stamp_ns: int
    take: Callable[[], CameraFrame]
    """Returns what it shows; to be called before the next is taken. Raises ValueError for what is no picture."""


Message = tuple[str, int, bytes]
"""A message of another topic: its topic, when it came (ns), and itself in CDR."""


def camera_frames(bag: BagReader, camera: Topic, others: Collection[str] = ()) -> Iterator[Shown | LeftOut | Message]:
    """Yield a camera's frames, and the messages of other topics, in order of time; what is lost is a `LeftOut`."""
    for problem in bag.problems:
        yield LeftOut(problem)
    try:
        frames = _video_frames if camera.kind in VIDEOS else _image_frames
        yield from frames(bag, camera, bag.messages([camera.name, *others]))
    except ValueError as error:
        yield LeftOut(f"{error}; what comes after is left out")


def _image_frames(bag: BagReader, camera: Topic, messages: Iterator[Message]) -> Iterator[Shown | Message]:
    index = 0
    for topic, stamp_ns, raw in messages:
        if topic == camera.name:
            yield Shown(index, stamp_ns, partial(_read_image, bag, camera, raw))
            index += 1
        else:
            yield topic, stamp_ns, raw


def _read_image(bag: BagReader, camera: Topic, raw: bytes) -> CameraFrame:
    message = bag.decode(camera.name, raw)
    return CameraFrame(to_jpeg(message, camera.kind), header_stamp(message), str(message.header.frame_id))


def _video_frames(bag: BagReader, camera: Topic, messages: Iterator[Message]) -> Iterator[Shown | LeftOut | Message]:
    video, index = Video(), 0
    places: dict[int, tuple[int, int, str]] = {}

    def shown(found: Iterable[Picture | LeftOut]) -> Iterator[Shown | LeftOut]:
        for item in found:
            if isinstance(item, LeftOut):
                yield item
                continue
            stamp_ns, header_ns, frame_id = places.pop(item.number)
            taken = partial(_read_picture, item, header_ns, frame_id)
            yield Shown(item.number, stamp_ns, taken)

    for topic, stamp_ns, raw in messages:
        if topic != camera.name:
            yield topic, stamp_ns, raw
            continue
        message = bag.decode(camera.name, raw)
        stamp = getattr(message, "timestamp", None)
        header_ns = stamp_ns if stamp is None else nanoseconds(stamp)
        places[index] = stamp_ns, header_ns, str(getattr(message, "frame_id", ""))
        yield from shown(video.push(index, camera.kind, message))
        index += 1
    yield from shown(video.end())


def _read_picture(picture: Picture, header_ns: int, frame_id: str) -> CameraFrame:
    return CameraFrame(picture.jpeg(), header_ns, frame_id)


class _Timed(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def stamp_ns(self) -> int: ...


Entry = TypeVar("Entry", bound=_Timed)


def choose(entries: Iterable[Entry | LeftOut], selection: Selection) -> Iterator[Entry | LeftOut]:
    """Yield those of a camera's frames, in order of time, that a selection takes; nothing is decoded for that.

    What is left out anyway is passed on.
    """
    taken, passed, first, last = 0, 0, None, -1
    period_ns = round(1e9 / selection.fps) if selection.fps else 0
    for entry in entries:
        if isinstance(entry, LeftOut):
            yield entry
            continue
        if entry.index < selection.skip:
            passed += 1
            continue
        if period_ns:
            # One frame for each tick since the first, so that jitter does not add up; a tenth early is on time.
            first = entry.stamp_ns if first is None else first
            tick = (entry.stamp_ns - first + period_ns // 10) // period_ns
            if tick <= last:
                continue
            last = tick
        yield entry
        taken += 1
        if taken == selection.limit:
            return
    if passed and not taken:
        yield LeftOut(f"skip {selection.skip} passes over all {passed} frames")


def asked_sentence(instruction: str, vocabulary: Vocabulary | None) -> str:
    """Return what a model is asked about a frame (`sentence_for`). Raises ValueError where nothing can be asked."""
    if not instruction:
        raise ValueError("no instruction had been given yet; give one with --instruction")
    return sentence_for(instruction, vocabulary)


class FrameSource(BagReader):
    """The questions of one bag; may be iterated again and gives the same. A context manager.

    Raises ValueError, in one sentence, for a bag that cannot be read or has not the one camera topic.
    """

    def __init__(self, path: Path, selection: Selection, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(path)
        self._selection, self._vocabulary = selection, vocabulary
        try:
            self.topic = find_camera(self, selection.topic)
        except ValueError:
            self.__exit__()
            raise

    def __len__(self) -> int:
        """Return about how many frames come, for a progress bar."""
        return self._selection.expected(self.topic.count, self.seconds)

    def __iter__(self) -> Iterator[BagFrame | LeftOut]:
        """Yield the frames in order of time; a damaged end, an undecodable image or a bad label is a `LeftOut`."""
        try:
            yield from self._frames()
        except ValueError as error:
            yield LeftOut(str(error))

    def _frames(self) -> Iterator[BagFrame | LeftOut]:
        selection = self._selection
        instruction = selection.instruction
        instructions = deque(self._instructions())
        labels, problems = self._labels()
        yield from problems
        prompts, given = dict[int, AskedPrompt](), dict[int, Given]()
        anew = bool(instruction) or selection.anew
        if selection.asked or not anew:
            prompts, given, problems = self._asked()
            yield from problems
        chosen = frozenset(prompts) if selection.asked else None
        if anew:
            prompts, given = {}, {}
        found_any, missing = False, set(given)
        for entry in choose(self._camera(chosen), selection):
            found_any = True
            if isinstance(entry, LeftOut):
                yield entry
                continue
            while instructions and instructions[0][0] <= entry.stamp_ns:
                _, instruction = instructions.popleft()
            try:
                taken = entry.take()
                asked = prompts.get(taken.stamp_ns)
                missing.discard(taken.stamp_ns)
                # A recorder that came late may have missed the instruction, and a prompt needs none.
                sentence = asked.instruction if asked else asked_sentence(instruction, self._vocabulary)
            except ValueError as error:
                yield LeftOut(str(error), entry.index)
                continue
            prompt = asked.prompt if asked else compose(sentence, (), selection.order, selection.guide)
            answer = given.get(taken.stamp_ns) if asked else None
            label = labels.get(taken.stamp_ns)
            yield BagFrame(entry.index, entry.stamp_ns, taken.jpeg, instruction or sentence, prompt, label, answer)
        if missing and not (selection.skip or selection.fps or selection.limit):
            yield LeftOut(
                f"{len(missing)} of {len(given)} recorded answers are about frames that {self.topic.name} lacks: "
                "their recorder lost them, or this is not the topic that vlm_nav reads"
            )
        if not found_any and self.topic.count > selection.skip:
            why = "of which none was asked about" if selection.asked else "but holds none"
            yield LeftOut(f"bag {self.path} lists {self.topic.count} frames on {self.topic.name} {why}")

    def _camera(self, chosen: Container[int] | None) -> Iterator[Shown | LeftOut]:
        """Yield the camera's frames, or those of them whose headers have the chosen stamps."""
        for item in camera_frames(self, self.topic):
            if isinstance(item, tuple):
                continue
            if chosen is not None and isinstance(item, Shown):
                with suppress(ValueError):  # what is no picture is told in its turn
                    if item.take().stamp_ns not in chosen:
                        continue
            yield item

    def _asked(self) -> tuple[dict[int, AskedPrompt], dict[int, Given], list[LeftOut]]:
        """Return prompts and answers by their frames' stamps, and what cannot be read.

        A frame may be asked about twice, as where a question was dropped: the prompt that was answered counts.
        """
        prompts, given, problems = dict[int, AskedPrompt](), dict[int, Given](), list[LeftOut]()
        stats = [topic.name for topic in self.topics.values() if topic.kind == STATS]
        for topic, _, message in self._texts([*self._named(PROMPT), *stats]):
            if topic in stats:
                given[header_stamp(message)] = Given(str(message.mode), str(message.answer))
                continue
            try:
                asked = AskedPrompt.from_json(message.data)
            except ValueError as error:
                problems.append(LeftOut(str(error)))
            else:
                if asked.stamp_ns not in given:
                    prompts[asked.stamp_ns] = asked
        if unasked := sum(stamp not in prompts for stamp in given):
            problems.append(
                LeftOut(
                    f"{unasked} of {len(given)} recorded answers lack their prompts: record the topic vlm_nav/prompt "
                    "too; without it questions hold nothing of what was done and searched before"
                )
            )
        return prompts, given, problems

    def _instructions(self) -> list[tuple[int, str]]:
        if self._selection.instruction:
            return []
        topics = self._named(INSTRUCTION)
        if len(topics) > 1:
            raise ValueError(
                f"bag {self.path} has several instruction topics ({', '.join(topics)}); give one with --instruction"
            )
        return [(stamp, str(message.data)) for _, stamp, message in self._texts(topics)]

    def _labels(self) -> tuple[dict[int, OracleLabel], list[LeftOut]]:
        """Return the oracle's labels by their frames' stamps, and what cannot be read."""
        found, problems = dict[int, OracleLabel](), list[LeftOut]()
        for _, _, message in self._texts(self._named(ORACLE)):
            try:
                label = OracleLabel.from_json(message.data)
            except ValueError as error:
                problems.append(LeftOut(str(error)))
            else:
                found[label.stamp_ns] = label
        return found, problems

    def _texts(self, topics: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield the messages of topics as far as the bag can be read; where it cannot, the frames' turn tells."""
        with suppress(ValueError):
            yield from self.decoded(topics)

    def _named(self, name: str) -> list[str]:
        topics = self.topics.values()
        return [topic.name for topic in topics if topic.name.rpartition("/")[2] == name and topic.kind == TEXT]


def find_camera(bag: BagReader, wanted: str, option: str = "--topic") -> Topic:
    """Return the one camera topic of a bag, or the one that is called `wanted`.

    Depth is no camera, and neither is a topic without messages where others have some. Raises ValueError, in one
    sentence, where there is none, where several remain (they are chosen from with `option`), and for a video that
    cannot be decoded here.
    """
    pictures = [topic for topic in bag.topics.values() if topic.kind in CAMERAS]
    if wanted:
        topic = next((each for each in bag.topics.values() if each.name.lstrip("/") == wanted.lstrip("/")), None)
        if topic is None or topic not in pictures:
            what = "has no topic" if topic is None else f"has no images ({topic.kind}) on"
            raise ValueError(f"bag {bag.path} {what} {wanted}; its camera topics are {_listed(pictures)}")
    else:
        topic = _only_camera(bag, pictures, option)
    if not topic.count:
        raise ValueError(f"bag {bag.path} holds no message on {topic.name}")
    if topic.kind in VIDEOS:
        check_video(bag.path, topic.name)
    return topic


def _only_camera(bag: BagReader, pictures: Sequence[Topic], option: str) -> Topic:
    if not pictures:
        others = (
            ", ".join(sorted(f"{topic.name} ({topic.kind or 'several types'})" for topic in bag.topics.values()))
            or "none at all"
        )
        raise ValueError(f"bag {bag.path} has no topic of type {', '.join(CAMERAS)}; its topics are {others}")
    filled = [topic for topic in pictures if topic.count] or pictures
    cameras = [topic for topic in filled if not is_depth(bag, topic)]
    if not cameras:
        raise ValueError(f"bag {bag.path} has depth images alone: {_listed(filled)}; depth is no camera")
    if len(cameras) > 1:
        raise ValueError(f"bag {bag.path} has several camera topics: {_listed(cameras)}; choose one with {option}")
    return cameras[0]


def _listed(topics: Sequence[Topic]) -> str:
    return ", ".join(f"{topic.name} ({topic.count} frames)" for topic in topics) or "none"


def is_depth(bag: BagReader, topic: Topic) -> bool:
    """Return whether a topic's name or its first image tells that it is depth."""
    if "depth" in topic.name.lower():
        return True
    if topic.kind in VIDEOS:
        return False
    try:
        message = next((message for _, _, message in bag.decoded([topic.name])), None)
    except ValueError:
        return False
    form = str(getattr(message, "encoding", "") or getattr(message, "format", ""))
    return form == "16UC1" or "compressedDepth" in form
