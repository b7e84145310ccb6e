"""Names of objects in five languages."""

from __future__ import annotations

import pytest

from speculation.language.names import CLASSES, COLOURS, Case, Language, phrase, words_of_class, words_of_colour
from vlm_nav_simulation.objects import CLASSES as SHAPES
from vlm_nav_simulation.objects import COLOURS as PAINTS


@pytest.mark.parametrize("language", Language)
def test_every_language_names_all_that_the_simulator_has(language: Language) -> None:
    assert set(CLASSES[language]) == set(SHAPES) and set(COLOURS[language]) == set(PAINTS)


def test_no_name_means_two_things() -> None:
    for words_of, names in ((words_of_class, SHAPES), (words_of_colour, PAINTS)):
        words = [(word.casefold(), name) for name in names for word in set(words_of(name))]
        meanings = {word: {name for each, name in words if each == word} for word, _ in words}
        assert all(len(names) == 1 for names in meanings.values())


@pytest.mark.parametrize(
    ("asked", "language", "case", "text"),
    [
        (("silver", "bottle"), Language.ENGLISH, Case.ACCUSATIVE, "the silver bottle"),
        (("", "orange tree"), Language.ENGLISH, Case.ACCUSATIVE, "an orange tree"),
        (("red", ""), Language.ENGLISH, Case.DATIVE, "something red"),
        (("silver", "bottle"), Language.GERMAN, Case.ACCUSATIVE, "die silberne Flasche"),
        (("red", "ball"), Language.GERMAN, Case.ACCUSATIVE, "den roten Ball"),
        (("red", "ball"), Language.GERMAN, Case.DATIVE, "dem roten Ball"),
        (("", "chair"), Language.GERMAN, Case.NOMINATIVE, "ein Stuhl"),
        (("red", ""), Language.GERMAN, Case.DATIVE, "etwas rotem"),
        (("silver", "bottle"), Language.FRENCH, Case.ACCUSATIVE, "la bouteille argentée"),
        (("", "ball"), Language.FRENCH, Case.ACCUSATIVE, "un ballon"),
        (("red", ""), Language.FRENCH, Case.ACCUSATIVE, "quelque chose de rouge"),
        (("silver", "bottle"), Language.SPANISH, Case.ACCUSATIVE, "la botella plateada"),
        (("silver", "bottle"), Language.CHINESE, Case.ACCUSATIVE, "银色的瓶子"),
        (("", "bottle"), Language.CHINESE, Case.ACCUSATIVE, "一个瓶子"),
    ],
)
def test_a_phrase_is_grammatical(asked: tuple[str, str], language: Language, case: Case, text: str) -> None:
    assert phrase(*asked, language, case) == text


def test_a_phrase_for_nothing_or_without_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="a colour, a class or both"):
        phrase("", "")
    with pytest.raises(ValueError, match=r"no de word for 'sofa'; add it to speculation/language/names\.py"):
        phrase("red", "sofa", Language.GERMAN)
