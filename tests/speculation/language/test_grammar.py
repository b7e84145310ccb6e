"""The automaton of an answer against the plain definition of one, token by token."""

from __future__ import annotations

import math
import re
from functools import cache, lru_cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.language.grammar import (
    MAX_REASON_CHARS,
    UNSAID,
    Automaton,
    Constraint,
    Grammars,
    State,
    ThinkingAutomaton,
    _compiled,
    _table,
    actions_of,
    expression,
    grammar_for,
)
from speculation.language.prompts import (
    ACTIONS,
    DETOUR_DEGREES,
    MOTIONS,
    NOT_HERE,
    STOP,
    TURNS,
    ActionKind,
    Blocked,
    Past,
    ResponseOrder,
    Vocabulary,
    compose,
    format_answer,
    in_vain,
    parse_answer,
    recent,
)
from speculation.language.thinking import CLOSES, OPENS, begun, reader
from speculation.vlm.model import Vlm
from speculation.wire import PRINTABLE, ROOT, Grammar, Thinking
from tests.models import tiny_tokenizer

BOTH = (Grammar.REASON_FIRST, Grammar.ACTION_FIRST)
LINES = [f"Action: {action.text}" for action in ACTIONS]
PLENTY = 60
EOS, OTHER_EOS = 0, 1
PIECES = [
    "Action", "Action:", "Act", "ion:", ": ", ".\n", "\nAction: ", "\n", " turn", " left", "n left medium", "stop",
    "op", "forward large\n", "a", " b", "é", "\u200b", "\x07", "AAction", "Action: stop\nok", "see\nAction: stop", "中",
]  # fmt: skip


TOKENIZER = tiny_tokenizer()
THINKS = tiny_tokenizer(thinks=True)
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")


@lru_cache
def automaton(grammar: Grammar) -> Automaton:
    """Return a grammar over the tokens of the tiny models."""
    return Grammars(TOKENIZER, len(TOKENIZER)).of(grammar, (END,))


@lru_cache
def completes(tail: bytes) -> bool:
    """Whether some printable character begins with these bytes."""
    # What may follow a byte is a range that has one of these in it.
    for more in range(1, 4):
        for rest in product((0x80, 0x90, 0xA0, 0xBF), repeat=more):
            try:
                text = (tail + bytes(rest)).decode()
            except UnicodeDecodeError:
                continue
            if re.search(PRINTABLE, text):
                return True
    return False


def split(text: bytes) -> tuple[str, bytes] | None:
    """Return the whole characters of a text and the bytes of one that has only begun; None where it is no text."""
    for cut in range(min(4, len(text) + 1)):
        try:
            whole = text[: len(text) - cut].decode()
        except UnicodeDecodeError:
            continue
        tail = text[len(text) - cut :]
        return (whole, tail) if not tail or completes(tail) else None
    return None


def begins(text: bytes, grammar: Grammar, room: int) -> bool:
    """Whether an answer with reasons of at most `room` characters begins with this text."""
    found = split(text)
    if found is None:
        return False
    first, newline, second = found[0].partition("\n")
    reasons, line = (first, second) if grammar is Grammar.REASON_FIRST else (second, first)
    reasoning = (grammar is Grammar.REASON_FIRST) != bool(newline)
    if found[1] and not reasoning:
        return False
    if len(reasons) + bool(found[1]) > room or "Action:" in reasons or not re.search(PRINTABLE, reasons):
        return False
    return line in LINES if newline and reasoning else any(each.startswith(line) for each in LINES)


def is_complete(text: bytes, grammar: Grammar) -> bool:
    """Whether a text is an answer."""
    whole = text.decode(errors="ignore").encode() == text
    first, newline, second = text.decode(errors="ignore").partition("\n")
    return whole and bool(newline) and (second if grammar is Grammar.REASON_FIRST else first) in LINES


def need(text: bytes, grammar: Grammar, words: tuple[bytes, ...]) -> int:
    """Return how few tokens complete an answer without further reasons."""
    if is_complete(text, grammar):
        return 0
    ends = [line if grammar is Grammar.REASON_FIRST else f"{line}\n" for line in LINES]
    if grammar is Grammar.REASON_FIRST and b"\n" not in text:
        return min(fewest(f"\n{end}".encode(), words) for end in ends)
    begun = text.decode().rpartition("\n")[2] if grammar is Grammar.REASON_FIRST else text.decode()
    return min(fewest(end[len(begun) :].encode(), words) for end in ends if end.startswith(begun))


