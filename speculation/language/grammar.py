"""What an answer must look like so that it can be read, as masks over tokens (numpy and outlines-core, no torch).

A constrained answer is one line of reasons and one line with the action, in either order: printable text of at most
MAX_REASON_CHARS characters in which no 'Action:' stands, and the text of one of `prompts.ACTIONS`. Whatever tokens
spell such an answer may be chosen; an end token only where the answer is complete.

A model with a list of objects names the first object of an answer once: a small one copies its name where it goes on to
another object, most of all behind the words UNSAID, which it is not left to say.

A greedy model that sees the same again does the same again. So what a prompt lists as done leaves actions out, where
they would be repeated for ever: all turns, after turns that lead back; what was blocked, and the way back to it; all
motions, where the memory of a search leaves nothing to look at and the robot has turned twice around; all but 'not
here', where a search has shown nothing new for long.

outlines-core makes a finite automaton over tokens of a regular expression over their bytes (Willard, Louf, Efficient
Guided Generation for Large Language Models, arXiv 2307.09702). Its states are explicit, so every node of a token tree
can have one. The two limits are counted beside it, since an automaton that counted would have hundreds of times as many
states: the characters that the reasons may still have, and the tokens that may still come. Where these run short, only
tokens are left from which the rest suffices to complete the answer.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from outlines_core import Index, Vocabulary

from speculation.distributions import Logits
from speculation.language.prompts import (
    ACTION_MARK,
    ACTIONS,
    LONGEST_SEARCH,
    MOTIONS,
    TURNS,
    ActionKind,
    NavigationAction,
    ResponseOrder,
    in_vain,
    listed,
    offers_not_here,
    response_order,
)
from speculation.language.prompts import Vocabulary as Objects
from speculation.language.search_memory import all_seen, searched_long
from speculation.wire import ROOT, UNPRINTABLE, Grammar, Thinking

MAX_REASON_CHARS = 400
"""The longest reasons; the embedded pair's have about 60 characters."""
KEPT_MASKS = 256
"""Masks that an automaton keeps; with a vocabulary of 150,000 tokens they take 40 MB."""
CONSTRAINED: Final = "constrained"
FREE: Final = "free"
"""How a robot's answers may be: always readable, or whatever the target says."""
UNSAID: Final = b" Next"
"""How "Next to it I notice ..." begins. In 60 held-out rooms the embedded pair named something in view behind it in 22
of 42 answers, the same object once more in 8; its other words for another object are right in 22 of 28."""
FEW = 64
"""Tokens that are compared, at most, to find out whether they begin one text."""

SPELLS_NONE = "these tokens spell no answer of grammar {}; take answers free"

_END: Final = b"\x00"
"""No answer holds it."""

Mask = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int32]
FAR = 1 << 20
"""Steps that stand for a place from which no answer can be completed."""
_LACKED: Final = {
    "": frozenset[ActionKind](),
    "TURN": frozenset(TURNS),
    "LEFT": frozenset({ActionKind.TURN_LEFT}),
    "RIGHT": frozenset({ActionKind.TURN_RIGHT}),
    "FORWARD": frozenset({ActionKind.FORWARD}),
    "MOTION": frozenset(action.kind for action in MOTIONS),
    "MOTION_STOP": frozenset({*(action.kind for action in MOTIONS), ActionKind.STOP}),
    "FORWARD_LEFT": frozenset({ActionKind.FORWARD, ActionKind.TURN_LEFT}),
    "FORWARD_RIGHT": frozenset({ActionKind.FORWARD, ActionKind.TURN_RIGHT}),
}
"""Kinds that are no actions, by `Grammar.lacks`."""


def grammar_for(prompt: str) -> Grammar:
    """Return the grammar of the answer that a prompt of `prompts.compose` asks for."""
    action_first, done = response_order(prompt) is ResponseOrder.ACTION_FIRST, listed(prompt)
    known = {
        _LACKED[one.lacks]: one for one in grammars_for(offers_not_here(prompt)) if one.action_first == action_first
    }
    turned = sum(abs(entry.radians) for entry in done if isinstance(entry, NavigationAction))
    over = all_seen(prompt) and round(math.degrees(turned)) >= LONGEST_SEARCH
    # What so many frames did not show is not reached in this one.
    lacked = _LACKED["MOTION_STOP"] if searched_long(prompt) else _LACKED["MOTION"] if over else in_vain(done)
    return known.get(lacked, known[frozenset()])


