"""What an instruction asks for: any wording -> the object that is meant, and the sentence that a model is asked.

Words are looked up in small tables; nothing is guessed. What is denied is never looked for: an instruction that is not
clear about it is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from speculation.language.names import (
    CLASSES,
    COLOURS,
    OTHER_COLOURS,
    Language,
    phrase,
    words_of_class,
    words_of_colour,
)
from speculation.language.prompts import MAX_INSTRUCTION_CHARS, SEARCH_FORM, Vocabulary

MISSPELT_LETTERS, FOREIGN_LETTERS = 4, 6
"""Names of so many letters are recognised with one wrong letter. Foreign ones are near too many words of other
languages: they must be longer and begin right."""
ADJECTIVES = 2
"""So many unknown words may stand between a colour and its object: 'the red wooden chair'."""


@dataclass(frozen=True)
class Relation:
    """Where the object is, by another one: the word ('left of') and the other's colour and class, empty for any."""

    word: str
    colour: str
    object_class: str

    @property
    def text(self) -> str:
        """E.g. 'left of the lamp'."""
        return f"{self.word} {_the(self.colour, self.object_class)}"


@dataclass(frozen=True)
class Understood:
    """What an instruction asks for. An empty colour or class stands for any; not both are empty."""

    colour: str
    object_class: str
    relation: Relation | None = None
    not_these: tuple[tuple[str, str], ...] = ()
    """Colours and classes of what was excluded; none of it is what is looked for."""

    @property
    def text(self) -> str:
        """The object in words: 'the silver bottle', 'a bottle', 'something red', 'the chair left of the lamp'."""
        if self.relation is None:
            return phrase(self.colour, self.object_class)
        return f"{_the(self.colour, self.object_class)} {self.relation.text}"

    @property
    def instruction(self) -> str:
        """The sentence that a model with a list of objects is asked, whatever the wording was."""
        return f"find {self.text}"