@cache
def fewest(text: bytes, words: tuple[bytes, ...]) -> int:
    """Return how few tokens spell a text."""
    if not text:
        return 0
    return 1 + min(fewest(text[len(word) :], words) for word in words if word and text.startswith(word))


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[bytes, ...]:
    """Two end tokens, every byte, and pieces of answers cut anywhere; some of them twice."""
    pieces = [piece.encode() for piece in draw(st.lists(st.sampled_from(PIECES), max_size=14))]
    cuts = draw(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 20), st.integers(1, 9)), max_size=6))
    pieces += [each for line, start, size in cuts if (each := line.encode()[start : start + size])]
    pieces += draw(st.lists(st.binary(min_size=2, max_size=4), max_size=4))
    return (b"", b"", *(bytes([byte]) for byte in range(256)), *pieces)


@settings(max_examples=25)
@given(data=st.data())
def test_the_mask_is_what_the_definition_allows(data: st.DataObject) -> None:
    words = data.draw(vocabularies())
    grammar = data.draw(st.sampled_from(BOTH))
    known = Automaton(grammar, words, (EOS, OTHER_EOS))
    room, left = data.draw(st.integers(0, 12)), data.draw(st.one_of(st.integers(1, 12), st.just(PLENTY)))
    state: State | None = known.start(left)._replace(room=room)
    text = b""
    for _ in range(8):
        assert state is not None and state.left == left
        mask = known.allowed(state).mask
        for token, word in enumerate(words):
            if not word:
                continue
            fits = begins(text + word, grammar, room)
            whole = split(text) == (text.decode(errors="ignore"), b"")
            if (
                fits
                and left < PLENTY // 2
                and whole
                and split(text + word) == ((text + word).decode(errors="ignore"), b"")
            ):
                fits = need(text + word, grammar, words) < max(left, need(text, grammar, words))
            elif fits and left < PLENTY // 2:
                continue
            assert bool(mask[token]) == fits, (text, word, left)
        ends, goes_on = is_complete(text, grammar), bool(mask[2:].any())
        assert bool(mask[EOS]) == ends and bool(mask[OTHER_EOS]) == (ends and goes_on)
        allowed = np.flatnonzero(mask[2:]) + 2
        longer = [token for token in allowed.tolist() if len(words[token]) > 1]
        if not len(allowed):
            return
        token = data.draw(st.sampled_from(longer if longer and data.draw(st.booleans()) else allowed.tolist()))
        state, text, left = known.next(state, token), text + words[token], left - 1
        if left == 0:
            return


@given(data=st.data())
def test_every_answer_ends_readable_however_few_tokens_it_may_have(data: st.DataObject) -> None:
    grammar = data.draw(st.sampled_from(BOTH))
    known = automaton(grammar)
    limit = data.draw(st.integers(known.least_tokens, 40))
    dice = np.random.default_rng(data.draw(st.integers(0, 999)))
    state: State | None = known.start(limit)
    tokens: list[int] = []
    while state is not None and len(tokens) < limit:
        tokens.append(int(dice.choice(np.flatnonzero(known.allowed(state).mask))))
        state = known.next(state, tokens[-1])
    text = TOKENIZER.decode(tokens, skip_special_tokens=True)
    assert re.fullmatch(expression(grammar), text)
    answer = parse_answer(text)
    assert answer.action in ACTIONS and not answer.problem
    assert len(answer.reasoning) <= MAX_REASON_CHARS and re.search(PRINTABLE, answer.reasoning)


OBJECTS = Vocabulary(("red", "blue"), ("ball", "box"))
NAMING = (
    b"the red", b" ball", b"red ball", b" b", b"all. ", b"blue box", b" box", b"d", b"e b", b"\n", b"Action: stop",
    b" Ne", b"xt",
)  # fmt: skip
NAMING_WORDS = (b"", b"", *(bytes([byte]) for byte in range(256)), *NAMING)
NAMES = tuple(f"{colour} {kind}".encode() for colour, kind in product(OBJECTS.colours, OBJECTS.classes))


@lru_cache
def naming(grammar: Grammar, once: bool) -> Automaton:
    """Return a grammar over NAMING_WORDS, in which the first object is named once or not."""
    return Automaton(grammar, NAMING_WORDS, (EOS,), NAMES if once else ())


