"""Any wording of an instruction to the object that is meant; and never to one that is denied."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculation.language.instructions import is_stop, sentence_for, understand
from speculation.language.prompts import MAX_INSTRUCTION_CHARS, Vocabulary
from vlm_nav_simulation.objects import CLASSES, COLOURS

ONE = Vocabulary(tuple(COLOURS), tuple(CLASSES))
ANY = Vocabulary(tuple(COLOURS), tuple(CLASSES), form=2)
"""Models of the later form can also be asked for any object of a colour or a class."""
colours, classes = st.sampled_from(list(COLOURS)), st.sampled_from(list(CLASSES))

WORDINGS = [
    "find {}", "go to {}", "Find {}.", "{}", "fetch {}", "where is {}?", "can you see {}?", "could you look for {}?",
    "I would like you to go to {}", "take me to {}", "I am looking for {}", "Go over to {} and stop there.",
    "Please walk up to {}, thank you.", "do you know where {} is?", "Hey robot, find {}!", "let's find {}",
    "would you mind finding {} for me?", "I want you to get as close as you can to {}, please", "stop in front of {}",
]  # fmt: skip
HELD_OUT = [
    "track down {}", "get over to {}", "head over to {} right now", "do you see {} anywhere?",
    "is there {} around here?", "what I need is {}", "I've lost {}, can you help me?",
    "please be so kind as to go to {}", "lead me to {}", "I'd like to have {}", "make your way to {}",
    "would it be possible for you to find {} for me, please?", "spot {}", "your goal: {}", "mission - reach {}",
    "Robot, I want {}.", "stand next to {}", "come closer to {}", "the thing I am after is {}",
    "see if you can find {}",
    "have a look for {}", "point me to {}", "walk straight up to {} and wait there", "{} is what I am looking for",
    "find me {}, quick", "discover where {} is", "we are trying to get to {} today", "any idea where {} is?",
]  # fmt: skip
"""Wordings against which the parser was not written."""


def asked(text: str, vocabulary: Vocabulary = ANY) -> str:
    return understand(text, vocabulary).instruction


def refused(text: str, vocabulary: Vocabulary = ANY) -> str:
    with pytest.raises(ValueError) as caught:
        understand(text, vocabulary)
    return str(caught.value)


# -- wordings


@pytest.mark.parametrize("wording", [*WORDINGS, *HELD_OUT])
def test_every_wording_of_every_object_means_exactly_that_object(wording: str) -> None:
    for colour, object_class in zip(cycle(COLOURS), CLASSES, strict=False):
        assert asked(wording.format(f"the {colour} {object_class}"), ONE) == f"find the {colour} {object_class}"
    for object_class in CLASSES:
        assert asked(wording.format(f"a {object_class}")) == f"find a {object_class}"
    for colour in COLOURS:
        assert asked(wording.format(f"something {colour}")) == f"find something {colour}"


@pytest.mark.parametrize(
    "text",
    [
        "Finde die silberne Flasche", "Geh zu der silbernen Flasche", "Wo ist die silberne Flasche?",
        "Kannst du die silberne Flasche sehen?", "Zeig mir den Weg zur silbernen Flasche",
        "Ich bin auf der Suche nach der silbernen Flasche", "trouve la bouteille argentée",
        "cherche la bouteille argentée, s'il te plaît", "où est la bouteille argentée ?",
        "amène-moi vers la bouteille argentée", "busca la botella plateada", "¿dónde está la botella plateada?",
        "llévame hasta la botella plateada", "¿puedes ver la botella plateada?", "找银色的瓶子", "去银色的瓶子那里",
        "银色的瓶子在哪里？", "请找到银色的瓶子", "走到银色的瓶子旁边", "能不能去银色的瓶子那里",
        "FIND THE SILVER BOTTLE", "find the silver bottel", "go to the silver botle", "the silver bottlle, please",
        "if you don't mind, go to the silver bottle", "why don't you find the silver bottle?",
        "I can't find the silver bottle", "nothing but the silver bottle",
        "Find the silver Bottle, the silver bottle!", "the bottle, the silver one", "a bottle. It is silver.",
        "the silver, shiny bottle", "the silver plastic bottle", "something silver, a bottle", "the silver flasks",
        "the NEAREST silver bottle", "the silver bottle behind you",
    ],
)  # fmt: skip
def test_other_languages_spellings_and_turns_of_phrase_are_understood(text: str) -> None:
    assert asked(text) == asked(text, ONE) == "find the silver bottle"


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("the silver trash can", "find the silver bin"),
        ("a violet cup", "find the purple mug"),
        ("red chairs", "find the red chair"),
        ("anything red", "find something red"),
        ("un ballon", "find a ball"),
        ("etwas Rotes", "find something red"),
    ],
)
def test_synonyms_and_what_is_named_in_part_are_understood(text: str, instruction: str) -> None:
    assert asked(text) == instruction


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the chair left of the lamp", "left of"),
        ("the red chair to the right of the blue lamp", "to the right of"),
        ("the red chair behind something red", "behind"),
        ("the red ball on the chair", "on"),
        ("the red ball near the fridge", "near"),
        ("the chair left of the lamp behind the box", "left of"),
        ("der rote Stuhl links von der Lampe", "links von"),
        ("la chaise rouge devant la lampe", "devant"),
        ("la silla roja al lado de la lámpara", "al lado de"),
        ("红色的球左边的椅子", "左 边"),
    ],
)
def test_an_object_by_its_place_is_refused_with_what_to_say(text: str, word: str) -> None:
    for vocabulary in (ANY, ONE):
        assert f"says where the object is ({word!r}), and this model" in refused(text, vocabulary)
        assert "name colour and object alone; say for example 'find the silver bottle'" in refused(text, vocabulary)
    assert sentence_for(text, None) == text


# -- denials

DENIALS = {
    "en": (
        "do not go to {}", "don't find {}", "dont find {}", "please do nto go to {}", "never go to {}", "not {}",
        "anything but {}", "everything except {}", "stay away from {}", "avoid {}", "ignore {}", "{}, not", "no {}",
        "stop looking for {}", "go to {}, please do not", "find {}. No!", "leave {} alone", "neither this nor {}",
        "go without {}", "I hate {}", "forget {}", "keep clear of {}", "rather than {}", "{} is not what I want",
        "you cannot go to {}", "{} is forbidden", "go anywhere but {}",
    ),
    "de": (
        "geh nicht zu {}", "{} nicht", "auf keinen Fall {}", "alles außer {}", "meide {}", "nie {}", "geh weg von {}",
        "lass {} in Ruhe",
    ),
    "fr": (
        "ne va pas vers {}", "pas {}", "évite {}", "tout sauf {}", "n'approche jamais {}", "loin de {}",
        "je ne veux pas {}",
    ),
    "es": ("no vayas hacia {}", "nunca {}", "evita {}", "todo menos {}", "todo excepto {}", "aléjate de {}", "{} no"),
    "zh": ("不要去{}", "别去{}", "别找{}", "{}不要", "除了{}", "避开{}", "不是{}", "我不想要{}", "远离{}"),
}  # fmt: skip
NAMED = {
    "en": ("the red ball", "a chair", "something silver", "the silver bottle"),
    "de": ("den roten Ball", "ein Stuhl", "etwas silbernes", "der silbernen Flasche"),
    "fr": ("le ballon rouge", "une chaise", "quelque chose de argenté", "la bouteille argentée"),
    "es": ("la pelota roja", "una silla", "algo plateado", "la botella plateada"),
    "zh": ("红色的球", "一个椅子", "银色的东西", "银色的瓶子"),
}


@pytest.mark.parametrize("language", DENIALS)
def test_no_denial_of_an_object_ever_results_in_that_object(language: str) -> None:
    for denial in DENIALS[language]:
        for name in NAMED[language]:
            for text in (denial.format(name), denial.format(name).upper()):
                assert "says what not to find" in refused(text, ONE) and "says what not to find" in refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "the red ball, not the box", "not the red box but the blue ball", "any bottle but the red one",
        "do not go to the red chair. Find the blue ball.", "nicht den roten Ball, sondern die blaue Kiste",
        "find the red box instead of the blue ball", "the red ball, no the blue box", "要银色的瓶子,不要红色的球",
    ],
)  # fmt: skip
def test_a_request_beside_a_denial_is_refused_with_the_word_and_an_example(text: str) -> None:
    problem = refused(text)
    assert "name only the object that is to be found; say for example 'find the silver bottle'" in problem
    assert "known colours: red, green" in problem and "known objects: bottle, ball" in problem


# -- refusals


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("find the dragon", "names no known object"),
        ("hello", "names no known object"),
        ("the red dragon", "'red' stands with 'dragon', which is not known"),
        ("the room is red. find the ball", "'red' stands with 'room'"),
        ("the grey bottle", "'grey' is not known"),
        ("die graue Flasche", "'graue' is not known"),
        ("the bottle opener", "names 'bottle opener', which is not known"),
        ("the wall", "names no known object"),
        ("find the silver and the bottle", "names more than one object"),
        ("find the ball and the box", "names more than one object (ball, box)"),
        ("the red ball or the blue box", "names more than one object (red, ball, blue, box)"),
        ("the red and yellow ball", "names more than one object"),
        ("the ball/box", "names more than one object"),
    ],
)
def test_what_is_not_one_known_object_is_refused_with_the_reason(text: str, why: str) -> None:
    assert why in refused(text)


def test_a_model_that_needs_colour_and_class_refuses_one_of_them_with_an_example() -> None:
    assert "names no colour, and this model needs one; name the colour too, e.g. 'find the silver chair'" in refused(
        "find a chair", ONE
    )
    assert "name the object too, e.g. 'find the red bottle'" in refused("find something red", ONE)


def test_only_what_the_model_knows_counts() -> None:
    few = Vocabulary(("silver", "red"), ("bottle", "traffic light"))
    assert asked("the silver bottle", few) == "find the silver bottle"
    assert asked("the red traffic lights please", few) == "find the red traffic light"
    assert "'green' is not known" in refused("the green bottle", few)
    assert "'lamp' is not known" in refused("the red lamp", few)
    assert asked("the grey mouse", Vocabulary(("grey",), ("mouse",))) == "find the grey mouse"


@pytest.mark.parametrize("text", ["the red cale", "the red boll", "find the wite ball"])
def test_a_word_with_one_wrong_letter_is_recognised_or_refused_never_another_known_name(text: str) -> None:
    vocabulary = Vocabulary(("red", "white"), ("ball", "cave", "cage"))
    if text == "the red cale":
        assert "'cale', which could be cage or cave" in refused(text, vocabulary)
    else:
        assert asked(text, vocabulary).endswith(" ball")
    assert asked("the red cage", vocabulary) == "find the red cage"


# -- noise around a wording never changes the result


@given(
    st.sampled_from(WORDINGS),
    colours,
    classes,
    st.sampled_from(["", "please, ", "Hello! ", "hey, ", "  \t", "Robot, ", "could you, "]),
    st.sampled_from(["", "!", " ...", ", please", " thank you", "\n", "?!", " :)", " right now"]),
    st.sampled_from([str, str.upper, str.lower, str.title]),
    st.integers(1, 4),
)
def test_capitals_spaces_punctuation_and_politeness_never_change_the_result(
    wording: str, colour: str, object_class: str, before: str, after: str, letters: object, spaces: int
) -> None:
    assert callable(letters)
    text = before + letters(wording.format(f"the {colour} {object_class}")) + after
    assert asked(text.replace(" ", " " * spaces), ONE) == f"find the {colour} {object_class}"


@settings(max_examples=40)
@given(st.text(max_size=80))
def test_any_text_is_understood_or_refused_with_what_is_known(text: str) -> None:
    try:
        assert understand(text, ONE).instruction.startswith("find the ")
    except ValueError as problem:
        assert "known colours" in str(problem)


# -- what is asked


def test_a_model_without_a_list_is_asked_the_instruction_itself() -> None:
    assert sentence_for("  could you look for a dragon?", None) == "  could you look for a dragon?"
    assert sentence_for("could you look for a green chair, the GREEN one?", ONE) == "find the green chair"
    for text in (" ", "x" * (MAX_INSTRUCTION_CHARS + 1)):
        with pytest.raises(ValueError, match="empty or longer than 1000 characters"):
            sentence_for(text, ONE)


@pytest.mark.parametrize(
    "text",
    [
        "stop", "Stop!", "STOP NOW", "stop stop stop", "please stop", "stop, please", "halt", "Halt!", "don't move",
        "stop the robot", "stopp", "bleib stehen!", "anhalten bitte", "sofort anhalten", "arrête", "arrêtez-vous",
        "Arrête-toi, s'il te plaît", "ne bouge plus", "alto", "¡Para!", "no te muevas", "detente por favor",
        "停", "停下", "请停止", "别动", "停下来！",
    ],
)  # fmt: skip
def test_an_order_to_stop_is_known_in_every_language(text: str) -> None:
    assert is_stop(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "please", "stop at the red ball", "stop in front of the bin", "don't stop", "find the stop sign", "now",
        "the ball", "do not stop", "stop looking for the ball", "nicht anhalten", "find something to stop it", "robot",
    ],
)  # fmt: skip
def test_what_names_an_object_or_denies_the_stop_is_no_order_to_stop(text: str) -> None:
    assert not is_stop(text)