def _the(colour: str, object_class: str) -> str:
    return f"the {object_class}" if object_class and not colour else phrase(colour, object_class)


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
    something is only denied, and for what the model's prompt form cannot express.
    """
    try:
        return _understand(instruction, vocabulary)
    except _Unclear as problem:
        example = f"find the {vocabulary.colours[-1]} {vocabulary.classes[0]}"
        known = f"known colours: {', '.join(vocabulary.colours)}; known objects: {', '.join(vocabulary.classes)}"
        raise ValueError(f"instruction {instruction!r} {problem}; say for example {example!r}; {known}") from None


def is_sentence(text: str) -> bool:
    """Return whether a text asks for something in a sentence, not by the bare name of an object."""
    words = _Lexicon.of(None).tokens(text)
    return any(token.kind in (_Kind.VERB, _Kind.DENIAL) for token in words)


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
    """Stands for an object: one, thing, something."""
    LINK = auto()
    """May stand between an object and its colour: the chair *that is* red."""
    VERB = auto()
    DENIAL = auto()
    CONTRAST = auto()
    """Ends a denial: not the box *but* the ball."""
    RELATION = auto()
    AND = auto()
    OR = auto()
    PAUSE = auto()
    END = auto()
    LEAD = auto()
    """May stand before the verb of a new clause: *please* go."""
    COMMON = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class _Token:
    kind: _Kind
    value: str
    """The name in the vocabulary, or the relation; else the word as it was written, without accents."""
    word: str


_NAMES = (_Kind.COLOUR, _Kind.CLASS, _Kind.UNKNOWN_NAME)

VERBS = """
approach bring come drive enter explore fetch find finding follow get give go going head hunt lead leave locate look
looking move navigate reach return run search searching see seek show stand stop take travel turn wait walk want need
where wheres help
finde finden find such suche suchen geh gehe gehen lauf laufe fahr fahre komm bring bringe zeig zeige will brauche
mochte wo hol hole nimm
trouve trouver trouvez cherche chercher cherchez va vas aller allez amene montre veux voudrais conduis
busca buscar encuentra encontrar ve ir camina lleva llevame muestra muestrame quiero necesito donde dirigete
找 找到 去 到 走 看 看到 带 带我 寻找 前往 需要 想要 要 拿 给我
"""
"""Verbs, and words of questions, that begin a clause."""

AHEAD = "ahead"
DENIALS_AHEAD = """
without except excepting excluding instead_of rather_than other_than apart_from aside_from away_from far_from
distance_from clear_of out_of
ohne ausser statt anstatt weg_von weg_vom fern_von sans sauf hormis excepte loin_de loin_du a_part au_lieu_de plutot_que
sin salvo menos excepto lejos_de aparte_de en_vez_de en_lugar_de 除了 避开 远离
"""
"""Words of denial that always stand ahead of what they deny, as DENIALS need not."""
DOUBTFUL = "doubtful"
DOUBTFUL_DENIALS = """
wrong forbidden prohibited banned nope nah no_the no_a no_an no_i no_wait no_sorry no_rather
verboten nein in_ruhe interdit non prohibido 除外 不对
"""
"""Words of denial that may as well correct what was before them: 'the red ball, no the blue one'."""
DENIALS = """
not dont donot doesnt didnt isnt arent wasnt wont wouldnt shouldnt couldnt mustnt cannot cant neednt never no none
neither nor nothing avoid avoiding ignore ignoring skip skipping exclude forget
forgetting refuse reject refrain cancel abort quit hate dislike flee escape evade dodge shun bypass omit leave beware
unless against minus hide nt aint havent hasnt hadnt
keep_away stay_away go_away move_away walk_away run_away anything_but everything_but
any_object_but anything_else_than anywhere_but everywhere_but all_but
keep_off stay_off hands_off back_off
stop_looking stop_searching stop_finding stop_going stop_walking stop_moving stop_running stop_approaching
stop_following stop_heading stop_navigating
nicht nichts kein keine keinen keinem keiner keines nie niemals weder vermeide meide
vermeiden meiden ignoriere umgehe vergiss hor_auf hoer_auf
ne n pas jamais aucun aucune rien ni evite evitez eviter ignore oublie arrete_de
nunca jamas tampoco ningun ninguna ninguno nada evita evitar ignora olvida
alejate deja_de para_de
不 不要 不是 不想 不用 不能 不可 不许 不得 别 別 没 沒 没有 勿 莫 非 无 避免 除 忽略 停止 拒绝 取消
"""
"""Words that deny what they stand with; an underscore joins the words of a phrase."""

IDIOMS = """
if_you_dont_mind if_you_do_not_mind wouldnt_mind dont_mind why_dont_you why_dont_we cant_you couldnt_you wont_you
wouldnt_you isnt_there dont_worry do_not_worry no_problem no_rush no_hurry nothing_but nothing_else_but none_but
nothing_except nothing_other_than no_other_than out_of_the_way_to i_cannot_find i_cant_find i_cannot_see i_cant_see
i_can_not_find i_can_not_see i_could_not_find i_couldnt_find i_dont_know_where i_do_not_know_where dont_forget_to
do_not_forget_to how_far ich_bin bin_ich
能不能 可不可以 是不是 有没有 行不行 好不好 不好意思 找不到 看不到 看不见 不知道 明白
"""
"""Phrases with a word of denial that deny nothing; they are as if they were not there."""

CONTRASTS = "but sondern mais sino pero aber 而是 但是 但"
RELATIONS = {
    "left of": "left_of to_the_left_of on_the_left_of links_von links_vom links_neben a_gauche_de a_gauche_du "
    "a_la_izquierda_de a_la_izquierda_del",
    "right of": "right_of to_the_right_of on_the_right_of rechts_von rechts_vom rechts_neben a_droite_de a_droite_du "
    "a_la_derecha_de a_la_derecha_del",
    "next to": "next_to beside near nearby close_to closest_to nearest_to by adjacent_to neben bei a_cote_de a_cote_du "
    "pres_de pres_du junto_a junto_al al_lado_de al_lado_del cerca_de cerca_del",
    "behind": "behind hinter derriere detras_de detras_del",
    "in front of": "in_front_of before vor devant delante_de delante_del frente_a frente_al",
}
UNKNOWN_RELATIONS = """
on_top_of on under below above inside between beyond opposite auf unter uber zwischen sur sous dans entre sobre
debajo_de dentro_de encima_de 左边 右边 左侧 右侧 旁边的 后面 前面 上面 下面 里面
"""
"""Where something is in words that no model was trained on."""

HEADS = """
one ones thing things object objects item items something anything it
etwas ding dinge gegenstand objekt eine einen eines
chose choses objet objets celui celle quelque
cosa cosas algo objeto objetos
东西 物体
"""
LINKS = """
to for a an the this that these those which who is are its in of with colour color coloured colored painted very
zu zum zur nach der die das den dem des ein einem einer ist sind welche welcher welches mit farbe
vers au aux le la les l un une des du de d qui est sont en couleur
hacia al el los las lo una unos unas que es esta son del color
的 是 一 个 那 这 那个 这个 一个 只 把 张 盏 颗 株 棵 台
"""
LEADS = "please then now just instead rather so i you we lets me bitte ich du dann je moi tu por favor yo 请 我 你 就"

COMMON = """
at from into onto over up down out there here somewhere anywhere around about as close closer possible can could
would will shall should may might must do does did have has had be been being am was were if when while because since
until after soon quickly quick fast slowly carefully immediately again also too only either both all any some every
each another other others same mine my your our their his her him us them they he she what whats how why hey hi hello
ok okay yes mate buddy friend sir thanks thank much kindly kind nice good great asap today tonight ahead straight right
left back forward front standing lying sitting placed located named called like know think try trying let make sure keep
way more most really id im ive youre thats theres got lot ever even
alles alle allen allem mal doch jetzt dort da hier an am im dich mir mich uns kannst konntest wurdest hatte gerne
gern danke dir sehen nahe nah so wie moglich hin ran zwar auch nur noch schnell mein meine meinen meiner dein deine
deinen deiner sein seine klein kleine kleinen kleiner kleines grosse grossen grosser grosses
s il tout toute tous toutes te vous plait merci jusqu jusque y peux peut pouvez voir toi chez pour plus avec ici nous
j ai besoin puis petit petite grand grande c t m qu
gracias todo toda todos todas hasta puedes ver me ahora aqui alli ahi para con pequeno pequena tu mi
在 在哪里 在哪 哪里 哪儿 哪 那里 那边 这里 吗 呢 吧 啊 了 过 过去 旁边 帮 帮我 能 可以 麻烦 谢谢 里 上 下 一下 到 它 他
她 有 快 快点 想 从 往 向
"""
"""Frequent words that name nothing and deny nothing; one may stand behind an object's name."""
STOPS = """
stop halt freeze hold whoa abort cancel quit stop_it stop_there stop_here stop_moving stop_walking stop_the_robot
hold_it hold_still stand_still stay stay_there stay_here stay_put dont_move do_not_move emergency_stop
stopp stoppe anhalten halte_an stehen_bleiben stehenbleiben bleib_stehen bleiben_sie_stehen steh_still nothalt abbrechen
nicht_bewegen beweg_dich_nicht
arrete arretez arrete_toi arretez_vous arret arrete_de_bouger ne_bouge_pas ne_bouge_plus ne_bougez_pas ne_bougez_plus
alto para parate pare detente detengase no_te_muevas no_se_mueva quieto
停 停_下 停_止 停_下_来 停_住 站_住 别_动 不_要_动 取_消
"""
"""All that is said where the robot is to stop; it denies no object and starts no search."""
INSISTENT = """
immediately at once right away sofort jetzt mal doch ya ahora s il te vous plait merci thanks danke gracias robot dog
马 上
"""
"""May stand with an order to stop, as LEADS may."""
LOOK_ALIKES = """
call tall fall mall wall hall bell bill bull bald bale bail gall lamb lump damp camp ramp limp clamp lap amp gone done
bone tone zone code core cope come came cane care case hair hail chain choir chairman plan plane plank planet plans
plate slant battle cattle brittle orator range people yell fellow mellow bellow hollow read bread ready greed greet
greek queen write quite while whine slack block blank back glue clue true bluff blow blur con sliver solver
mottle bolt hot dot pot bot mot tot note nor now nod net nut knot donut lever fever licht
"""
"""Words that are one letter from a name or from a denial, and are neither."""
ANDS, ORS = "and und et y e 和 跟 以及 与", "or oder ou o u 或 或者 还是"
_APOSTROPHES = dict.fromkeys(map(ord, "’‘`´ʼ＇"), "'")
_CONTRACTED = frozenset(("t", "d", "s", "m", "ll", "re", "ve"))
_PAUSES, _ENDS, _OR_SIGNS, _AND_SIGNS = frozenset(',:()[]、–—"«»“”„'), frozenset(".;!?¡¿。\n…"), "/|", "&+"