@given(st.lists(st.sampled_from(NAMING), max_size=12), st.sampled_from(BOTH))
def test_the_first_object_of_an_answer_is_named_once(pieces: list[bytes], grammar: Grammar) -> None:
    plain, known = naming(grammar, False), naming(grammar, True)
    tokens = [NAMING_WORDS.index(piece, 2) for piece in pieces]
    if grammar is Grammar.ACTION_FIRST:
        tokens[:0] = [NAMING_WORDS.index(b"Action: stop"), NAMING_WORDS.index(b"\n")]
    text, states = b"", (plain.start(PLENTY), known.start(PLENTY))
    for token in tokens:
        text += NAMING_WORDS[token]
        free, state = (plain.next(states[0], token), known.next(states[1], token))
        first = min((name for name in NAMES if name in text), key=text.index, default=b"")
        fits = free is not None and UNSAID not in text and (not first or text.count(first) == 1)
        assert (state is not None) == fits == bool(known.allowed(states[1]).mask[token]), text
        if free is None or state is None:
            return
        states = free, state


def test_a_model_without_a_list_names_objects_as_it_likes() -> None:
    text = format_answer("The red ball is left of the red ball.", STOP)
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    for objects, fits in ((None, True), (OBJECTS, False)):
        known = Grammars(TOKENIZER, len(TOKENIZER), objects).of(Grammar.REASON_FIRST, (END,))
        assert (known.after(tokens, PLENTY) is not None) == fits


@pytest.mark.parametrize("grammar", [one for one in Grammar if one.lacks])
def test_a_grammar_of_fewer_actions_takes_what_its_expression_takes(grammar: Grammar) -> None:
    words = automaton(grammar)._words
    narrowed, compiled = _table(grammar, tuple(words)), _compiled(grammar, tuple(words))
    waiting, seen = [(narrowed.start, compiled.start)], set[tuple[int, int]]()
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        assert (pair[0] in narrowed.final) == (pair[1] in compiled.final)
        (ids, behind), (others, led) = narrowed.rows[pair[0]], compiled.rows[pair[1]]
        assert ids.tolist() == others.tolist()
        waiting += zip(behind.tolist(), led.tolist(), strict=True)


FORWARD, LEFT, RIGHT = (ActionKind.FORWARD, ActionKind.TURN_LEFT, ActionKind.TURN_RIGHT)
F, L1, L2, L3, R2, R3 = (MOTIONS[place] for place in (2, 3, 4, 5, 7, 8))
BLOCKED, STUCK = Blocked(F), Blocked(L2)


@pytest.mark.parametrize(
    ("done", "lacked"),
    [
        ((), ()),
        ((L2, R2), ()),
        ((F, L2, R2, L2), (LEFT, RIGHT)),
        ((L1, L1, R2, L1), (LEFT, RIGHT)),
        ((L1, L1, R2), ()),
        ((L2, R2, R2, L2), ()),
        ((L2,) * 17, ()),
        ((L2,) * 18, (LEFT, RIGHT)),
        ((F, *(L2,) * 18, BLOCKED), (FORWARD,)),
        ((L2, STUCK, R2, Blocked(R2)), (LEFT, RIGHT)),
        ((L2, Blocked(R2), L2, Blocked(R2)), (LEFT, RIGHT)),
        ((L2, Blocked(R2), L2), ()),
        ((BLOCKED, R2), (FORWARD, LEFT)),
        ((L2, R2, BLOCKED, L2), (FORWARD, RIGHT)),
        ((BLOCKED, L2, L1), (LEFT, RIGHT)),
        ((BLOCKED, L2, L2, F), ()),
        ((BLOCKED, L2, L2, BLOCKED), (FORWARD, RIGHT)),
        ((BLOCKED, STUCK, R2), (FORWARD, LEFT)),
        ((BLOCKED, L1, STUCK, R3), (FORWARD, LEFT)),
        ((BLOCKED, L1, STUCK), (LEFT, RIGHT)),
        ((BLOCKED, R2, Blocked(R2), BLOCKED), (FORWARD, RIGHT)),
        ((BLOCKED, R2, STUCK), (FORWARD, LEFT)),
        ((BLOCKED, STUCK, R3), (LEFT, RIGHT)),
        ((F, BLOCKED), (FORWARD,)),
        ((L2, R2, L2, BLOCKED), (FORWARD,)),
        ((L2, R2, STUCK), (LEFT,)),
    ],
)
@pytest.mark.parametrize("order", ResponseOrder)
def test_what_leads_nowhere_is_no_action(
    order: ResponseOrder, done: tuple[Past, ...], lacked: tuple[ActionKind, ...]
) -> None:
    assert in_vain(done) == set(lacked)
    found = grammar_for(compose("find it", done, order, memory=("Seen: here 1/8",)))
    assert set(actions_of(found)) == {action for action in ACTIONS if action.kind not in lacked}
    known = automaton(found)
    for action in ACTIONS:
        text = format_answer("I see it.", action, order)
        state = known.after(TOKENIZER(text, add_special_tokens=False)["input_ids"], PLENTY)
        assert (state is None) == (action.kind in lacked)
    plain = grammar_for(compose("find it", done, order))
    assert plain.form_1 and plain.lacks == ("TURN" if set(lacked) == set(TURNS) else "")


