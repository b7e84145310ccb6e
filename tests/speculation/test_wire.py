"""The wire: what goes in comes out, what is out of bounds does not, and digests name prefixes."""

from __future__ import annotations

import hashlib
import random
import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculation import wire
from speculation.wire import (
    MAX_ANSWER_TOKENS,
    MAX_DRAFT_TOKENS,
    MAX_FEATURE_BYTES,
    MAX_FRAMES,
    MAX_IMAGE_BYTES,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    ROOT,
    BeginStep,
    Commit,
    Draft,
    Features,
    Grammar,
    Hello,
    Jpegs,
    Masses,
    Welcome,
    WireError,
    begin_digest,
    decode,
    encode,
    extend_digest,
    frames_of,
    jpeg_of,
    kind_of,
    parents_of,
    prefix_of,
)
from tests.fuzz.generator import any_message

DIGEST = b"12345678"
tokens = st.integers(0, 2**20 - 1)
digests = st.binary(min_size=8, max_size=8)
steps = st.integers(0, 2**32 - 1)
positions = st.integers(0, MAX_ANSWER_TOKENS)
chains = st.lists(tokens, max_size=MAX_DRAFT_TOKENS)
frames = st.binary(max_size=200) | st.lists(st.binary(min_size=1, max_size=60), min_size=2, max_size=MAX_FRAMES).map(
    tuple
)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    drawn = draw(chains)
    parents = draw(st.none() | st.tuples(*(st.integers(ROOT, node - 1) for node in range(len(drawn)))).map(list))
    return Draft(draw(steps), draw(st.integers(1, 2**32 - 1)), draw(positions), draw(digests), drawn, parents)


@st.composite
def featured(draw: st.DrawFn) -> Features:
    known = draw(st.lists(tokens, min_size=1, max_size=20))
    each = draw(st.integers(1, MAX_FEATURE_BYTES))
    return Features(draw(steps), draw(positions), known, bytes(len(known) * each))


def made(seed: int) -> wire.AnyMessage:
    """Return a message of any kind, made from the wire's own schema."""
    dice = random.Random(seed)
    while True:
        try:
            return decode(any_message(dice))
        except WireError:  # of its fields some must fit each other
            pass


rests = st.builds(
    Masses,
    weights=st.just(bytes(8)),
    total=st.floats(0.1, 1e6),
    ids=st.sampled_from([b"", bytes(8)]),
    tail=st.floats(0, 1),
)
commits = st.builds(
    Commit,
    step=steps,
    round=steps,
    start=positions,
    tokens=st.lists(tokens, max_size=MAX_DRAFT_TOKENS + 1),
    digest=digests,
    done=st.booleans(),
    passes=st.integers(0, 100),
    rest=st.none() | rests,
)
messages = featured() | drafts() | commits | st.integers(0, 2**32).map(made)


@given(messages)
def test_every_message_survives_the_wire(message: wire.AnyMessage) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
def test_random_bytes_are_a_message_or_a_wire_error(payload: bytes) -> None:
    try:
        message = decode(payload)
    except WireError as error:
        assert "\n" not in str(error)
    else:
        assert decode(encode(message)) == message


@given(messages, st.data())
def test_a_broken_message_is_a_message_or_a_wire_error(message: wire.AnyMessage, data: st.DataObject) -> None:
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(payload))
    except WireError:
        return
    if isinstance(decoded, Draft):
        assert all(ROOT <= parent < node for node, parent in enumerate(parents_of(decoded)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([4, 1, 1, 5000, DIGEST, []], r"Draft\.start: Expected int <= 4096"),
        ([4, 1, 0, 6, DIGEST, []], r"Draft\.round: Expected int >= 1"),
        ([4, 1, 1, 6, b"1234567", []], r"Draft\.digest: Expected bytes of length >= 8"),
        ([4, 1, 1, 6, DIGEST, [1, 2**20]], r"Draft\.tokens\[1\]: Expected int <= 1048575"),
        ([4, 1, 1, 6, DIGEST, [1] * 65], r"Draft\.tokens: Expected array of length <= 64"),
        ([4, 1, 1, 6, DIGEST, [1, 2], [-1]], r"Draft\.parents has 1 entries for 2 tokens"),
        ([4, 1, 1, 6, DIGEST, [1, 2], [-1, 1]], r"Draft\.parents\[1\] = 1 does not come before"),
        ([4, 1, 1], r"Draft: 3 array elements, expected 6 to 11"),
        ([3, 1, "", b"x"], r"BeginStep\.prompt: Expected str of length >= 1"),
        ([3, 1, "p", b"x", [], 100, 0, 1.0, [[1], [2**20]]], r"BeginStep\.hints\[1\]\[0\]: Expected int <= 104"),
        ([5, 1, 1, 0, 0, 1, 1, float("nan")], r"EarlyTokens\.confidence"),
        ([6, 1, 1, 0, [5, 6], DIGEST, False, 1, 0.0, 0.0, 0.0, None, bytes(3)], r"Commit\.features has 3 bytes for 2"),
        ([6, 1, 1, 0, [], DIGEST, False, 1, 0.0, 0.0, 0.0, None, bytes(4)], r"Commit\.features has 4 bytes for 0"),
        ([6, 1, 1, 0, [5], DIGEST, False, 1, 0.0, 0.0, 0.0, None, bytes(257)], r"as many for each, at most 256"),
        ([13, 1, 0, [5] * 4161, bytes(4161)], r"of 8332 bytes: Expected array of length <= 4160"),
        ([13, 1, 0, [5, 6], b""], r"Features\.features has 0 bytes for 2 tokens"),
        ([10, 99, "x"], r"Fault\.code: Invalid enum value 99"),
        ([77, 1], rf"unknown tag '77'; known are 1 to {len(get_args(wire.AnyMessage))}"),
        ([True], r"malformed message"),
        ({"tag": 1}, r"expected an array"),
        (None, r"malformed message"),
    ],
)
def test_a_complaint_names_the_field_and_the_limit(content: object, complaint: str) -> None:
    payload = msgspec.msgpack.encode(content)
    with pytest.raises(WireError, match=complaint):
        decode(payload)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x07\x01\xa2\xff\xfe", b"\x91" * 5000, b"GET / HTTP/1.1\r\n"])