_POLITE = frozenset(f"{LEADS} {INSISTENT}".split())


def _plain_order(words: Iterable[str]) -> str:
    """Return the words of an order, joined, without signs, repetitions, and words that only insist or are polite."""
    plain = [word for word in words if word.isalnum() and word not in _POLITE]
    return "_".join(word for place, word in enumerate(plain) if word not in plain[:place])


def _is_ideograph(letter: str) -> bool:
    return "\u3400" <= letter <= "\u9fff"


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case without accents, each ideograph and each sign as a word of its own."""
    plain = unicodedata.normalize("NFKD", text.translate(_APOSTROPHES).casefold())
    plain = "".join(each for each in plain if unicodedata.category(each) not in ("Mn", "Cf"))
    words, word = list[str](), ""
    for place, letter in enumerate(plain):
        if letter.isalnum() and not _is_ideograph(letter):
            word += letter
            continue
        after = plain[place + 1 :].partition(" ")[0]
        if letter == "'" and word and after[:1].isalpha():
            run = "".join(_leading_letters(after))
            if run in _CONTRACTED or len(word) > 2:
                continue
        if word:
            words.append(word)
        word = ""
        dash = letter == "-" and plain[place - 1 : place].isspace()
        if _is_ideograph(letter) or letter in _ENDS or letter in _OR_SIGNS + _AND_SIGNS:
            words.append(letter)
        elif letter in _PAUSES or dash:
            words.append(",")
    return [*words, word] if word else words


def _leading_letters(text: str) -> Iterator[str]:
    for letter in text:
        if not letter.isalpha():
            return
        yield letter


_STOP_ORDERS = frozenset(_plain_order(order.split("_")) for order in STOPS.split())


class _Lexicon:
    """What each word and each phrase is, for one list of objects."""

    _MISSPELT_DENIALS = (
        "not", "dont", "never", "avoid", "without", "except", "cannot", "ignore", "nicht", "keine", "kein", "ohne",
        "jamais", "nunca",
    )  # fmt: skip

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._senses: dict[tuple[str, ...], tuple[_Kind, str]] = {}
        self._names: list[tuple[str, int, tuple[_Kind, str]]] = []
        for kind, listed in (
            (_Kind.COMMON, COMMON),
            (_Kind.UNKNOWN, LOOK_ALIKES),
            (_Kind.LEAD, LEADS),
            (_Kind.LINK, LINKS),
            (_Kind.HEAD, HEADS),
            (_Kind.VERB, VERBS),
            (_Kind.RELATION, UNKNOWN_RELATIONS),
            (_Kind.AND, ANDS),
            (_Kind.OR, ORS),
            (_Kind.CONTRAST, CONTRASTS),
            (_Kind.DENIAL, DENIALS),
            (_Kind.COMMON, IDIOMS),
        ):
            for entry in listed.split():
                self._add(entry.replace("_", " "), kind, "")
        for value, listed in ((AHEAD, DENIALS_AHEAD), (DOUBTFUL, DOUBTFUL_DENIALS)):
            for entry in listed.split():
                self._add(entry.replace("_", " "), _Kind.DENIAL, value)
        for relation, listed in RELATIONS.items():
            for entry in listed.split():
                self._add(entry.replace("_", " "), _Kind.RELATION, relation)
        if vocabulary is not None:
            self._add_names(vocabulary)
        for kind, signs in ((_Kind.PAUSE, ","), (_Kind.END, _ENDS), (_Kind.OR, _OR_SIGNS), (_Kind.AND, _AND_SIGNS)):
            for sign in signs:
                self._senses[(sign,)] = (kind, "")
        self._longest = max(map(len, self._senses))

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, vocabulary: Vocabulary | None) -> _Lexicon:
        """Return the lexicon of a list of objects; without one it has no names."""
        return cls(vocabulary)

    def tokens(self, text: str) -> list[_Token]:
        """Return a text's words and phrases, the longest known phrase first. Raises _Unclear for a doubtful name."""
        words, tokens, place = _words(text), list[_Token](), 0
        while place < len(words):
            for length in range(min(self._longest, len(words) - place), 0, -1):
                run = tuple(words[place : place + length])
                sense = self._senses.get(run)
                if sense is not None:
                    break
            else:
                run = (words[place],)
                sense = self._nearest(run[0])
            tokens.append(_Token(*sense, " ".join(run)))
            place += len(run)
        return tokens

    def _add(self, entry: str, kind: _Kind, value: str) -> None:
        self._senses[tuple(_words(entry))] = (kind, value)

    def _add_names(self, vocabulary: Vocabulary) -> None:
        names = [
            (_Kind.COLOUR, vocabulary.colours, list(COLOURS[Language.ENGLISH]), words_of_colour),
            (_Kind.CLASS, vocabulary.classes, list(CLASSES[Language.ENGLISH]), words_of_class),
        ]
        for word in OTHER_COLOURS:
            self._add_name(word, _Kind.UNKNOWN_NAME, word, FOREIGN_LETTERS)
        for kind, known, every, words_of in names:
            # First what the model does not know, so that a word which is also the name of something known means that.
            for name in sorted(dict.fromkeys([*every, *known]), key=lambda each: each in known):
                for word in words_of(name):
                    self._add_name(word, kind if name in known else _Kind.UNKNOWN_NAME, name, FOREIGN_LETTERS)
        for kind, known, _, _ in names:
            for name in known:
                ending = "es" if name.endswith(("s", "x", "ch", "sh")) else "s"
                for word in (name, name + ending) if kind is _Kind.CLASS else (name,):
                    self._add_name(word, kind, name, MISSPELT_LETTERS)

    def _add_name(self, word: str, kind: _Kind, value: str, least: int) -> None:
        self._add(word, kind, value)
        for plain in _words(word) if len(_words(word)) == 1 else ():
            self._names.append((plain, least, (kind, value)))

    def _nearest(self, word: str) -> tuple[_Kind, str]:
        """Return what a word that is in no table may be with one letter right."""
        if len(word) > 2 and any(_one_edit(word, each) for each in self._MISSPELT_DENIALS):
            return _Kind.DENIAL, ""
        near = {
            sense
            for name, least, sense in self._names
            if len(name) >= least and _one_edit(word, name) and (least < FOREIGN_LETTERS or word[0] == name[0])
        }
        if len(near) > 1:
            raise _Unclear(f"has the word {word!r}, which could be {' or '.join(sorted(value for _, value in near))}")
        return next(iter(near), (_Kind.UNKNOWN, ""))