def grammars_for(not_here: bool) -> tuple[Grammar, ...]:
    """Return the grammars of both orders, with or without the action `not here`.

    Prompts without it list no blocked actions, so that there nothing but all turns can be in vain.
    """
    return tuple(one for one in Grammar if one is not Grammar.FREE and one.form_1 != not_here)


def grammars_of(vocabulary: Objects | None) -> tuple[Grammar, ...]:
    """Return the grammars that a model's prompts ask for as a rule, for compiling them ahead."""
    return grammars_for(vocabulary is None or vocabulary.form > 1)


def actions_of(grammar: Grammar) -> tuple[NavigationAction, ...]:
    """Return the actions that an answer of a grammar may name."""
    lacked = _LACKED[grammar.lacks] | ({ActionKind.NOT_HERE} if grammar.form_1 else set())
    return tuple(action for action in ACTIONS if action.kind not in lacked)


def expression(grammar: Grammar) -> str:
    """Return the regular expression of an answer, but for the length of its reasons. Raises ValueError for FREE."""
    if grammar is Grammar.FREE:
        raise ValueError("grammar FREE takes any answer; give REASON_FIRST or ACTION_FIRST")
    action = f"{ACTION_MARK} (?:{'|'.join(action.text for action in actions_of(grammar))})"
    return rf"{action}\n{_reasons()}" if grammar.action_first else rf"{_reasons()}\n{action}"


def _reasons() -> str:
    """Return the expression of printable text without the mark. No letter of the mark may stand in it twice."""
    first = ACTION_MARK[0]
    begun = ""
    for letter in reversed(ACTION_MARK[1:-1]):
        begun = f"(?:{letter}{begun})?"
    begun = f"(?:{first}{begun})*"
    left = "|".join(
        f"{ACTION_MARK[:end]}[^{UNPRINTABLE}{first}{letter}]" for end, letter in enumerate(ACTION_MARK[1:], start=1)
    )
    return f"(?:[^{UNPRINTABLE}{first}]|{begun}(?:{left}))*{begun}"


class State(NamedTuple):
    """Where in an automaton an answer stands."""

    place: int
    reasoning: bool
    """Whether the next characters are reasons."""
    room: int
    """Characters that the reasons may still have."""
    left: int
    """Tokens that may still come."""
    named: bytes = b""
    """The first object that the answer names; empty until it does."""
    tail: bytes = b""
    """The end of the answer so far, in which a name may have begun."""


class Allowed(NamedTuple):
    """What may follow a state."""

    mask: Mask
    """[vocabulary], read-only."""
    only: int | None
    """The token, where no other is allowed."""
    spelled: int | None
    """The longest allowed token, where all others spell the beginning of it: the text is settled so far, and only how
    it is cut into tokens is open. `only` is one of these."""


