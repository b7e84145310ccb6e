"""What objects and colours are called in five languages: one table, to recognise instructions and to write them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Language(str, Enum):
    """A language in which objects can be named, by its ISO 639-1 code."""

    ENGLISH = "en"
    GERMAN = "de"
    FRENCH = "fr"
    SPANISH = "es"
    CHINESE = "zh"


class Case(str, Enum):
    """The grammatical case of a name. Only German writes them differently."""

    NOMINATIVE = "nominative"
    ACCUSATIVE = "accusative"
    DATIVE = "dative"


@dataclass(frozen=True)
class Noun:
    """The names of a class: the first one is written, all are recognised."""

    gender: str
    """m, f or n; empty where a language has none."""
    words: tuple[str, ...]


@dataclass(frozen=True)
class Adjective:
    """The names of a colour: `masculine` and `feminine` are written, all are recognised.

    A German one is a stem, written and recognised with the endings of its cases.
    """

    masculine: str
    feminine: str = ""
    others: tuple[str, ...] = ()


GERMAN_ENDINGS = ("", "e", "en", "er", "es", "em")


def _noun(gender: str, words: str) -> Noun:
    return Noun(gender, tuple(word.strip() for word in words.split(",")))


def _adjective(written: str, others: str = "") -> Adjective:
    masculine, _, feminine = written.partition("/")
    return Adjective(masculine, feminine or masculine, tuple(word.strip() for word in others.split(",") if word))


CLASSES: dict[Language, dict[str, Noun]] = {
    Language.ENGLISH: {
        "bottle": _noun("", "bottle, bottles, flask, flasks"),
        "ball": _noun("", "ball, balls, football, footballs"),
        "box": _noun("", "box, boxes"),
        "cone": _noun("", "cone, cones"),
        "chair": _noun("", "chair, chairs"),
        "plant": _noun("", "plant, plants, houseplant, houseplants"),
        "mug": _noun("", "mug, mugs, cup, cups"),
        "bin": _noun("", "bin, bins, dustbin, dustbins, trash can, trash cans, garbage can, garbage cans, wastebasket"),
        "lamp": _noun("", "lamp, lamps"),
    },
    Language.GERMAN: {
        "bottle": _noun("f", "Flasche, Flaschen"),
        "ball": _noun("m", "Ball, Balls, Bälle, Bällen, Kugel, Kugeln"),
        "box": _noun("f", "Kiste, Kisten, Box, Boxen, Schachtel, Schachteln"),
        "cone": _noun("m", "Kegel, Kegels, Kegeln, Leitkegel"),
        "chair": _noun("m", "Stuhl, Stuhls, Stuhle, Stühle, Stühlen"),
        "plant": _noun("f", "Pflanze, Pflanzen, Topfpflanze, Zimmerpflanze"),
        "mug": _noun("f", "Tasse, Tassen, Becher, Bechers, Bechern"),
        "bin": _noun("m", "Mülleimer, Mülleimers, Mülleimern, Abfalleimer, Papierkorb, Mülltonne"),
        "lamp": _noun("f", "Lampe, Lampen"),
    },
    Language.FRENCH: {
        "bottle": _noun("f", "bouteille, bouteilles"),
        "ball": _noun("m", "ballon, ballons, balle, balles"),
        "box": _noun("f", "boîte, boîtes, caisse, caisses"),
        "cone": _noun("m", "cône, cônes"),
        "chair": _noun("f", "chaise, chaises"),
        "plant": _noun("f", "plante, plantes"),
        "mug": _noun("f", "tasse, tasses, mug, mugs"),
        "bin": _noun("f", "poubelle, poubelles"),
        "lamp": _noun("f", "lampe, lampes"),
    },
    Language.SPANISH: {
        "bottle": _noun("f", "botella, botellas"),
        "ball": _noun("f", "pelota, pelotas, balón, balones, bola, bolas"),
        "box": _noun("f", "caja, cajas"),
        "cone": _noun("m", "cono, conos"),
        "chair": _noun("f", "silla, sillas"),
        "plant": _noun("f", "planta, plantas"),
        "mug": _noun("f", "taza, tazas"),
        "bin": _noun("f", "papelera, papeleras, cubo de basura, basurero"),
        "lamp": _noun("f", "lámpara, lámparas"),
    },
    Language.CHINESE: {
        "bottle": _noun("", "瓶子, 瓶"),
        "ball": _noun("", "球"),
        "box": _noun("", "箱子, 盒子, 箱, 盒"),
        "cone": _noun("", "锥桶, 路锥, 锥筒, 圆锥, 锥"),
        "chair": _noun("", "椅子, 椅"),
        "plant": _noun("", "植物, 盆栽"),
        "mug": _noun("", "杯子, 马克杯, 杯"),
        "bin": _noun("", "垃圾桶, 垃圾箱"),
        "lamp": _noun("", "灯, 台灯, 落地灯, 燈"),
    },
}
"""Language -> class of `vlm_nav_simulation.objects` -> its names. A stool, a bucket or a light has another word on
purpose."""

COLOURS: dict[Language, dict[str, Adjective]] = {
    Language.ENGLISH: {
        "red": _adjective("red"),
        "green": _adjective("green"),
        "blue": _adjective("blue"),
        "yellow": _adjective("yellow"),
        "orange": _adjective("orange"),
        "purple": _adjective("purple", "violet"),
        "white": _adjective("white"),
        "black": _adjective("black"),
        "silver": _adjective("silver", "silvery"),
    },
    Language.GERMAN: {
        "red": _adjective("rot"),
        "green": _adjective("grün", "gruen"),
        "blue": _adjective("blau"),
        "yellow": _adjective("gelb"),
        "orange": _adjective("orangefarben", "orange, orangen, oranger, oranges"),
        "purple": _adjective("violett", "lila, purpurn"),
        "white": _adjective("weiß"),
        "black": _adjective("schwarz"),
        "silver": _adjective("silbern", "silber, silberfarben"),
    },
    Language.FRENCH: {
        "red": _adjective("rouge", "rouges"),
        "green": _adjective("vert/verte", "verts, vertes"),
        "blue": _adjective("bleu/bleue", "bleus, bleues"),
        "yellow": _adjective("jaune", "jaunes"),
        "orange": _adjective("orange", "oranges"),
        "purple": _adjective("violet/violette", "violets, violettes"),
        "white": _adjective("blanc/blanche", "blancs, blanches"),
        "black": _adjective("noir/noire", "noirs, noires"),
        "silver": _adjective("argenté/argentée", "argentés, argentées"),
    },
    Language.SPANISH: {
        "red": _adjective("rojo/roja", "rojos, rojas"),
        "green": _adjective("verde", "verdes"),
        "blue": _adjective("azul", "azules"),
        "yellow": _adjective("amarillo/amarilla", "amarillos, amarillas"),
        "orange": _adjective("naranja", "naranjas, anaranjado, anaranjada"),
        "purple": _adjective("morado/morada", "morados, moradas, violeta"),
        "white": _adjective("blanco/blanca", "blancos, blancas"),
        "black": _adjective("negro/negra", "negros, negras"),
        "silver": _adjective("plateado/plateada", "plateados, plateadas"),
    },
    Language.CHINESE: {
        "red": _adjective("红色", "红, 紅色, 紅"),
        "green": _adjective("绿色", "绿, 綠色, 綠"),
        "blue": _adjective("蓝色", "蓝, 藍色, 藍"),
        "yellow": _adjective("黄色", "黄, 黃色, 黃"),
        "orange": _adjective("橙色", "橙, 橘色, 橘"),
        "purple": _adjective("紫色", "紫"),
        "white": _adjective("白色", "白"),
        "black": _adjective("黑色", "黑"),
        "silver": _adjective("银色", "银, 銀色, 銀"),
    },
}
"""Language -> colour of `vlm_nav_simulation.objects` -> its names. Grey is not silver: the simulator's silver is a
streaked metal, neither a grey nor a white."""

OTHER_COLOURS = (
    "grey", "gray", "brown", "pink", "gold", "golden", "beige", "cyan", "turquoise", "magenta", "teal", "maroon",
    "bronze", "copper", "transparent", "grau", "graue", "grauen", "grauer", "graues", "braun", "braune", "braunen",
    "brauner", "braunes", "rosa", "goldene", "goldenen", "goldener", "goldenes", "gris", "grise", "brun", "brune",
    "marron", "rose", "dore", "doree", "dorado", "dorada", "灰色", "灰", "棕色", "棕", "粉色", "粉红色", "金色", "金",
)  # fmt: skip
"""Colours that no object has: naming one is a request that cannot be met, never an adjective that may be dropped."""


def words_of_class(object_class: str) -> tuple[str, ...]:
    """Return all names of a class in all languages, as written; empty for one that has no entry."""
    return tuple(word for nouns in CLASSES.values() if object_class in nouns for word in nouns[object_class].words)


def words_of_colour(colour: str) -> tuple[str, ...]:
    """Return all names of a colour in all languages, as written; empty for one that has no entry."""
    words: list[str] = []
    for language, adjectives in COLOURS.items():
        if colour not in adjectives:
            continue
        known = adjectives[colour]
        stems = [known.masculine, known.feminine, *known.others]
        endings = GERMAN_ENDINGS if language is Language.GERMAN else ("",)
        words += [stem + ending for stem in stems for ending in endings]
    return tuple(dict.fromkeys(words))


_GERMAN = {
    # case -> gender -> definite article, ending of the colour behind it, indefinite article
    Case.NOMINATIVE: {"m": ("der", "e", "ein"), "f": ("die", "e", "eine"), "n": ("das", "e", "ein")},
    Case.ACCUSATIVE: {"m": ("den", "en", "einen"), "f": ("die", "e", "eine"), "n": ("das", "e", "ein")},
    Case.DATIVE: {"m": ("dem", "en", "einem"), "f": ("der", "en", "einer"), "n": ("dem", "en", "einem")},
}
_ROMANCE = {
    Language.FRENCH: {"m": ("le", "un"), "f": ("la", "une")},
    Language.SPANISH: {"m": ("el", "un"), "f": ("la", "una")},
}
_SOMETHING = {Language.FRENCH: "quelque chose de", Language.SPANISH: "algo"}


def phrase(colour: str, object_class: str, language: Language = Language.ENGLISH, case: Case = Case.ACCUSATIVE) -> str:
    """Return how a language names an object with its article: 'the silver bottle', 'a bottle', 'something red'.

    An empty colour or class stands for any. Raises ValueError where both are empty, or for a name without an entry in
    a language other than English, which needs none.
    """
    if not colour and not object_class:
        raise ValueError("a phrase for an object needs a colour, a class or both")
    if language is Language.ENGLISH:
        if colour and object_class:
            return f"the {colour} {object_class}"
        article = "an" if object_class[:1] in tuple("aeiou") else "a"
        return f"{article} {object_class}" if object_class else f"something {colour}"
    try:
        noun = CLASSES[language][object_class] if object_class else None
        shade = COLOURS[language][colour] if colour else None
    except KeyError as error:
        raise ValueError(
            f"no {language.value} word for {error.args[0]!r}; add it to speculation/language/names.py"
        ) from None
    if language is Language.GERMAN:
        return _german(noun, shade, case)
    if language is Language.CHINESE:
        kind = noun.words[0] if noun is not None else "东西"
        return f"{shade.masculine}的{kind}" if shade is not None else f"一个{kind}"
    if noun is None:
        return f"{_SOMETHING[language]} {shade.masculine if shade is not None else ''}"
    definite, indefinite = _ROMANCE[language][noun.gender]
    if shade is None:
        return f"{indefinite} {noun.words[0]}"
    return f"{definite} {noun.words[0]} {shade.feminine if noun.gender == 'f' else shade.masculine}"


def _german(noun: Noun | None, shade: Adjective | None, case: Case) -> str:
    if noun is None:
        ending = "em" if case is Case.DATIVE else "es"
        return f"etwas {shade.masculine if shade is not None else ''}{ending}"
    definite, ending, indefinite = _GERMAN[case][noun.gender]
    if shade is None:
        return f"{indefinite} {noun.words[0]}"
    return f"{definite} {shade.masculine}{ending} {noun.words[0]}"