def _one_edit(word: str, name: str) -> bool:
    """Return whether one letter less, more or other, or two neighbours swapped, make one word of the other."""
    if abs(len(word) - len(name)) > 1:
        return False
    first = next((at for at, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), min(len(word), len(name)))
    rest, other = word[first:], name[first:]
    while rest and other and rest[-1] == other[-1]:
        rest, other = rest[:-1], other[:-1]
    return max(len(rest), len(other)) <= 1 or (len(rest) == 2 and rest == other[::-1])


@dataclass
class _Mention:
    """One naming of an object."""

    colour: str
    object_class: str
    end: int
    """Behind its last word."""
    relation: str = ""
    """Where it is only named to say where another one is: the word for that."""


def _understand(instruction: str, vocabulary: Vocabulary) -> Understood:
    positive, denied = list[_Mention](), list[tuple[str, str]]()
    joined = False
    for sentence in _split(_Lexicon.of(vocabulary).tokens(instruction), _Kind.END):
        for tokens, is_denied in _scopes(sentence):
            mentions = _mentions(tokens, strict=not is_denied)
            if is_denied:
                denied += [(each.colour, each.object_class) for each in mentions]
                continue
            positive += mentions
            joined |= len(mentions) > 1 and any(token.kind in (_Kind.AND, _Kind.OR) for token in tokens)
    asked = [each for each in positive if not each.relation]
    if not asked:
        if denied:
            named = " and ".join(dict.fromkeys(_the(*each) for each in denied))
            raise _Unclear(f"only excludes {named}; name what is to be found instead")
        raise _Unclear("names no known object")
    colour, object_class = _one(asked, joined)
    excluded = tuple(dict.fromkeys(denied))
    for each in excluded:
        _check_excluded(each, colour, object_class)
    others = [each for each in positive if each.relation]
    relation = Relation(others[0].relation, others[0].colour, others[0].object_class) if others else None
    if len({(each.relation, each.colour, each.object_class) for each in others}) > 1:
        raise _Unclear("says where the object is by more than one other object")
    understood = Understood(colour, object_class, relation, excluded)
    # Models of the form before were only trained to find one colour and one class.
    if vocabulary.form < SEARCH_FORM:
        _check_one_object(understood, vocabulary)
    return understood