class Automaton:
    """One grammar over one vocabulary. Nothing in it changes but its cache of masks, so threads may share it."""

    _texts: re.Pattern[bytes] | None = None
    """UNSAID and the names of objects; None where an answer may name objects as it likes."""
    _longest_text = 0

    def __init__(
        self, name: Grammar, words: Sequence[bytes], ends: Sequence[int], objects: Sequence[bytes] = ()
    ) -> None:
        """`words` are the bytes of every token, empty for those that are no text; `ends` the tokens that end an answer,
        which are none either; `objects` the names that a model knows, of which an answer has the first one once.

        Raises ValueError where the tokens cannot spell an answer.
        """
        self.name = name
        words = [b"" if token in ends else word for token, word in enumerate(words)]
        self._words = words
        self._ends = tuple(ends)
        self._start, self._final, self._rows = _table(name, tuple(words))
        newline = [word.find(b"\n") for word in words]
        before = [_characters(word if cut < 0 else word[:cut]) for word, cut in zip(words, newline, strict=True)]
        behind = [0 if cut < 0 else _characters(word[cut + 1 :]) for word, cut in zip(words, newline, strict=True)]
        self._breaks: Mask = np.array([cut >= 0 for cut in newline])
        of_open = np.array(before, dtype=np.int32)
        of_closed = np.array(behind if name.action_first else [0] * len(words), dtype=np.int32)
        self._costs = of_closed, of_open
        """Characters of the reasons that each token spells, where the state is not, and is, in them."""
        self._longest = int(max(of_open.max(), of_closed.max()))
        self._distance = distances(self._final, self._free_steps())
        self._farthest = int(self._distance[self._distance < FAR].max())
        self.least_tokens = int(self._distance[self._start])
        """The shortest answer, its end token not counted."""
        if self.least_tokens >= FAR:
            raise ValueError(SPELLS_NONE.format(name.name))
        self._known: dict[tuple[int, int, int, bytes, bytes], Allowed] = {}
        if objects:
            texts = (UNSAID, *objects)
            self._texts, self._longest_text = re.compile(b"|".join(map(re.escape, texts))), max(map(len, texts))

    def start(self, max_tokens: int) -> State:
        """Return the state of an empty answer of at most so many tokens."""
        return State(self._start, not self.name.action_first, MAX_REASON_CHARS, max_tokens)

    def after(self, tokens: Sequence[int], max_tokens: int) -> State | None:
        """Return the state behind these tokens; None where they begin no answer. End tokens have none behind them."""
        state: State | None = self.start(max_tokens)
        for token in tokens:
            if state is None:
                return None
            state = self.next(state, token)
        return state

    def next(self, state: State, token: int) -> State | None:
        """Return the state behind one token more; None where no answer goes on so, however many tokens it may have."""
        ids, places = self._rows[state.place]
        column = int(ids.searchsorted(np.int32(token)))  # of another type it would copy all ids
        if column == len(ids) or ids[column] != token:
            return None
        room = state.room - int(self._costs[state.reasoning][token])
        if room < 0:
            return None
        named = self._named(state, token)
        if named is None:
            return None
        reasoning = state.reasoning != bool(self._breaks[token])
        tail = b"" if self._texts is None else (state.tail + self._words[token])[-self._longest_text :]
        return State(int(places[column]), reasoning, room, state.left - 1, named, tail)

    def allowed(self, state: State) -> Allowed:
        """Return what may follow a state: tokens behind which the answer can be completed in the tokens that are left.

        Where too few are left for that, those that complete it soonest.
        """
        least = int(self._distance[state.place])
        left = min(max(state.left, least), self._farthest + 1)
        key = state.place, min(state.room, self._longest), left, state.named, self._begun(state)
        found = self._known.get(key)
        if found is None:
            found = self._find(state, left)
            while len(self._known) >= KEPT_MASKS:
                self._known.pop(next(iter(self._known)), None)
            self._known[key] = found
        return found

    def _find(self, state: State, left: int) -> Allowed:
        ids, places = self._rows[state.place]
        fits = (self._costs[state.reasoning][ids] <= state.room) & (self._distance[places] < left)
        if self._texts is not None:
            fits &= np.array([self._named(state, token) is not None for token in ids.tolist()], dtype=np.bool_)
        listed: list[int] = ids[fits].tolist() if np.count_nonzero(fits) <= FEW else []
        mask = np.zeros(len(self._words), dtype=np.bool_)
        mask[ids[fits]] = True
        spelled = self._longest_of(listed)
        if state.place in self._final:
            # Where only an end can follow it does not matter which.
            ends = self._ends if fits.any() else self._ends[:1]
            mask[list(ends)] = True
            spelled = ends[0] if not fits.any() else None
        mask.flags.writeable = False
        only = spelled if np.count_nonzero(mask) == 1 else None
        return Allowed(mask, only, spelled)

    def _named(self, state: State, token: int) -> bytes | None:
        """Return the first object that is named behind one token more; None where the token names it once more, or
        says what is not said."""
        named = state.named
        if self._texts is None:
            return named
        for found in self._texts.finditer(state.tail + self._words[token]):
            if found.end() > len(state.tail):
                if found[0] in (named, UNSAID):
                    return None
                named = named or found[0]
        return named

    def _begun(self, state: State) -> bytes:
        """Return the longest end of the answer so far that may become what may not follow."""
        unsaid = () if self._texts is None else (state.named, UNSAID)
        begun = (text[:end] for text in unsaid for end in range(1, len(text)) if state.tail.endswith(text[:end]))
        return max(begun, key=len, default=b"")

    def _longest_of(self, tokens: Sequence[int]) -> int | None:
        words = self._words
        longest = max(tokens, key=lambda token: len(words[token]), default=None)
        if longest is None or not all(words[longest].startswith(words[token]) for token in tokens):
            return None
        return longest

    def _free_steps(self) -> list[set[int]]:
        """Return where each place may lead without characters of reasons, whether it stands in them or not.

        An answer is completed so: going on without further reasons.
        """
        behind: list[set[int]] = [set() for _ in self._rows]
        waiting, seen = [(self._start, not self.name.action_first)], set[tuple[int, bool]]()
        while waiting:
            place, reasoning = waiting.pop()
            if (place, reasoning) in seen:
                continue
            seen.add((place, reasoning))
            ids, places = self._rows[place]
            breaks = self._breaks[ids]
            behind[place].update(np.unique(places[self._costs[reasoning][ids] == 0]).tolist())
            for turns in (False, True):
                waiting += [(each, reasoning != turns) for each in np.unique(places[breaks == turns]).tolist()]
        return behind


