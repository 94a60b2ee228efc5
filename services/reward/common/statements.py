"""Statements: whether a text states some words, or denies, asks, supposes, quotes or takes them back."""

import re

_BEFORE_CHARACTERS = 120
# The rest of a clause, within which a word governs the words after it.
_CLAUSE = r"(?:(?!\b(?:so|thus|hence|therefore|but|then|because|since|as|and|while)\b)[^.,;:!?\n]){0,60}\Z"
_NOT = r"(?:\b(?:not|never|cannot)|n['’]t)"
_FALSE = (
    r"(?:wrong|incorrect|false|untrue|mistaken|impossible|invalid|nonsense|an?\s(?:mistake|error)"
    r"|not\s(?:\w+\s)?(?:right|correct|true|valid|possible))"
)
_BELIEVE = r"(?:thinks?|thought|says?|said|claim(?:s|ed)?|believe[sd]?|argue[sd]?|guess(?:es|ed)?|insist(?:s|ed)?)"
# Another person, possibly by name. A sentence may begin with a word that looks like a name.
_SOMEBODY = (
    r"\b(?:some|people|students?|many|most|others?|every(?:one|body)|some(?:one|body)|anyone|they|he|she|you|one"
    r"|friends?|teachers?|(?-i:(?!I\b|This\b|That\b|It\b|We\b|So\b|Now\b|Then\b|Thus|Hence|And\b|But\b)[A-Z][a-z]+))"
)
_DENIAL = (
    rf"{_NOT}\s(?:\w+ly\s)?(?:think|believe|say|claim|mean|agree|conclude|follow|imply|true|correct|right|the\scase|sure"
    r"|certain|convinced|possible|likely|that|be\s(?:that|so|true|the\scase))\b"
    r"|(?<!no\s)(?<!without\s)(?<!without\sa\s)(?<!beyond\s)(?<!little\s)\bdoubt(?:s|ed|ful)?\b"
    r"|\b(?:no\slonger|far\sfrom|neither|nor|den(?:y|ies|ied)|refuse[sd]?|reject\w*|refut\w+|disprov\w+|exclud\w+|eliminat\w+"
    r"|rul(?:e|es|ed|ing)\sout)\b"
    r"|\b(?:wrong|incorrect|false|mistake|mistaken|error|misleading|premature|tempt\w+|absurd|impossible|unlikely)"
    r"\s(?:to|that|if|belief|idea)\b"
)
_SUPPOSITION = (
    r"\b(?:if|whether|unless|suppos\w+|assum(?:e|es|ed|ing)|imagine|hypothetically|pretend\w*|let['’]?s\ssay|as\sthough"
    r"|might|seems?|seemed|appears?|appeared|look(?:s|ed)\slike"
    rf"|(?:may|could|would)\s(?:\w+ly\s)?(?:be\stempted|{_BELIEVE}|expect|assume|suggest|conclude|seem|appear|look)"
    r"(?<!\bI\swould\ssay))\b"
)
_QUOTATION = (
    rf"{_SOMEBODY}\s(?:\w+ly\s|often\s|may\s|might\s|will\s)?{_BELIEVE}\b"
    r"|\b(?:ask(?:s|ed|ing)?|wonder\w*|thought\swas|I\s(?:first\s|initially\s|originally\s)?thought)\b"
)
_GOVERNED = re.compile(
    rf"(?:{_DENIAL}|{_SUPPOSITION}|{_QUOTATION}){_CLAUSE}|\bhypothetically\b[^.!?\n]{{0,60}}\Z", re.IGNORECASE
)
# Words that attribute the statement: "the wrong answer is", "not the answer", "were the answer", "students choose".
_OF_ANOTHER = re.compile(
    r"\b(?:wrong|incorrect|false|worst|second|2nd|third|next|runner-up|other|alternative|tempting|trap|distractor"
    r"|unlikely|impossible|invalid|previous|original|earlier|former|old|rejected|excluded|eliminated|bad|poor"
    rf"|least(?:\s\w+)?)(?:[\s-]best)?[\s-]\Z|{_NOT}\s(?:\$|\\\(|(?-i:the|a|an|my|our)\s(?:\w+\s){{0,2}})?\Z"
    r"|\b(?:were|had)\s(?:the|my)\s(?:\w+\s)?\Z|\b(?:her|his|their)\s(?:\w+\s)?\Z"
    r"|\b(?!(?:let|it|that|what|here|there|question|problem|puzzle|exercise|task|quiz)['’])\w+['’]s\s(?:\w+\s)?\Z"
    r"|\b(?:people|students?|others|they|he|she|every(?:one|body)|some(?:one|body))\s"
    r"(?:\w+ly\s|often\s|may\s|might\s|will\s|would\s)?\Z",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"(?:\A|[.!?:;,\n*]\s{0,9}|\b(?:so|but|then|now|well|or)\s)(?:is|isn['’]t|was|are|could|would|can|should|might)\s"
    r"(?:(?:the|your|my|our|it)\s)?(?:\w+\s){0,2}\Z",
    re.IGNORECASE,
)
_REST = re.compile(r"[^.!?\n]{0,200}")
_CLOSED = r"[)\]}*_$\"'”’]{0,9}"
_YES = r"(?:yes|yep|yeah|indeed|correct|right|exactly|sure)"
_OTHERS = r"(?:[,;/\s]{1,3}(?:(?:or|and)\s)?[(\[]?[A-Z][)\]]?(?![A-Za-z])){0,9}"
_ASKED = re.compile(
    rf"{_CLOSED}(?:\s(?:answer|choice|option|one))?(?-i:{_OTHERS})\s{{0,3}}\?(?!\s{{0,3}}{_YES}\b)", re.IGNORECASE
)
_SAID_TO_BE_FALSE = re.compile(
    rf"{_CLOSED},?\s(?:which\s|(?:but|and)\s(?:that|this|it)\s)?(?:is|was|would\sbe|seems|looks)"
    rf"(?:n['’]t\s(?:\w+\s)?(?:right|correct|true|valid|possible)|\s(?:\w+ly\s)?{_FALSE})\b",
    re.IGNORECASE,
)
_WHY = re.compile(r"\bwhy\s(?:\w+\s){0,4}\Z", re.IGNORECASE)
_ANSWERED = re.compile(rf"{_CLOSED}[^.!?\n]{{0,60}}\?\W{{0,9}}(?:because|since|as|due\sto)\b", re.IGNORECASE)
_CONDITION = re.compile(rf"{_CLOSED},?\s(?:only\s|but\sonly\s)?(?:if|unless|provided|assuming|when)\b", re.IGNORECASE)
_SAID_BY = re.compile(rf"{_CLOSED},?\s(?:{_SOMEBODY}\s)?{_BELIEVE}\b", re.IGNORECASE)
_CONDITIONAL = re.compile(r"\b(?:if|in case|were|had)\s[^.!?\n]{1,110},[^.!?\n]{0,40}\Z", re.IGNORECASE)
_IT_IS_FALSE = rf"(?:that|this|it)(?:['’]s|\sis|\swas)\s(?:\w+ly\s)?{_FALSE}"
_TAKEN_BACK = re.compile(
    rf"{_CLOSED}[.,!;:…—–-]{{0,3}}\s{{0,3}}(?:(?:wait|hmm+|actually|sorry|oh|oops|hold\son)[,.!…\s]{{1,4}}){{0,2}}"
    rf"(?:no(?:pe)?\b[,.!…]{{0,3}}\s{{0,3}}(?:\Z|\n|wait\b|{_IT_IS_FALSE})"
    rf"|{_IT_IS_FALSE}|scratch\sthat|never\s?mind|just\skidding|not!?\s{{0,3}}\Z)",
    re.IGNORECASE,
)


