"""Data of several kinds as one: bags and shards become conversations, orders depend on seed and epoch alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from adapters_training.records import write_shard
from adapters_training.sources.bags import RecordedBag
from adapters_training.sources.mixture import open_mixture
from adapters_training.sources.shards import ShardFolder
from spec_vlm_nav.messages import AskedPrompt, figures
from tests.adapters_training.frames import make_frame
from tests.vlm_nav_evaluation.report.recording import FIGURES, NAV, Recorder, jpeg

SIDES = ("left", "ahead", "right")


@pytest.fixture
def shard_folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for first in range(0, 150, 25):
        frames = [make_frame(rng, side) for side in SIDES]
        write_shard(tmp_path / f"seeds-{first:07d}-{first + 25:07d}.msgpack", frames)
    return tmp_path


def test_shards_are_read_frame_by_frame(shard_folder: Path) -> None:
    source = ShardFolder(shard_folder)
    assert source.blocks == [3] * 6
    sample = source.sample(17, random.Random(1))
    assert sample.image == source.frame(17).jpeg
    assert [turn.role for turn in sample.turns] == ["user", "assistant"]
    assert "ball" in sample.turns[0].text and "Action: " in sample.turns[1].text
    assert source.sample(17, random.Random(1)) == sample
    assert "You steer a robot dog" in ShardFolder(shard_folder, guide=True).sample(0, random.Random(1)).turns[0].text
    answered = msgspec.structs.replace(source.frame(0).tasks[0], prompt="find it", answer="There.\nAction: stop")
    frame = msgspec.structs.replace(source.frame(0), tasks=[*source.frame(0).tasks, answered])
    write_shard(shard_folder / "seeds-0000000-0000025.msgpack", [frame])
    own = ShardFolder(shard_folder).sample(0, random.Random(1))
    assert [turn.text for turn in own.turns] == ["find it", "There.\nAction: stop"]
    (shard_folder / "seeds-0000150-0000175.msgpack").write_bytes(b"half a file")
    assert len(ShardFolder(shard_folder).problems) == 1


def answer(recorder: Recorder, second: float, step: int, text: str) -> None:
    counts = {"early_layers": np.zeros(0, np.uint16), "early_hits": np.zeros(0, np.uint32)}
    words = {"profile": "", "link": "", "frame_age_s": 0.0, "link_rtt_s": 0.0, "answer": text}
    recorder.put("/decoding_stats", f"{NAV}DecodingStats", second + 0.3, **{**figures(FIGURES), **counts, **words},
                 header=recorder.header(second), goal=1, step=step)  # fmt: skip


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path / "bag")
    for second in range(6):
        image = recorder.header(float(second))
        recorder.put("/camera/image/compressed", "sensor_msgs/msg/CompressedImage", float(second), header=image,
                     format="jpeg", data=jpeg(30 * second + 10))  # fmt: skip
    answer(recorder, 0.0, 0, "too early")
    recorder.put("/vlm_nav/instruction", "std_msgs/msg/String", 0.5, data="find the red ball")
    answer(recorder, 1.0, 0, "I see it.\nAction: forward large")
    answer(recorder, 3.0, 1, "There it is.\nAction: turn left small")
    answer(recorder, 4.0, 2, "Here.\nAction: stop")
    answer(recorder, 7.5, 3, "A frame that was not recorded")
    recorder.close()
    return tmp_path / "bag"


def test_a_bag_gives_what_was_seen_told_and_answered(bag: Path) -> None:
    source = RecordedBag(bag)
    samples = [source.sample(index, random.Random(0)) for index in range(source.blocks[0])]
    assert [sample.turns[1].text.splitlines()[-1] for sample in samples] == [
        "Action: forward large",
        "Action: turn left small",
        "Action: stop",
    ]
    assert [sample.turns[0].text for sample in samples] == [
        "find the red ball",
        "find the red ball\nDone: forward large",
        "find the red ball\nDone: forward large, turn left small",
    ]
    assert [sample.image for sample in samples] == [jpeg(30 * second + 10).tobytes() for second in (1, 3, 4)]
    assert len(source.problems) == 2
    assert any("no instruction had been given yet" in problem for problem in source.problems)
    assert any("7.500 s has no such frame" in problem for problem in source.problems)


def test_a_bag_gives_the_prompts_that_were_asked(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "bag")
    recorder.put("/vlm_nav/instruction", "std_msgs/msg/String", 0.5, data="find the red ball")
    searched = "find the red ball\nDone: forward large blocked\nSeen: here 2/8"
    for text in ("oops", "[1]", AskedPrompt(2 * 10**9, searched).to_json()):
        recorder.put("/vlm_nav/prompt", "std_msgs/msg/String", 1.5, data=text)
    for second in (1.0, 2.0):
        recorder.put("/camera/image/compressed", "sensor_msgs/msg/CompressedImage", second, format="jpeg",
                     header=recorder.header(second), data=jpeg(40))  # fmt: skip
        answer(recorder, second, int(second), "I see it.\nAction: forward large")
    recorder.close()
    source = RecordedBag(tmp_path / "bag")
    prompts = [source.sample(index, random.Random(0)).turns[0].text for index in range(2)]
    assert prompts == ["find the red ball", searched]
    assert len(source.problems) == 2 and all("/vlm_nav/prompt is no JSON" in problem for problem in source.problems)
    guided = RecordedBag(tmp_path / "bag", guide=True).sample(1, random.Random(0)).turns[0].text
    assert "You steer a robot dog" in guided and "Seen" not in guided


def test_a_mixture_finds_out_what_is_what(bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = tmp_path / "chat.jsonl"
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    chat.write_text("\n".join(["oops"] * 7 + [json.dumps(record)]), encoding="utf-8")
    mixture = open_mixture([str(chat), str(bag)], "data")
    assert len(mixture) == 4 and mixture.has_images
    assert mixture.sample(0, random.Random(0)).turns[1].text == "b"
    assert mixture.sample(1, random.Random(0)).turns[0].text == "find the red ball"
    mixture.report("data")
    said = capsys.readouterr().err
    assert said.count("left out: ") == 6 and "left out: 4 more" in said
    assert "data: 4 records, 9 left out" in said


def test_orders_are_permutations_that_seed_and_epoch_decide(shard_folder: Path) -> None:
    mixture = open_mixture([str(shard_folder)], "data")
    first = mixture.order(3, 0)
    assert sorted(first) == list(range(len(mixture)))
    assert list(first) == list(open_mixture([str(shard_folder)], "data").order(3, 0))
    assert list(first) != list(mixture.order(3, 1)) and list(first) != list(mixture.order(4, 0))
    assert len({index // 3 for index in first[:12]}) == 4, "four shards are mixed at a time"


def test_wrong_paths_are_sentences(tmp_path: Path) -> None:
    for path, text, sentence in (
        ("none.json", None, "--data .* does not exist: give a .json"),
        ("notes.txt", "x", "--data .* is data of no known kind"),
        ("empty.jsonl", "{}\n", "holds no usable record: 1 records were left out; the first: .*empty.jsonl:1"),
        ("metadata.yaml", "x", "is no bag: it has no metadata.yaml and no .mcap or .db3 file"),
    ):
        if text is not None:
            (tmp_path / path).write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=sentence):
            open_mixture([str(tmp_path if path == "metadata.yaml" else tmp_path / path)], "data")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="no training data in .*folder: run"):
        open_mixture([str(tmp_path / "folder")], "data")
    (tmp_path / "folder" / "run_0.mcap").write_bytes(b"x")
    with pytest.raises(ValueError, match="run_0.mcap cannot be read: File magic is invalid"):
        open_mixture([str(tmp_path / "folder")], "data")
    with pytest.raises(ValueError, match="--data is missing"):
        open_mixture([], "data")
