"""Ways to word one and the same instruction: those that the parser was written with, and those held out to measure.

No model is trained on them: one with a list of objects is asked what the parser understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from speculation.language.names import CLASSES, COLOURS, Case, Language, phrase

MISSPELT_LETTERS = 4
"""Shorter words are not misspelt: one letter off they are other words."""


class Spelling(Enum):
    """How a wording is written."""

    PLAIN = "as it stands"
    CAPITALS = "in capitals"
    DROPPED = "without a letter of its name"
    DOUBLED = "with a letter of its name twice"
    SWAPPED = "with two letters of its name in the wrong order"


@dataclass(frozen=True)
class Wording:
    """One way to ask for an object.

    In `template`, {nominative}, {target} (accusative) and {dative} stand for the object with its article, {bare} for
    its name alone, {other} for another object that is not meant.
    """

    template: str
    language: Language = Language.ENGLISH
    spelling: Spelling = Spelling.PLAIN

    def text(self, colour: str, object_class: str) -> str:
        """Return the instruction for an object of `vlm_nav_simulation.objects`; an empty colour or class is any.

        Raises ValueError where both are empty or a word is unknown in the language.
        """
        asked, other = (colour, object_class), _other(colour, object_class)
        words = {
            "nominative": phrase(*asked, self.language, Case.NOMINATIVE),
            "target": phrase(*asked, self.language, Case.ACCUSATIVE),
            "dative": phrase(*asked, self.language, Case.DATIVE),
            "other": phrase(*other, self.language, Case.ACCUSATIVE),
            "bare": " ".join(part for part in asked if part),
        }
        if self.spelling is Spelling.CAPITALS:
            return self.template.format(**words).upper()
        if self.spelling is not Spelling.PLAIN:
            words = {name: _misspelt(each, object_class or colour, self.spelling) for name, each in words.items()}
        return self.template.format(**words)


def _other(colour: str, object_class: str) -> tuple[str, str]:
    """Return an object that differs in all that was named."""
    colours, classes = list(COLOURS[Language.ENGLISH]), list(CLASSES[Language.ENGLISH])
    other_colour = colours[(colours.index(colour) + 4) % len(colours)] if colour in colours else ""
    other_class = classes[(classes.index(object_class) + 4) % len(classes)] if object_class in classes else ""
    return other_colour, other_class


def _misspelt(text: str, name: str, spelling: Spelling) -> str:
    if len(name) < MISSPELT_LETTERS:
        return text
    place = next(at for at in range(1, len(name) - 1) if name[at] != name[at + 1])
    wrong = {
        Spelling.DROPPED: name[:place] + name[place + 1 :],
        Spelling.DOUBLED: name[: place + 1] + name[place:],
        Spelling.SWAPPED: name[:place] + name[place + 1] + name[place] + name[place + 2 :],
    }[spelling]
    return text.replace(name, wrong)


def _in(language: Language, *templates: str) -> tuple[Wording, ...]:
    return tuple(Wording(template, language) for template in templates)


DEVELOPED: tuple[Wording, ...] = (
    *_in(
        Language.ENGLISH,
        "find {target}",
        "go to {target}",
        "walk to {target}",
        "look for {target}",
        "please find {target}",
        "bring me to {target}",
        "Find {target}.",
        "{target}",
        "{bare}",
        "fetch {target}",
        "where is {target}?",
        "can you see {target}?",
        "I need {target}",
        "could you look for {target}?",
        "I would like you to go to {target}",
        "search for {target}",
        "locate {target}",
        "take me to {target}",
        "show me {target}",
        "I am looking for {target}",
        "Go over to {target} and stop there.",
        "Please walk up to {target}, thank you.",
        "your task is to reach {target}",
        "do you know where {target} is?",
        "Hey robot, find {target}!",
        "navigate to {target}",
        "move towards {target}",
        "I want to see {target}",
        "let's find {target}",
        "help me find {target}",
        "would you mind finding {target} for me?",
        "drive to {target}, please",
        "I want you to get as close as you can to {target}, please",
        "approach {target}",
        "stop in front of {target}",
        "{target}, not {other}",
        "find {target} but not {other}",
        "don't go to {other}, go to {target}",
    ),
    Wording("find {target}", spelling=Spelling.CAPITALS),
    Wording("where is {target}?", spelling=Spelling.CAPITALS),
    Wording("find {target}", spelling=Spelling.DROPPED),
    Wording("go to {target}", spelling=Spelling.SWAPPED),
    Wording("look for {target}, please", spelling=Spelling.DOUBLED),
    *_in(
        Language.GERMAN,
        "Finde {target}",
        "Geh zu {dative}",
        "Wo ist {nominative}?",
        "Ich suche {target}",
        "Bitte such {target}",
    ),
    *_in(
        Language.FRENCH,
        "trouve {target}",
        "va vers {target}",
        "où est {target} ?",
        "cherche {target}, s'il te plaît",
    ),
    *_in(Language.SPANISH, "busca {target}", "ve hacia {target}", "¿dónde está {target}?", "encuentra {target}"),
    *_in(Language.CHINESE, "找{target}", "去{target}那里", "{target}在哪里？", "请找到{target}"),
)
"""What training words its instructions with, and what the parser of `instructions.py` was written against."""

HELD_OUT: tuple[Wording, ...] = (
    *_in(
        Language.ENGLISH,
        "track down {target}",
        "get over to {target}",
        "head over to {target} right now",
        "do you see {target} anywhere?",
        "is there {target} around here?",
        "what I need is {target}",
        "I've lost {target}, can you help me?",
        "please be so kind as to go to {target}",
        "lead me to {target}",
        "guide me to {target}",
        "I'd like to have {target}",
        "make your way to {target}",
        "would it be possible for you to find {target} for me, please?",
        "spot {target}",
        "hunt for {target}",
        "run to {target}",
        "your goal: {target}",
        "target: {bare}",
        "mission - reach {target}",
        "Robot, I want {target}.",
        "stand next to {target}",
        "come closer to {target}",
        "the thing I am after is {target}",
        "{target}, please",
        "{bare}?",
        "see if you can find {target}",
        "have a look for {target}",
        "point me to {target}",
        "walk straight up to {target} and wait there",
        "{target} is what I am looking for",
        "find me {target}, quick",
        "discover where {target} is",
        "we are trying to get to {target} today",
        "{target} and not {other}",
        "not {other} but {target}",
        "avoid {other}. I want {target}",
    ),
    Wording("go get {target}!", spelling=Spelling.CAPITALS),
    Wording("carry me to {target}, please", spelling=Spelling.CAPITALS),
    Wording("seek {target}", spelling=Spelling.DROPPED),
    Wording("any idea where {target} is?", spelling=Spelling.SWAPPED),
    Wording("could I get {target}", spelling=Spelling.DOUBLED),
    *_in(
        Language.GERMAN,
        "Kannst du {target} sehen?",
        "Bring mich zu {dative}",
        "Ich brauche {target}",
        "Lauf bitte zu {dative}",
        "Zeig mir {target}",
    ),
    *_in(
        Language.FRENCH,
        "amène-moi vers {target}",
        "je cherche {target}",
        "peux-tu voir {target} ?",
        "montre-moi {target}",
    ),
    *_in(
        Language.SPANISH,
        "llévame hasta {target}",
        "necesito {target}",
        "¿puedes ver {target}?",
        "camina hacia {target}",
    ),
    *_in(Language.CHINESE, "带我去{target}", "我需要{target}", "你能看到{target}吗？", "走到{target}旁边"),
)
"""What nothing is trained on and the parser was not written against: to measure with."""
