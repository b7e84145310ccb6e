"""Understands instructions: any wording -> the object that is meant, and the sentence that a model is asked.

Words are looked up in small tables; nothing is guessed. An instruction that denies or excludes anything is refused, so
that what is denied is never looked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from speculation.language import words
from speculation.language.prompts import MAX_INSTRUCTION_CHARS, SEARCH_FORM, Vocabulary

MISSPELT_LETTERS, FOREIGN_LETTERS = 4, 6
"""Names of so many letters are recognised with one wrong letter. Foreign ones are near too many words of other
languages: they must be longer and begin right."""
ADJECTIVES = 2
"""Unknown words that may stand between a colour and its object: 'the red wooden chair'."""
GERMAN_ENDINGS = ("", "e", "en", "er", "es", "em")


@dataclass(frozen=True)
class Understood:
    """What an instruction asks for. An empty colour or class stands for any; not both are empty."""

    colour: str
    object_class: str

    @property
    def text(self) -> str:
        """The object in words: 'the silver bottle', 'a bottle', 'something red'."""
        if not self.object_class:
            return f"something {self.colour}"
        if self.colour:
            return f"the {self.colour} {self.object_class}"
        return f"{'an' if self.object_class[0] in 'aeiou' else 'a'} {self.object_class}"

    @property
    def instruction(self) -> str:
        """The sentence that a model with a list of objects is asked, whatever the wording was."""
        return f"find {self.text}"


def sentence_for(instruction: str, vocabulary: Vocabulary | None) -> str:
    """Return the sentence that a model is asked: what was understood, where it has a list of objects that it knows.

    Other models get the instruction itself. Raises ValueError for an instruction that is empty or longer than
    MAX_INSTRUCTION_CHARS, and as `understand`.
    """
    if not instruction.strip() or len(instruction) > MAX_INSTRUCTION_CHARS:
        raise ValueError(
            f"the instruction is empty or longer than {MAX_INSTRUCTION_CHARS} characters; say for example "
            "'find the silver bottle'"
        )
    return instruction if vocabulary is None else understand(instruction, vocabulary).instruction


def understand(instruction: str, vocabulary: Vocabulary) -> Understood:
    """Return what `instruction` asks for, of what a model knows.

    Raises ValueError, with the known words and an example, where nothing known or more than one object is named, where
    something is denied, where an object is named by its place beside another one, and for what the model's prompt form
    cannot express.
    """
    try:
        return _understand(instruction, vocabulary)
    except _Unclear as problem:
        example = f"find the {vocabulary.colours[-1]} {vocabulary.classes[0]}"
        known = f"known colours: {', '.join(vocabulary.colours)}; known objects: {', '.join(vocabulary.classes)}"
        raise ValueError(f"instruction {instruction!r} {problem}; say for example {example!r}; {known}") from None


def is_sentence(text: str) -> bool:
    """Return whether a text asks for something in a sentence, not by the bare name of an object."""
    return any(token.kind in (_Kind.VERB, _Kind.DENIAL) for token in _Lexicon.of(None).tokens(text))


def is_stop(text: str) -> bool:
    """Return whether a text only says that the robot is to stop: 'stop', 'Halt!', 'arrête-toi, s'il te plaît'."""
    return _plain_order(_words(text)) in _STOP_ORDERS


class _Unclear(Exception):
    """Why an instruction is refused: the rest of a sentence that begins with it."""


class _Kind(Enum):
    COLOUR = auto()
    CLASS = auto()
    UNKNOWN_NAME = auto()
    """The name of a colour or a class that the model does not know."""
    HEAD = auto()
    LINK = auto()
    VERB = auto()
    DENIAL = auto()
    RELATION = auto()
    JOINT = auto()
    COMMON = auto()
    """A sign, or a word that names nothing."""
    UNKNOWN = auto()


@dataclass(frozen=True)
class _Token:
    kind: _Kind
    value: str
    """The name in the vocabulary; else empty."""
    word: str
    """The word as it was written, without accents."""