def _split(tokens: Iterable[_Token], kind: _Kind) -> list[list[_Token]]:
    parts: list[list[_Token]] = [[]]
    for token in tokens:
        if token.kind is kind:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _names(tokens: Iterable[_Token]) -> bool:
    return any(token.kind in _NAMES for token in tokens)


def _scopes(sentence: Sequence[_Token]) -> Iterator[tuple[list[_Token], bool]]:
    """Yield the stretches of a sentence, and whether each is denied.

    A denial covers what comes behind it, across commas too: it ends at a contrast, or at a comma where a new clause
    begins with a verb. With nothing named behind it in its part, it covers what is before it there, as in German. Where
    it could be either, it covers the whole sentence. Raises _Unclear for a denial of nothing that is named.
    """
    if not any(token.kind is _Kind.DENIAL for token in sentence) and not _names(sentence):
        yield list(sentence), False
        return
    has_or = any(token.kind is _Kind.OR for token in sentence)
    denied = named = everything = False
    stretches: list[tuple[list[_Token], bool]] = []
    for part in _split(sentence, _Kind.PAUSE):
        first = next((token.kind for token in part if token.kind not in (_Kind.LEAD, _Kind.AND)), None)
        if denied and named and not has_or and first is _Kind.VERB:
            denied = named = False
        current: list[_Token] = []
        for place, token in enumerate(part):
            rest = list(_until(part[place + 1 :], _Kind.CONTRAST))
            exception = token.kind is _Kind.CONTRAST and not denied and _is_exception(part, place)
            if (token.kind is _Kind.DENIAL and not denied) or exception:
                doubtful = token.value == DOUBTFUL
                forward = not doubtful and _is_forward(current, rest, exception or token.value == AHEAD)
                backward = not doubtful and _is_backward(current, rest)
                everything = everything or not (forward or backward)
                stretches.append((current, backward))
                named = named or backward
                current, denied = [], True
            elif token.kind is _Kind.CONTRAST and denied:
                stretches.append((current, True))
                current, denied, named = [], False, False
            else:
                named = named or (denied and token.kind in _NAMES)
                current.append(token)
        stretches.append(([*current, _Token(_Kind.PAUSE, "", ",")], denied))
    if everything:
        if not _names(sentence):
            raise _Unclear("denies something without a name")
        stretches = [(tokens, True) for tokens, _ in stretches]
    yield from _joined(stretches)