def distances(final: Iterable[int], steps: Sequence[Iterable[int]]) -> _Ints:
    """Return how many steps every place is away from a final one, FAR at most; `steps` are the places behind each."""
    before: list[list[int]] = [[] for _ in steps]
    for place, behind in enumerate(steps):
        for each in behind:
            before[each].append(place)
    distance = np.full(len(steps), FAR, dtype=np.int32)
    reached, far = list(final), 0
    while reached:
        distance[reached] = far
        far += 1
        reached = [place for place in {each for behind in reached for each in before[behind]} if distance[place] > far]
    return distance


class ThinkingAutomaton(Automaton):
    """A grammar whose answers stand behind what the model thinks first: any tokens but those that end an answer.

    The thinking is closed in time: where no more than the mark that closes it and the shortest answer fit, that mark is
    the only token. Behind it may stand one token of newlines, as models write them, where it begins no answer.
    """

    def __init__(self, name: Grammar, words: Sequence[bytes], ends: Sequence[int], thinking: Thinking) -> None:
        """Raises as `Automaton` does."""
        super().__init__(name, words, ends)
        self._marks, self._shortest = thinking, self.least_tokens
        first = len(self._rows)
        self._opening, self._thinking, self._behind = first, first + 1, first + 2
        """Places where thinking may begin, where it goes on, and right behind it."""
        closing = self._shortest + 1
        self._distance = np.append(self._distance, np.array([self._shortest, closing, self._shortest], dtype=np.int32))
        self._farthest = max(self._farthest, closing)
        answer = self._rows[self._start][0]
        self._gaps = [
            token for token, word in enumerate(self._words) if word and not word.strip(b"\n") and token not in answer
        ]
        if thinking.opened:
            self.least_tokens = closing

    def start(self, max_tokens: int) -> State:
        place = self._thinking if self._marks.opened else self._opening
        return super().start(max_tokens)._replace(place=place)

    def next(self, state: State, token: int) -> State | None:
        place = state.place
        behind = None
        if place == self._thinking and token not in self._ends:
            behind = self._behind if token == self._marks.closes else self._thinking
        elif place == self._opening and token == self._marks.opens:
            behind = self._thinking
        elif place == self._behind and token in self._gaps:
            behind = self._start
        if behind is not None:
            return state._replace(place=behind, left=state.left - 1)
        if place == self._thinking:
            return None
        return super().next(self._in_answer(state), token)

    def _find(self, state: State, left: int) -> Allowed:
        closing = self._shortest + 1
        if state.place == self._thinking:
            mask = np.full(len(self._words), left > closing)
            mask[list(self._ends)] = False
            mask[self._marks.closes] = True
            mask.flags.writeable = False
            only = self._marks.closes if left <= closing else None
            return Allowed(mask, only, only)
        found = super()._find(self._in_answer(state), left)
        more = {self._opening: [self._marks.opens], self._behind: self._gaps}.get(state.place, [])
        if not more or left <= (closing if state.place == self._opening else self._shortest):
            return found
        mask = found.mask.copy()
        mask[more] = True
        mask.flags.writeable = False
        return Allowed(mask, None, None)

    def _in_answer(self, state: State) -> State:
        """Return the state as that of the grammar alone, which knows no thinking."""
        return state._replace(place=self._start) if state.place in (self._opening, self._behind) else state


class Table(NamedTuple):
    """An automaton as arrays: where it starts, where an answer may be complete, and for every place its tokens,
    ascending, and where they lead."""

    start: int
    final: frozenset[int]
    rows: Sequence[tuple[_Ints, _Ints]]


def _table(name: Grammar, words: tuple[bytes, ...]) -> Table:
    """Return the table of a grammar. Raises ValueError where the tokens cannot spell an answer."""
    whole = next(
        one for one in grammars_for(not name.form_1) if one.action_first == name.action_first and not one.lacks
    )
    table = _compiled(whole, words)
    return table if name is whole else _narrowed(table, name, words)