_NAMES = (_Kind.COLOUR, _Kind.CLASS, _Kind.UNKNOWN_NAME)
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+|[.;!?¡¿。…,:()\[\]{}、–—\"«»“”„/|&+\n]|(?<=\s)-")
_ELISION = re.compile(r"(?<=\w{3})'(?=[^\W\d_])|(?<=\w)'(?=(?:t|d|s|m|ll|re|ve)\b)")
_JOINING_SIGNS = "/|&+"
_POLITE = frozenset(f"{words.POLITE} {words.INSISTENT}".split())


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case without accents, each ideograph and each sign as a word of its own."""
    plain = unicodedata.normalize("NFKD", re.sub("[’‘`´ʼ＇]", "'", text).casefold())
    plain = "".join(letter for letter in plain if unicodedata.category(letter) not in ("Mn", "Cf"))
    return _WORD.findall(_ELISION.sub("", plain))


def _plain_order(found: Iterable[str]) -> str:
    """Return the words of an order, joined, without signs, repetitions, and words that only insist or are polite."""
    return "_".join(dict.fromkeys(word for word in found if word.isalnum() and word not in _POLITE))


_STOP_ORDERS = frozenset(_plain_order(order.split("_")) for order in words.STOPS.split())


class _Lexicon:
    """What each word and each phrase is, for one list of objects."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._senses: dict[tuple[str, ...], tuple[_Kind, str]] = {}
        self._names: list[tuple[str, int, tuple[_Kind, str]]] = []
        """Names of one word, how many letters they must have to be recognised with one wrong, and what they are."""
        self._denials = words.MISSPELT_DENIALS.split()
        for kind, listed in (
            (_Kind.COMMON, f"{words.COMMON} {words.POLITE}"),
            (_Kind.UNKNOWN, words.LOOK_ALIKES),
            (_Kind.LINK, words.LINKS),
            (_Kind.HEAD, words.HEADS),
            (_Kind.VERB, words.VERBS),
            (_Kind.RELATION, words.RELATIONS),
            (_Kind.JOINT, words.JOINTS),
            (_Kind.DENIAL, words.DENIALS),
            (_Kind.COMMON, words.IDIOMS),
        ):
            for entry in listed.split():
                self._add(entry, kind)
        if vocabulary is not None:
            for entry in _written(words.OTHER_COLOURS):
                self._add_name(entry, _Kind.UNKNOWN_NAME, entry, FOREIGN_LETTERS)
            self._add_names(_Kind.CLASS, vocabulary.classes, words.CLASSES)
            self._add_names(_Kind.COLOUR, vocabulary.colours, words.COLOURS)
        self._longest = max(map(len, self._senses))

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, vocabulary: Vocabulary | None) -> _Lexicon:
        """Return the lexicon of a list of objects; without one it has no names."""
        return cls(vocabulary)

    def tokens(self, text: str) -> list[_Token]:
        """Return a text's words and phrases, the longest known phrase first. Raises _Unclear for a doubtful name."""
        found, tokens, place = _words(text), list[_Token](), 0
        while place < len(found):
            for length in range(min(self._longest, len(found) - place), 0, -1):
                run = tuple(found[place : place + length])
                sense = self._senses.get(run)
                if sense is not None:
                    break
            else:
                run = (found[place],)
                sense = self._nearest(run[0])
            tokens.append(_Token(*sense, " ".join(run)))
            place += len(run)
        return tokens

    def _add(self, entry: str, kind: _Kind, value: str = "") -> None:
        self._senses[tuple(_words(entry.replace("_", " ")))] = (kind, value)

    def _add_names(self, kind: _Kind, known: Sequence[str], every: dict[str, str]) -> None:
        # First what the model does not know, so that a word which is also the name of something known means that.
        for name in sorted(dict.fromkeys([*every, *known]), key=lambda each: each in known):
            for entry in _written(every.get(name, "")):
                self._add_name(entry, kind if name in known else _Kind.UNKNOWN_NAME, name, FOREIGN_LETTERS)
        for name in known:
            plural = f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"
            for entry in (name, plural) if kind is _Kind.CLASS else (name,):
                self._add_name(entry, kind, name, MISSPELT_LETTERS)

    def _add_name(self, entry: str, kind: _Kind, value: str, least: int) -> None:
        self._add(entry, kind, value)
        plain = _words(entry.replace("_", " "))
        if len(plain) == 1:
            self._names.append((plain[0], least, (kind, value)))

    def _nearest(self, word: str) -> tuple[_Kind, str]:
        """Return what a word that is in no table may be with one letter right."""
        if not word.isalnum():
            return (_Kind.JOINT if word in _JOINING_SIGNS else _Kind.COMMON), ""
        if len(word) > 2 and any(_one_edit(word, each) for each in self._denials):
            return _Kind.DENIAL, ""
        near = {
            sense
            for name, least, sense in self._names
            if len(name) >= least and _one_edit(word, name) and (least < FOREIGN_LETTERS or word[0] == name[0])
        }
        if len(near) > 1:
            raise _Unclear(f"has the word {word!r}, which could be {' or '.join(sorted(value for _, value in near))}")
        return next(iter(near), (_Kind.UNKNOWN, ""))


def _written(entries: str) -> list[str]:
    """Return the words of a table of names, each stem with its endings."""
    stems = [(entry.rstrip("~"), GERMAN_ENDINGS if entry.endswith("~") else ("",)) for entry in entries.split()]
    return [stem + ending for stem, endings in stems for ending in endings]