def _is_forward(before: Sequence[_Token], behind: Sequence[_Token], ahead: bool) -> bool:
    """Whether a denial between these words of a part denies what is behind it, and that alone.

    With a name before it too, as in 'the ball is not what I want find the box', only a denial next to a name, one that
    begins a clause, or one that always stands ahead is clear.
    """
    if not _names(behind):
        return False
    gap = [token.kind for token in behind[: next(at for at, token in enumerate(behind) if token.kind in _NAMES)]]
    if _Kind.AND in gap or _Kind.OR in gap:
        return False
    if not _names(before) or ahead or all(kind is _Kind.LINK for kind in gap):
        return True
    lead = next((t.kind for t in reversed(before) if t.kind not in (_Kind.LEAD, _Kind.LINK, _Kind.COMMON)), None)
    return lead in (_Kind.AND, _Kind.CONTRAST) and gap.count(_Kind.VERB) < 2


def _is_backward(before: Sequence[_Token], behind: Sequence[_Token]) -> bool:
    """Whether a denial denies what is right before it: nothing is named behind it, and nothing stands between."""
    if _names(behind) or not _names(before):
        return False
    last = next(token.kind for token in reversed(before) if token.kind not in (_Kind.LINK, _Kind.LEAD))
    return last in _NAMES