@lru_cache(maxsize=8)
def _compiled(name: Grammar, words: tuple[bytes, ...]) -> Table:
    try:
        return compiled(expression(name), words)
    except ValueError:
        raise ValueError(SPELLS_NONE.format(name.name)) from None


def compiled(text: str, words: Sequence[bytes]) -> Table:
    """Turn the library's automaton of a regular expression over these words into arrays.

    For the library an answer begins and ends with a character that no answer holds. Without the one behind it, where
    an answer may be complete, the library takes no token that ends inside a character; without the one before it, it
    also follows answers that might begin further on, which for a counted string takes for ever. Raises ValueError where
    the words spell no text of the expression.
    """
    known: dict[bytes, list[int]] = {}
    for token, word in enumerate(words):
        if word and _END not in word:
            known.setdefault(word, []).append(token)
    nothing, end = len(words), len(words) + 1
    index = Index(f"\\x00(?:{text})\\x00", Vocabulary(nothing, known | {_END: [end]}))
    found: Mapping[int, Mapping[int, int]] = index.get_transitions()
    ended = set(index.get_final_states())
    outside = index.get_initial_state()
    start = found[outside][end]
    numbers = {start, *found}.union(*(row.values() for row in found.values())) - ended - {outside}
    place = {number: count for count, number in enumerate(sorted(numbers))}
    final = frozenset(place[number] for number in numbers if end in found.get(number, {}))
    rows: list[tuple[_Ints, _Ints]] = [(np.zeros(0, np.int32), np.zeros(0, np.int32))] * len(place)
    for number in numbers & found.keys():
        row = {token: behind for token, behind in found[number].items() if token < nothing}
        ids = np.fromiter(row, dtype=np.int32, count=len(row))
        behind = np.fromiter((place[each] for each in row.values()), dtype=np.int32, count=len(row))
        order = np.argsort(ids)
        rows[place[number]] = ids[order], behind[order]
    return Table(place[start], final, rows)


def _narrowed(table: Table, name: Grammar, words: tuple[bytes, ...]) -> Table:
    """Return the part of a table whose answers name an action of `name`, without compiling the whole once more.

    Ends of action lines ('small') share their places. So a place of a line is split by the text that the line has
    there; all others stay as they are.
    """
    lines = [f"{ACTION_MARK} {action.text}".encode() for action in actions_of(name)]
    rows, final = list(table.rows), set(table.final)
    split: dict[tuple[int, bytes], int] = {}
    waiting: list[tuple[int, bytes, int]] = []

    def placed(place: int, line: bytes) -> int:
        """Return the place of a line's text; negative where no action goes on so."""
        if b"\n" in line:
            return place if line.partition(b"\n")[0] in lines else -1
        if not any(each.startswith(line) for each in lines):
            return -1
        if (place, line) not in split:
            split[place, line] = len(rows)
            waiting.append((place, line, len(rows)))
            rows.append(table.rows[place])
            final.update({len(rows) - 1} if place in table.final else ())
        return split[place, line]

    def kept(ids: _Ints, behind: Sequence[int]) -> tuple[_Ints, _Ints]:
        led = np.array(behind, dtype=np.int32)
        return ids[led >= 0], led[led >= 0]

    if name.action_first:
        start = placed(table.start, b"")
    else:
        start, breaks = table.start, np.array([b"\n" in word for word in words])
        for place, (ids, places) in enumerate(table.rows):
            behind = places.copy()
            for column in np.flatnonzero(breaks[ids]):
                behind[column] = placed(int(places[column]), words[ids[column]].partition(b"\n")[2])
            rows[place] = kept(ids, behind.tolist())
    for place, line, number in waiting:  # which grows meanwhile
        ids, places = table.rows[place]
        rows[number] = kept(
            ids, [placed(int(led), line + words[token]) for token, led in zip(ids, places, strict=True)]
        )
    return Table(start, frozenset(final), rows)