def _one_edit(word: str, name: str) -> bool:
    """Return whether one letter less, more or other, or two neighbours swapped, make one word of the other."""
    if abs(len(word) - len(name)) > 1:
        return False
    first = next((at for at, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), min(len(word), len(name)))
    rest, other = word[first:], name[first:]
    while rest and other and rest[-1] == other[-1]:
        rest, other = rest[:-1], other[:-1]
    return max(len(rest), len(other)) <= 1 or (len(rest) == 2 and rest == other[::-1])


def _understand(instruction: str, vocabulary: Vocabulary) -> Understood:
    tokens = _Lexicon.of(vocabulary).tokens(instruction)
    for token in tokens:
        if token.kind is _Kind.DENIAL:
            raise _Unclear(f"says what not to find ({token.word!r}); name only the object that is to be found")
        if token.kind is _Kind.UNKNOWN_NAME:
            raise _Unclear(f"names no known object: {token.word!r} is not known")
    _check_relations(tokens)
    understood = Understood(*_one_object(tokens))
    # Models of the form before were only trained to find one colour and one class.
    if vocabulary.form < SEARCH_FORM:
        _check_one_object(understood, vocabulary)
    return understood


def _named(tokens: Iterable[_Token]) -> bool:
    return any(token.kind in _NAMES for token in tokens)


def _check_relations(tokens: Sequence[_Token]) -> None:
    """Raise _Unclear where an object is named by its place beside another one; beside a person or nothing is none."""
    for place, token in enumerate(tokens):
        if token.kind is not _Kind.RELATION or not _named(tokens[:place]):
            continue
        following = [each for each in tokens[place + 1 :] if each.kind is not _Kind.LINK][: ADJECTIVES + 1]
        first = following[0].kind if following else None
        if first is _Kind.UNKNOWN or (_named(following) and first in (*_NAMES, _Kind.HEAD)):
            raise _Unclear(
                f"says where the object is ({token.word!r}), and this model mistakes objects that are named by their "
                "place; name colour and object alone"
            )


def _one_object(tokens: Sequence[_Token]) -> tuple[str, str]:
    """Return the colour and the class that tokens name. Raises _Unclear for none, several, and what is unknown."""
    places = [place for place, token in enumerate(tokens) if token.kind in _NAMES]
    if not places:
        raise _Unclear("names no known object")
    for place in places:
        _check_neighbours(tokens, place)
    colours = list(dict.fromkeys(token.value for token in tokens if token.kind is _Kind.COLOUR))
    classes = list(dict.fromkeys(token.value for token in tokens if token.kind is _Kind.CLASS))
    joined = any(token.kind is _Kind.JOINT for token in tokens[places[0] : places[-1]])
    if len(colours) > 1 or len(classes) > 1 or joined:
        raise _Unclear(f"names more than one object ({', '.join(tokens[place].word for place in places)})")
    return colours[0] if colours else "", classes[0] if classes else ""


def _check_neighbours(tokens: Sequence[_Token], place: int) -> None:
    """Raise _Unclear where a name belongs to something unknown: 'the bottle opener', 'the red dragon'."""
    token, behind = tokens[place], tokens[place + 1 :]
    after = behind[0] if behind else None
    if token.kind is _Kind.CLASS:
        if after is not None and after.kind is _Kind.UNKNOWN:
            raise _Unclear(f"names {token.word + ' ' + after.word!r}, which is not known")
        return
    gap = next((at for at, each in enumerate(behind) if each.kind is _Kind.CLASS), ADJECTIVES + 1)
    if gap <= ADJECTIVES and all(_is_adjective(each) for each in behind[:gap]):
        return
    before = next((each for each in reversed(tokens[:place]) if each.kind is not _Kind.LINK), None)
    for other in (after, before):
        if other is not None and other.kind is _Kind.UNKNOWN:
            raise _Unclear(f"names no known object: {token.word!r} stands with {other.word!r}, which is not known")


def _is_adjective(token: _Token) -> bool:
    """Return whether a word may stand between a colour and its object; in Chinese a particle may, too."""
    return token.kind is _Kind.UNKNOWN or (token.kind is _Kind.LINK and not token.word.isascii())


def _check_one_object(understood: Understood, vocabulary: Vocabulary) -> None:
    """Raise _Unclear for what a model that knows one colour and one class per prompt cannot be asked."""
    colour, object_class = understood.colour, understood.object_class
    example = f"find the {colour or vocabulary.colours[-1]} {object_class or vocabulary.classes[0]}"
    if not colour or not object_class:
        missing = "object" if colour else "colour"
        raise _Unclear(f"names no {missing}, and this model needs one; name the {missing} too, e.g. {example!r}")