def _joined(stretches: Iterable[tuple[list[_Token], bool]]) -> Iterator[tuple[list[_Token], bool]]:
    """Yield neighbours of one kind as one stretch: a comma does not part a colour from its object."""
    run: list[_Token] = []
    kind = False
    for tokens, denied in stretches:
        if denied is not kind and run:
            yield run, kind
            run = []
        run, kind = [*run, *tokens], denied
    if run:
        yield run, kind


def _until(tokens: Iterable[_Token], kind: _Kind) -> Iterator[_Token]:
    for token in tokens:
        if token.kind is kind:
            return
        yield token


def _is_exception(part: Sequence[_Token], place: int) -> bool:
    """Whether a contrast excludes what follows it: 'any bottle but the red one'."""
    for token in part[place + 1 :]:
        if token.kind in (_Kind.VERB, _Kind.DENIAL):
            return False
        if token.kind in _NAMES:
            return True
    return False


def _mentions(tokens: Sequence[_Token], strict: bool) -> list[_Mention]:
    """Return what is named, in order. Raises _Unclear, if `strict`, where a name belongs to something unknown."""
    mentions: list[_Mention] = []
    relation = ""
    for place, token in enumerate(tokens):
        last = mentions[-1] if mentions else None
        gap = tokens[last.end : place] if last is not None else ()
        if token.kind is _Kind.UNKNOWN_NAME and strict:
            raise _Unclear(f"names no known object: {token.word!r} is not known")
        if token.kind is _Kind.RELATION and mentions:
            relation = _relation(tokens, place, strict)
        elif token.kind is _Kind.COLOUR:
            fits = all(each.kind in (_Kind.LINK, _Kind.HEAD, _Kind.PAUSE) for each in gap)
            alone = not _leads_to_class(tokens, place)
            if last is not None and last.object_class and not last.colour and fits and alone:
                last.colour, last.end = token.value, place + 1
            else:
                mentions.append(_Mention(token.value, "", place + 1, relation))
                relation = ""
            if strict and alone:
                _check_colour(tokens, place)
        elif token.kind is _Kind.CLASS:
            near = len(gap) <= ADJECTIVES and all(each.kind in (_Kind.UNKNOWN, _Kind.LINK) for each in gap)
            if last is not None and last.colour and not last.object_class and near and _is_plain(gap):
                last.object_class, last.end = token.value, place + 1
            else:
                mentions.append(_Mention("", token.value, place + 1, relation))
                relation = ""
            after = tokens[place + 1] if place + 1 < len(tokens) else None
            if strict and after is not None and after.kind is _Kind.UNKNOWN:
                raise _Unclear(f"names {token.word + ' ' + after.word!r}, which is not known")
    return mentions