@given(st.data())
def test_behind_a_bump_a_robot_goes_ahead_soon_and_another_way(data: st.DataObject) -> None:
    done: list[Past] = [*data.draw(st.lists(st.sampled_from(MOTIONS), max_size=6)), BLOCKED]
    turned = 0.0
    for _ in range(3):
        allowed = [action for action in MOTIONS if action.kind not in in_vain(recent(done))]
        done.append(data.draw(st.sampled_from(allowed)))
        turned += done[-1].radians
        if done[-1].kind is FORWARD:
            break
    else:
        assert in_vain(recent(done)) == set(TURNS)
    assert abs(math.degrees(turned)) > DETOUR_DEGREES - 1


@pytest.mark.parametrize("order", ResponseOrder)
@pytest.mark.parametrize(
    ("done", "memory", "over"),
    [
        ((*[L3] * 12, F, *[L3] * 4), ("Seen: here 8/8",), True),
        ((*[L3] * 12, F, *[L3] * 4), ("Seen: here 8/8, left 2 m 8/8", "Doors: left 2 m passed"), True),
        ((*[L3] * 12, F, *[L3] * 3), ("Seen: here 8/8",), False),
        ((*[L3] * 12, F, *[L3] * 4), ("Seen: here 7/8",), False),
        ((*[L3] * 12, F, *[L3] * 4), ("Seen: here 8/8, left 2 m 3/8",), False),
        ((*[L3] * 12, F, *[L3] * 4), ("Seen: here 8/8", "Doors: left 2 m passed, left 3 m"), False),
        ((*[L3] * 12, F, *[L3] * 4), ("Seen: here 8/8", "Last seen: left 1 m"), False),
        ((*[L3] * 12, F, *[L3] * 4), (), False),
    ],
)
def test_a_search_that_is_over_leaves_only_ends(
    order: ResponseOrder, done: tuple[Past, ...], memory: tuple[str, ...], over: bool
) -> None:
    found = actions_of(grammar_for(compose("find it", done, order, memory=memory)))
    assert (found == (STOP, NOT_HERE)) == over
    assert any(action.kind.moves for action in found) != over


@pytest.mark.parametrize("order", ResponseOrder)
@pytest.mark.parametrize("done", [(F, BLOCKED), (*[L3] * 12, F, *[L3] * 4)])
@pytest.mark.parametrize("memory", [("Seen: here 8/8",), ("Seen: here 8/8, left 2 m 3/8", "Doors: left 3 m")])
def test_a_search_that_walks_in_circles_says_not_here(
    order: ResponseOrder, done: tuple[Past, ...], memory: tuple[str, ...]
) -> None:
    circles = (*memory, "Searched: nothing new in 24 frames")
    assert actions_of(grammar_for(compose("find it", done, order, memory=memory))) != (NOT_HERE,)
    assert actions_of(grammar_for(compose("find it", done, order, memory=circles))) == (NOT_HERE,)


@pytest.mark.parametrize("order", ResponseOrder)
def test_a_model_of_form_1_is_not_offered_not_here(order: ResponseOrder) -> None:
    text = format_answer("It is nowhere.", NOT_HERE, order)
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    for memory, offered in (((), False), (("Seen: here 8/8",), True)):
        known = automaton(grammar_for(compose("find it", (), order, memory=memory)))
        assert (known.after(tokens, PLENTY) is not None) == offered


def thinking(opened: bool) -> Thinking:
    opens, closes = THINKS.convert_tokens_to_ids([OPENS, CLOSES])
    return Thinking(opens, closes, opened)


@lru_cache
def thinks(grammar: Grammar, opened: bool) -> Automaton:
    """Return a grammar behind thinking, over the tokens of the tiny models that think."""
    return Grammars(THINKS, len(THINKS)).of(
        grammar, (END, THINKS.convert_tokens_to_ids("<|endoftext|>")), thinking(opened)
    )


KINDS = [(grammar, opened) for grammar in (*BOTH, Grammar.REASON_FIRST_NO_FORWARD_LEFT) for opened in (False, True)]