def test_what_is_no_msgpack_is_malformed(payload: bytes) -> None:
    with pytest.raises(WireError, match="malformed message"):
        decode(payload)


def test_a_welcome_without_a_repetition_penalty_has_none_and_others_are_bounded() -> None:
    welcome = Welcome("s", "m", "t", 100, 4, [1], [9], repetition_penalty=1.05)
    content = msgspec.msgpack.decode(encode(welcome))
    assert decode(encode(welcome)) == welcome
    earlier = decode(msgspec.msgpack.encode(content[:-1]))
    assert isinstance(earlier, Welcome) and earlier.repetition_penalty == 1.0
    for penalty in (0.0, -1.05, 1e3, float("inf"), float("nan")):
        with pytest.raises(WireError, match=r"Welcome\.repetition_penalty"):
            decode(msgspec.msgpack.encode([*content[:-1], penalty]))


def test_an_oversized_message_is_refused_by_its_size() -> None:
    with pytest.raises(WireError, match=f"exceeds the limit of {MAX_MESSAGE_BYTES}"):
        decode(bytes(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("word", ["\n", "silver\n", "\x1b[2J", "a\u202eb", "a\u200b"])
def test_words_for_people_have_nothing_that_is_not_shown(word: str) -> None:
    welcome = Welcome("s", "m", "t", 100, 4, [1], [9], colours=["silver", word])
    with pytest.raises(WireError, match=r"Welcome\.colours\[1\]"):
        decode(encode(welcome))
    assert decode(encode(Welcome("s", "m", "t", 100, 4, [1], [9], colours=["argenté"]))).colours == ["argenté"]  # type: ignore[union-attr]


def test_a_chain_needs_no_parents() -> None:
    chain = Draft(1, 1, 0, DIGEST, [5, 6, 7])
    assert parents_of(chain) == [ROOT, 0, 1]
    assert parents_of(Draft(1, 1, 0, DIGEST, [])) == []


def test_prompts_that_begin_alike_have_one_prefix() -> None:
    assert prefix_of("find it " * 20) == prefix_of("find it " * 8 + "elsewhere") != prefix_of("find that " * 20)
    assert decode(encode(Hello("tok", 100, prefix=prefix_of("")))) == Hello("tok", 100, prefix=prefix_of(""))


def test_four_draft_tokens_fit_fifty_five_bytes_at_most() -> None:
    draft = Draft(2**32 - 1, 2**32 - 1, MAX_ANSWER_TOKENS, DIGEST, [2**20 - 1] * 4, draft_ms=3_600_000)
    assert len(encode(draft)) <= 55


def begin(jpeg: Jpegs) -> BeginStep:
    return BeginStep(1, "find it", jpeg)


def test_several_frames_cross_the_wire_and_one_costs_what_it_did() -> None:
    several = (b"oldest", b"older", b"newest")
    message = decode(encode(begin(several)))
    assert isinstance(message, BeginStep) and message.jpeg == several == frames_of(message.jpeg)
    one = decode(encode(begin(jpeg_of([b"newest"]))))
    assert isinstance(one, BeginStep) and one.jpeg == b"newest" and frames_of(one.jpeg) == (b"newest",)
    assert msgspec.msgpack.decode(encode(begin(b"newest")))[3] == b"newest", "one frame is in no array"


@pytest.mark.parametrize(
    ("jpeg", "sentence"),
    [
        ((b"alone",), "BeginStep.jpeg: Expected array of length >= 2"),
        ((b"a",) * (MAX_FRAMES + 1), "BeginStep.jpeg: Expected array of length <= 4"),
        ((b"a", b""), r"BeginStep.jpeg\[1\]: Expected bytes of length >= 1"),
        ((b"a", 7), r"BeginStep.jpeg\[1\]: Expected bytes, got int"),
        ((b"a", bytes(MAX_IMAGE_BYTES)), "2 frames of 4194305 bytes exceed the limit of 4194304 for all of them"),
    ],
)
def test_frames_that_cannot_be_are_refused(jpeg: Jpegs, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        decode(encode(begin(jpeg)))


def slow_digest(prompt: str, jpeg: Jpegs, answer: list[int], key: int, grammar: Grammar) -> bytes:
    """The digest, written out again from its definition."""
    text = prompt.encode()
    value = hashlib.blake2b(
        struct.pack("<I", PROTOCOL)
        + struct.pack("<I", len(text))
        + struct.pack("<I", 6)
        + key.to_bytes(8, "little")
        + bytes([grammar])
        + text
        + b"greedy"
        + struct.pack("<I", len(frames_of(jpeg)))
        + b"".join(len(frame).to_bytes(4, "little") for frame in frames_of(jpeg))
        + b"".join(frames_of(jpeg)),
        digest_size=8,
    ).digest()
    for token in answer:
        value = hashlib.blake2b(value + token.to_bytes(4, "little"), digest_size=8).digest()
    return value


@given(st.text(max_size=20), frames, st.lists(tokens, max_size=8), st.integers(0, 8),
       st.integers(0, 2**63 - 1), st.sampled_from(Grammar))  # fmt: skip
def test_digests_extend_token_by_token_or_at_once(
    prompt: str, jpeg: Jpegs, answer: list[int], cut: int, key: int, grammar: Grammar
) -> None:
    begin = begin_digest(prompt, jpeg, key=key, grammar=grammar)
    whole = extend_digest(begin, answer)
    assert whole == slow_digest(prompt, jpeg, answer, key, grammar)
    assert extend_digest(extend_digest(begin, answer[:cut]), answer[cut:]) == whole


drawing = st.tuples(st.sampled_from(["greedy", "coupled(temperature=1.0)"]), st.integers(0, 2))
some = st.binary(max_size=4) | st.lists(st.binary(min_size=1, max_size=2), min_size=2, max_size=3).map(tuple)
prefix = st.tuples(st.text(max_size=4), some, drawing, st.lists(tokens, max_size=3))


@given(st.lists(prefix, min_size=2, max_size=6))
def test_different_prefixes_have_different_digests(
    prefixes: list[tuple[str, Jpegs, tuple[str, int], list[int]]],
) -> None:
    found = {extend_digest(begin_digest(prompt, jpeg, *drawn), answer) for prompt, jpeg, drawn, answer in prefixes}
    assert len(found) == len({(prompt, jpeg, drawn, tuple(answer)) for prompt, jpeg, drawn, answer in prefixes})


@pytest.mark.parametrize(
    ("masses", "message"),
    [
        (Masses(b"", 1.0), "Commit.rest has 0 bytes of weights and 0 of ids"),
        (Masses(bytes(6), 1.0), "Commit.rest has 6 bytes of weights"),
        (Masses(bytes(8), 1.0, bytes(4)), "Commit.rest has 8 bytes of weights and 4 of ids"),
        (Masses(bytes(8), float("inf")), "Commit.rest: total inf is not finite"),
        (Masses(bytes(8), 0.0), "Commit.rest"),
    ],
)
def test_masses_that_cannot_be_are_refused(masses: Masses, message: str) -> None:
    commit = Commit(1, 1, 0, [], bytes(8), False, rest=masses)
    with pytest.raises(WireError, match=message):
        decode(encode(commit))


def test_probabilities_add_nine_bytes_a_token() -> None:
    """Tokens alone take at most 50, see above; probabilities are float64."""
    draft = Draft(7, 3, 40, bytes(8), [150_000, 150_001, 150_002, 150_003], None, [0.3, 0.5, 0.7, 0.9])
    assert len(encode(draft)) <= 90


def test_a_large_malformed_message_is_not_decoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage of 4 MB took 3.6 s and 300 MB to be explained."""
    small = b"\x92\x7f\xdd" + struct.pack(">I", 1000) + b"\x90" * 1000
    large = b"\x92\x7f\xdd" + struct.pack(">I", 100_000) + b"\x90" * 100_000
    with pytest.raises(WireError, match="unknown tag '127'"):
        decode(small)
    monkeypatch.setattr(msgspec.msgpack, "decode", lambda *_: pytest.fail("decoded a second time"))
    with pytest.raises(WireError, match=f"malformed message of {len(large)} bytes: "):
        decode(large)


@given(messages, st.binary(max_size=40))
def test_what_a_payload_claims_to_be_is_what_it_decodes_to(message: wire.AnyMessage, payload: bytes) -> None:
    assert kind_of(encode(message)) is type(message)
    try:
        decoded = decode(payload)
    except WireError:
        return
    assert kind_of(payload) in (None, type(decoded))