def _is_plain(gap: Sequence[_Token]) -> bool:
    """Whether a colour and a class belong together: adjectives between them, in Chinese a particle, but no article."""
    return all(token.kind is _Kind.UNKNOWN or _is_ideograph(token.word[0]) for token in gap)


def _leads_to_class(tokens: Sequence[_Token], place: int) -> bool:
    """Whether the colour at `place` belongs to a class behind it."""
    for gap, token in enumerate(tokens[place + 1 :]):
        if token.kind is _Kind.CLASS:
            return gap <= ADJECTIVES and _is_plain(tokens[place + 1 : place + 1 + gap])
        if token.kind not in (_Kind.UNKNOWN, _Kind.LINK):
            return False
    return False


def _check_colour(tokens: Sequence[_Token], place: int) -> None:
    """Raise _Unclear where a colour that has no class is the colour of something unknown."""
    after = tokens[place + 1] if place + 1 < len(tokens) else None
    before = next((token for token in reversed(tokens[:place]) if token.kind is not _Kind.LINK), None)
    for other in (after, before):
        if other is not None and other.kind is _Kind.UNKNOWN:
            named = f"{tokens[place].word!r} stands with {other.word!r}"
            raise _Unclear(f"names no known object: {named}, which is not known")


def _relation(tokens: Sequence[_Token], place: int, strict: bool) -> str:
    """Return where the last object is by the one that comes; empty where it is by nobody or by a person."""
    relation = tokens[place]
    following = [token for token in tokens[place + 1 :] if token.kind is not _Kind.LINK][: ADJECTIVES + 1]
    first = following[0].kind if following else _Kind.END
    is_named = _names(following)
    if not strict or first not in (*_NAMES, _Kind.UNKNOWN, _Kind.HEAD) or (first is _Kind.HEAD and not is_named):
        return ""
    if not is_named:
        raise _Unclear(f"names no known object behind {relation.word!r}")
    if not relation.value:
        raise _Unclear(f"has {relation.word!r}, which is not known; known are {', '.join(RELATIONS)}")
    return relation.value


def _one(asked: Sequence[_Mention], joined: bool) -> tuple[str, str]:
    """Return the one object that all mentions name. Raises _Unclear where they name several."""
    colours = dict.fromkeys(each.colour for each in asked if each.colour)
    classes = dict.fromkeys(each.object_class for each in asked if each.object_class)
    whole = any(each.colour and each.object_class for each in asked)
    if len(colours) > 1 or len(classes) > 1 or (colours and classes and joined and not whole):
        named = ", ".join(dict.fromkeys(_the(each.colour, each.object_class) for each in asked))
        raise _Unclear(f"names more than one object ({named})")
    return next(iter(colours), ""), next(iter(classes), "")


def _check_excluded(excluded: tuple[str, str], colour: str, object_class: str) -> None:
    pairs = tuple(zip(excluded, (colour, object_class), strict=True))
    if any(other and mine and other != mine for other, mine in pairs):
        return
    if all(not other or other == mine for other, mine in pairs):
        raise _Unclear(f"asks for {_the(colour, object_class)} and excludes it")
    raise _Unclear(f"excludes {_the(*excluded)} among others that are asked for; name the colour and the object")


def _check_one_object(understood: Understood, vocabulary: Vocabulary) -> None:
    """Raise _Unclear for what a model that knows one colour and one class per prompt cannot be asked."""
    colour, object_class = understood.colour, understood.object_class
    example = f"find the {colour or vocabulary.colours[-1]} {object_class or vocabulary.classes[0]}"
    if not colour or not object_class:
        missing = "object" if colour else "colour"
        raise _Unclear(f"names no {missing}, and this model needs one; name the {missing} too, e.g. {example!r}")
    if understood.relation is not None:
        raise _Unclear(f"has {understood.relation.text!r}, which this model cannot be asked; leave it out: {example!r}")