def is_stated(text: str, start: int, end: int) -> bool:
    """Returns whether a text states the words between two places.

    The words are not stated if the clause before them denies, supposes, asks, quotes, or attributes them to something
    else ("the wrong answer is"), or if a question mark, a condition, another speaker, or a retraction follows them.
    """
    if is_governed(text, start):
        return False
    if any(pattern.match(text, end) for pattern in (_CONDITION, _SAID_BY, _SAID_TO_BE_FALSE, _TAKEN_BACK)):
        return False
    return not is_asked(text, start, end)


def is_governed(text: str, start: int) -> bool:
    """Returns whether the clause before a place denies, supposes, quotes or attributes the words after the place."""
    before = _before(text, start)
    return bool(_GOVERNED.search(before) or _OF_ANOTHER.search(before))


def is_asked(text: str, start: int, end: int) -> bool:
    """Returns whether a text asks about the words between two places, and answers with neither yes nor a reason."""
    before = _before(text, start)
    if _ASKED.match(text, end):
        return _WHY.search(before) is None or _ANSWERED.match(text, end) is None
    return bool(_ASKING.search(before)) and _is_question(text, end)


def is_conditional(text: str, start: int) -> bool:
    """Returns whether a sentence has a condition before a place: "if x is 2, the answer is"."""
    return _CONDITIONAL.search(_before(text, start)) is not None


def _before(text: str, start: int) -> str:
    return text[max(start - _BEFORE_CHARACTERS, 0) : start]


def _is_question(text: str, end: int) -> bool:
    """Returns whether the sentence around a place ends with a question mark and is not answered with yes."""
    rest = _REST.match(text, end)
    return rest is not None and _ASKED.match(text, rest.end()) is not None