@settings(max_examples=60)
@given(data=st.data())
def test_every_answer_behind_thinking_ends_readable_in_time(data: st.DataObject) -> None:
    """Whatever is thought, and wherever the answer is taken up again."""
    grammar, opened = data.draw(st.sampled_from(KINDS))
    known, plain, marks = thinks(grammar, opened), Grammars(THINKS, len(THINKS)).of(grammar, (END,)), thinking(opened)
    assert known.least_tokens == plain.least_tokens + opened
    limit = data.draw(st.integers(known.least_tokens, 60))
    dice = np.random.default_rng(data.draw(st.integers(0, 999)))
    likely = data.draw(st.sampled_from([0.0, 0.3]))
    state: State | None = known.start(limit)
    tokens, places = list[int](), list[State | None]()
    while state is not None and len(tokens) < limit:
        mask = known.allowed(state).mask
        token = int(dice.choice(np.flatnonzero(mask)))
        for mark in (marks.opens, marks.closes):
            token = mark if mask[mark] and dice.random() < likely else token
        tokens.append(token)
        places.append(state)
        state = known.next(state, token)
    assert places == [known.after(tokens[:count], limit) for count in range(len(tokens))]
    began = opened or tokens[0] == marks.opens
    ends = [place for place, token in enumerate(tokens) if token in known._ends]
    assert ends in ([], [len(tokens) - 1]), "thinking never ends the answer"
    assert not began or marks.closes in tokens
    last = max((place for place, token in enumerate(tokens) if token == marks.closes), default=-1)
    answer = THINKS.decode(tokens[last + 1 :], skip_special_tokens=True)
    said = answer.removeprefix("\n") if began and grammar.action_first else answer
    assert re.fullmatch(expression(grammar), said), "and nothing but thinking stands before it"
    parsed = parse_answer(begun(marks) + reader(THINKS)(tokens))
    assert parsed.action in actions_of(grammar) and not parsed.problem
    if began:
        closed = places[last]
        assert closed is not None and closed.left > plain.least_tokens
        for place in places[:last]:
            assert place is not None
            found = known.allowed(place)
            assert (found.only == marks.closes) == (place.left == plain.least_tokens + 1)


def test_no_end_token_stands_behind_thinking() -> None:
    """A tokenizer may spell text with one, newlines too: an answer would be over before it began."""
    words = (b"", b"", b"\n", b"\n\n", *(bytes([byte]) for byte in range(256)))
    known = ThinkingAutomaton(Grammar.ACTION_FIRST, words, (0, 3), Thinking(1, 1, opened=True))
    state = known.after([1], 60)
    assert state is not None and known.allowed(state).mask[2] and not known.allowed(state).mask[[0, 3]].any()
    assert known.next(state, 3) is None


def test_what_is_settled_is_named() -> None:
    known = automaton(Grammar.REASON_FIRST)
    tokens = TOKENIZER("A ball.\nAction: turn left medium", add_special_tokens=False)["input_ids"]
    end = known.after(tokens, 100)
    assert end is not None and known.allowed(end).only == END
    assert Constraint(known, end).ending() == [END]
    newline = TOKENIZER("\n", add_special_tokens=False)["input_ids"]
    behind = known.after(newline, 100)
    assert behind is not None and known.allowed(behind).only is None, "the mark may be cut into tokens in several ways"
    spelled = known.allowed(behind).spelled
    assert spelled is not None and "Action:".startswith(TOKENIZER.decode([spelled]))
    assert Constraint(known, behind).ending() == []
    first = known.start(100)
    assert known.allowed(first).spelled is None
    # A tree of two branches: the one whose text is settled gets longer, the other does not.
    (word,) = TOKENIZER("a", add_special_tokens=False)["input_ids"]
    more, parents = Constraint(known, first).spelled([word, *newline], [ROOT, ROOT], 8)
    assert TOKENIZER.decode(more).startswith("Action:") and parents[0] == 1 and word not in more
    assert len(Constraint(known, first).spelled([word, *newline], [ROOT, ROOT], 1)[0]) == 1


def test_what_cannot_be_constrained_is_refused(target: Vlm) -> None:
    with pytest.raises(ValueError, match="byte-level"):
        Grammars(object(), 400)
    with pytest.raises(ValueError, match="spell no answer"):
        Automaton(Grammar.REASON_FIRST, (b"", b"a", b"\n"), (0,))
    with pytest.raises(ValueError, match="FREE"):
        expression(Grammar.FREE)
