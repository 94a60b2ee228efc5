"""Quantities: a value, separated from its unit, its currency and the words of size that multiply it."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMES = {
    "m": "m meter metre meters metres mtr",
    "cm": "cm centimeter centimetre centimeters centimetres cms",
    "mm": "mm millimeter millimetre millimeters millimetres",
    "km": "km kilometer kilometre kilometers kilometres kms",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yds yard yards",
    "mile": "mi mile miles",
    "g": "g gram grams gm gms gramme grammes",
    "kg": "kg kgs kilogram kilograms kilo kilos",
    "mg": "mg milligram milligrams",
    "ton": "t ton tons tonne tonnes",
    "pound": "pound pounds lb lbs gbp",
    "ounce": "oz ounce ounces",
    "liter": "l liter litre liters litres",
    "ml": "ml milliliter millilitre milliliters millilitres",
    "gallon": "gal gallon gallons",
    "second": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "euro": "euro euros eur",
    "rupee": "rupee rupees rs inr",
    "yen": "yen jpy",
    "degree": "degree degrees deg",
    "radian": "rad radian radians",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
    "kelvin": "k kelvin kelvins",
    "am": "am",
    "pm": "pm",
    "newton": "n newton newtons",
    "joule": "j joule joules",
    "watt": "w watt watts",
    "volt": "v volt volts",
    "ampere": "a amp amps ampere amperes",
    "hertz": "hz hertz",
    "pascal": "pa pascal pascals",
    "mole": "mol mole moles",
    "ohm": "ohm ohms",
    "bit": "bit bits",
    "byte": "byte bytes",
    "mph": "mph",
    "unit": "unit units",
    "acre": "acre acres",
    "hectare": "ha hectare hectares",
}
_UNITS = {word: name for name, words in _NAMES.items() for word in words.split()}
_COMPOUND = {
    "mph": {"mile": 1, "hour": -1},
    "kmph": {"km": 1, "hour": -1},
    "kmh": {"km": 1, "hour": -1},
    "kph": {"km": 1, "hour": -1},
    "mps": {"m": 1, "second": -1},
    "cc": {"cm": 3},
    "sqft": {"foot": 2},
}
_WHOLE_SIZES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
SIZES: dict[str, int | Fraction] = {
    **{word: size for name, size in _WHOLE_SIZES.items() for word in (name, f"{name}s")},
    "tenths": Fraction(1, 10),
    "hundredths": Fraction(1, 100),
    "thousandths": Fraction(1, 1000),
    "millionths": Fraction(1, 10**6),
}
_PERCENT = ("percent", "percentage", "pct", "percents")
KNOWN = frozenset(_UNITS) | frozenset(_COMPOUND) | frozenset(SIZES) | frozenset(_PERCENT) | {"sq", "cu"}
"""Words that are always units after a number."""
_SIGNS = r"dollar \$ $ usd us, euro € \euro \texteuro eur, pound £ \pounds gbp, yen ¥ jpy, rupee ₹ rs inr, cent ¢"
_CURRENCIES = {sign: name for name, *signs in map(str.split, _SIGNS.split(",")) for sign in signs}
_FILLERS = word_set(
    "a an the of in each total altogether about approximately exactly roughly only left remaining s es approx exact"
)
_OTHER_ANSWER = word_set(
    "or and not no more less fewer least most greater over under above below beyond except than plus minus times to"
    " between r remainder mod modulo never neither nor if unless from up off base is are was any all where for with"
    " when given such"
)
"""Words after a number that change the answer, or make it none: 5 or more, 3 R 1."""
_FUNCTIONS = word_set(
    "sin cos tan cot sec csc log ln lg exp sqrt pi theta alpha beta gamma inf infinity arcsin arccos arctan sinh cosh"
    " tanh max min gcd lcm det mod bmod and or if abs floor ceil"
)
SINGLE_LETTERS = frozenset("mgshlLNJWVKCFAt")
"""Letters that name a unit in upright type after a number."""

_AREAS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}
_WORDS = re.compile(r"[A-Za-z][A-Za-z.']*|/|\^?-?[0-9]+")

_PURPOSE = re.compile(r"(?<=[a-z])\s+to\s+[a-z].*\Z", re.DOTALL)
_TEXT = r"\\(?:text\w{0,4}|mathrm|mathit|mathsf|mathbf|operatorname|mbox)\s*\{([^{}]*)\}"
_POWER = r"(?:\s*\^\s*(?:\{\s*(-?[0-9])\s*\}|([0-9])))?"
_TEXT_UNIT = re.compile(rf"(/|\\cdot|\\times|\*)?\s*(?:{_TEXT}|\{{\\rm\s+([^{{}}]*)\}}){_POWER}\s*$")
_FRACTION_UNIT = re.compile(rf"\\frac\s*\{{\s*{_TEXT}{_POWER}\s*\}}\s*\{{\s*{_TEXT}{_POWER}\s*\}}\s*$")
_SIGN_UNIT = re.compile(
    r"(\\?%|\\\$|\$|€|£|¥|₹|¢|\\euro|\\pounds|\^\s*\\circ(?:\s*([CF])|\s*\\(?:text|mathrm)\{\s*([CF])\s*\})?)\s*$"
)
_WORD_UNIT = re.compile(
    r"(?<=[0-9}\s)])(?<!\\)((?:[A-Za-z][A-Za-z.]*\s+){0,3}[A-Za-z][A-Za-z.']*(?:/[A-Za-z]+)?)(?:\^\{?([0-9])\}?|([23]))?\s*$"
)
_BARE_LETTER = re.compile(r"([-+]?[0-9.]+|[-+]?\\frac\{[0-9]+\}\{[0-9]+\})\s*([mgshL])(?:\^\{?([23])\}?)?")
_BEFORE = re.compile(
    r"^([-+]?)\s*(?:(?:\\text\w{0,4}|\\mathrm|\\mbox)\s*\{\s*(rs|usd|us|inr|eur|gbp|jpy)?\s*\.?\s*(\\?\$|€|£|¥|₹)?\s*\}|(rs|usd|us|inr|eur|gbp|jpy)?\.?\s*"
    r"(\\\$|\$|€|£|¥|₹|\\euro|\\pounds|\\texteuro)?)\s*(?=[-+0-9.\\({])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Quantity:
    value: str
    """The value in LaTeX, without unit and words of size."""
    factor: Fraction = Fraction(1)
    is_percent: bool = False
    measures: frozenset[tuple[str, int]] = frozenset()
    """Units of measure and their powers."""
    nouns: frozenset[str] = frozenset()
    """Other words after the value, in the singular."""
    is_number: bool = True
    """False if words change the answer: 5 or more."""


@dataclass
class _Tail:
    """The words after a value, read from the right."""

    factor: Fraction = Fraction(1)
    is_percent: bool = False
    measures: Counter[str] = field(default_factory=Counter)
    nouns: set[str] = field(default_factory=set)
    is_number: bool = True


def quantity(latex: str) -> Quantity:
    """Splits an answer. If the whole answer is text, the text is its value."""
    tail = _Tail()
    value = _without_currency(latex, tail)
    for _ in range(6):
        shorter = _shortened(value.rstrip(), tail)
        if shorter is None:
            break
        value = shorter
    measures = frozenset((name, power) for name, power in tail.measures.items() if power)
    if unit := latex[len(value) :].strip() if latex.startswith(value) else "":
        value = value.replace(f"{unit},", ",")  # 3 cm, 4 cm.
    value = value.strip().removesuffix("\\").rstrip()
    return Quantity(value, tail.factor, tail.is_percent, measures, frozenset(tail.nouns), tail.is_number)


def with_bare_unit(each: Quantity) -> Quantity | None:
    """Returns the quantity with its last letter as a unit, for a number and "m", "s", "g", "h" or "L"; else None."""
    found = _BARE_LETTER.fullmatch(each.value)
    if not found or each.measures or each.nouns:
        return None
    return replace(each, value=found[1], measures=frozenset({(_UNITS[found[2].lower()], int(found[3] or 1))}))


def are_other_units(one: Quantity, other: Quantity) -> bool:
    """Returns whether both have units and these differ. A quantity without a unit may have any unit."""
    if one.measures and other.measures:
        return one.measures != other.measures and not _is_generic(one, other)
    if one.nouns and other.nouns and not (one.measures or other.measures):
        return not one.nouns & other.nouns
    return bool((one.measures and other.nouns) or (other.measures and one.nouns))


def _is_generic(one: Quantity, other: Quantity) -> bool:
    """Returns whether either uses the word "units", and the powers are the same."""
    names = [{name for name, _ in each.measures} for each in (one, other)]
    powers = [sorted(power for _, power in each.measures) for each in (one, other)]
    return {"unit"} in names and powers[0] == powers[1]


def _without_currency(latex: str, tail: _Tail) -> str:
    found = _BEFORE.match(latex)
    name = found and next((group for group in found.groups()[1:][::-1] if group), None)
    if not found or not name:
        return latex
    tail.measures[_CURRENCIES[name.lower()]] = 1
    return found[1] + latex[found.end() :]


def _shortened(value: str, tail: _Tail) -> str | None:
    """Moves the last unit of a value to the tail. Returns the rest of the value; None if it has no unit."""
    if found := _SIGN_UNIT.search(value):
        return _without_sign(value, found, tail)
    if found := _FRACTION_UNIT.search(value):
        top, top_power, top_digit, bottom, power, digit = found.groups()
        head = value[: found.start()]
        if not _is_value(head):
            return None
        _add(top, int(top_power or top_digit or 1), tail)
        _add(bottom, -int(power or digit or 1), tail)
        return head
    if found := _TEXT_UNIT.search(value):
        operator, text, roman, power, digit = found.groups()
        head = value[: found.start()]
        words = re.sub(r"\\(?:cdot|times|[,;: ])", " ", text or roman or "")
        is_behind_unit = bool(_TEXT_UNIT.search(head) or _WORD_UNIT.search(head))
        if not _is_value(head) or (operator == "/" and not is_behind_unit):
            return None
        if not is_behind_unit and _is_letter(words, text or roman or "", head):
            return None
        _add(words, int(power or digit or 1) * (-1 if operator == "/" else 1), tail)
        return head
    if found := _WORD_UNIT.search(value):
        return _without_words(value, found, tail)
    return None


def _without_sign(value: str, found: re.Match[str], tail: _Tail) -> str | None:
    head = value[: found.start()]
    sign = found[1]
    if not head.strip() or (sign.endswith("%") and "," in head):
        return None
    if sign.endswith("%"):
        tail.is_percent = True
    elif sign.startswith("^"):
        scale = found[2] or found[3]
        tail.measures[{"C": "celsius", "F": "fahrenheit"}.get(scale, "degree") if scale else "degree"] = 1
    else:
        tail.measures[_CURRENCIES[sign]] = 1
    return head


def _without_words(value: str, found: re.Match[str], tail: _Tail) -> str | None:
    words, head = found[1], value[: found.start()]
    if head[-1:].isalpha():
        return None
    is_glued = head[-1:].isdigit() or head.endswith("}")
    first = words.split()[0].lower().rstrip(".")
    if "\\" in words or not any(character.isdigit() or character == "}" for character in head[-6:]):
        return None
    parts = [part.lower().strip(".") for part in re.split(r"[\s/]+", words)]
    if _FUNCTIONS & set(parts) - {"and", "or"}:
        return None
    if is_glued and first.replace(".", "") not in KNOWN:
        return None
    if any(
        len(part) < 3 and part.replace(".", "") not in KNOWN and part not in _FILLERS | _OTHER_ANSWER for part in parts
    ):
        return None
    if len(first) == 1 and (is_glued or len(parts) == 1):
        return None
    _add(words, int(found[2] or found[3] or 1), tail)
    return head


def _is_letter(words: str, text: str, head: str) -> bool:
    """Returns whether upright text is a letter of the formula, as in 2\\mathrm{i}, rather than a unit."""
    letter = words.strip()
    if len(letter) != 1 or not letter.isalpha():
        return False
    is_apart = text.startswith((" ", "~", "\\")) or head.endswith(" ")
    return letter not in SINGLE_LETTERS or not (is_apart or head.rstrip()[-1:].isdigit())


def _is_value(head: str) -> bool:
    return any(character.isalnum() for character in head) and head.rstrip()[-1:] not in tuple("+-=<>,(/^_{")


def _add(words: str, power: int, tail: _Tail) -> None:
    """Adds the words of a unit to the tail: "ways" for "ways to choose them". `power` belongs to the last word."""
    words = _PURPOSE.sub("", words)
    area, sign, name = 1, 1, ""
    for word in _WORDS.findall(words):
        lowered = word.lower().replace(".", "")
        if word == "/" or lowered == "per":
            sign = -1
        elif lowered in _AREAS:
            area = _AREAS[lowered]
        elif lowered in _RAISED or lowered.lstrip("^").removeprefix("-").isdigit():
            # The previous word has already counted once.
            exponent = _RAISED.get(lowered) or int(lowered.lstrip("^"))
            if name:
                tail.measures[name] += sign * (exponent - 1)
            tail.is_number &= bool(name)
        else:
            name = _add_word(lowered, sign * area, tail)
            area = 1
    if name:
        tail.measures[name] += sign * (power - 1)


def _add_word(word: str, power: int, tail: _Tail) -> str:
    """Adds a word; returns its name if it is a unit of measure."""
    if word in SIZES:
        tail.factor *= SIZES[word]
    elif word in _PERCENT:
        tail.is_percent = True
    elif word in _OTHER_ANSWER:
        tail.is_number = False
    elif word in _COMPOUND:
        for name, each in _COMPOUND[word].items():
            tail.measures[name] += each * power
    elif word in _UNITS:
        tail.measures[_UNITS[word]] += power
        return _UNITS[word]
    elif word.isalpha() and word not in _FILLERS:
        tail.nouns.add(word.removesuffix("s") if len(word) > 3 else word)
    return ""