@dataclass(frozen=True)
class Constraint:
    """An automaton, and where in it an answer stands."""

    automaton: Automaton
    state: State

    def states(self, tokens: Sequence[int], parents: Sequence[int]) -> list[State | None]:
        """Return the states behind the root and behind every node of a tree behind it, see `acceptance.walk_rows`.

        None behind tokens with which no answer goes on.
        """
        states: list[State | None] = [self.state]
        for token, parent in zip(tokens, parents, strict=True):
            above = states[parent + 1]
            states.append(None if above is None else self.automaton.next(above, token))
        return states

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> list[Mask | None]:
        """Return what may follow the root and every node of a tree [vocabulary]; None where nothing is asked for:
        behind tokens with which no answer goes on."""
        states = self.states(tokens, parents)
        return [None if state is None else self.automaton.allowed(state).mask for state in states]

    def spelled(self, tokens: Sequence[int], parents: Sequence[int], most: int) -> tuple[list[int], list[int]]:
        """Return at most `most` tokens, and their parents, that lengthen a tree where its text is settled.

        Behind the root or a leaf stands what `Allowed.spelled` names, for as long as it names something.
        """
        states, above = self.states(tokens, parents), list(parents)
        inner, found = set(parents), list[int]()
        for leaf in (node for node in range(ROOT, len(tokens)) if node not in inner):
            node, state = leaf, states[leaf + 1]
            while (
                state is not None and len(found) < most and (token := self.automaton.allowed(state).spelled) is not None
            ):
                found.append(token)
                above.append(node)
                node, state = len(above) - 1, self.automaton.next(state, token)
        return found, above[len(parents) :]

    def ending(self) -> list[int]:
        """Return the tokens that end the answer, where no others are allowed; none where there is a choice."""
        state: State | None = self.state
        found: list[int] = []
        while state is not None and (token := self.automaton.allowed(state).only) is not None:
            found.append(token)
            state = self.automaton.next(state, token)
        return found if state is None else []


def masked(logits: Logits, masks: Sequence[Mask | None], ids: npt.NDArray[np.int64] | None = None) -> Logits:
    """Return rows of logits [n, vocabulary] with -inf for what their masks leave out; rows without one as they are.

    `ids` are the tokens of the columns, where these are no whole vocabulary.
    """
    rows = np.array(logits)
    for row, mask in zip(rows, masks, strict=True):
        if mask is not None:
            row[~(mask if ids is None else mask[ids])] = -np.inf
    return rows


class Grammars:
    """The grammars of one model's answers, each compiled when it is first asked for."""

    def __init__(self, tokenizer: Any, vocabulary: int, objects: Objects | None = None) -> None:
        """`vocabulary` is len(tokenizer), `objects` the model's list, None for one that names things as it likes.

        Raises ValueError, in a sentence, for a tokenizer that is not byte-level.
        """
        self.words = _words(tokenizer, vocabulary)
        """The bytes of every token; none for one that is no text."""
        pairs = () if objects is None else product(objects.colours, objects.classes)
        self._objects = tuple(" ".join(pair).encode() for pair in pairs)

    def of(self, name: Grammar, ends: Sequence[int], thinking: Thinking | None = None) -> Automaton:
        """Return the automaton of a grammar whose answers end with one of these tokens, and begin behind `thinking`.

        About 6 s for a new one over 150,000 tokens, milliseconds over 500. Raises ValueError as that does.
        """
        with _compiling:
            return _automaton(name, self.words, tuple(ends), thinking, self._objects)


_compiling = threading.Lock()


@lru_cache(maxsize=64)
def _automaton(
    name: Grammar,
    words: tuple[bytes, ...],
    ends: tuple[int, ...],
    thinking: Thinking | None,
    objects: tuple[bytes, ...],
) -> Automaton:
    # No model that thinks has a list of objects.
    return Automaton(name, words, ends, objects) if thinking is None else ThinkingAutomaton(name, words, ends, thinking)


def _words(tokenizer: Any, vocabulary: int) -> tuple[bytes, ...]:
    """Return the bytes of every token; none for tokens that the tokenizer has besides its text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = {} if backend is None else json.loads(backend.to_str()).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        raise ValueError(
            f"constrained answers need a byte-level tokenizer, such as Qwen2's; this one decodes as "
            f"{decoder.get('type', 'unknown')!r}: take answers free"
        )
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    added = tokenizer.get_added_vocab()
    words = [b""] * vocabulary
    for text, token in tokenizer.get_vocab().items():
        if text not in added and token < vocabulary and all(letter in letters for letter in text):
            words[token] = bytes(letters[letter] for letter in text)
    return tuple(words)


def _byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte in byte-level vocabularies, as in GPT-2's: printable ones for
    themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _characters(text: bytes) -> int:
    """Return how many characters begin in a piece of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in text)
