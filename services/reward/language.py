"""Which language a text is in, by langdetect (github.com/Mimino666/langdetect): 55 languages, by trigrams."""

# It samples trigrams at random: with a fixed seed a text always gets the same answer.
_SEED = 0
# It reads no further than 10,000 characters after web and mail addresses have become blanks.
_CHARACTERS_READ = 100_000


def load() -> None:
    """Reads the trigram tables; takes a second."""
    from langdetect import DetectorFactory, detector_factory

    DetectorFactory.seed = _SEED
    detector_factory.init_factory()


def language_codes() -> frozenset[str]:
    """The codes of the languages that can be told."""
    from langdetect import detector_factory

    load()
    return frozenset(detector_factory._factory.get_lang_list())


def language_of(text: str) -> str | None:
    """The code of the likeliest language ("en", "zh-cn"); None where the text holds nothing to tell one by."""
    from langdetect import LangDetectException, detect

    load()
    try:
        found = str(detect(text[:_CHARACTERS_READ]))
    except LangDetectException:
        return None
    return None if found == "unknown" else found


def is_language(text: str, code: str, *, undetectable: bool) -> bool:
    """Whether a text is in a language; `undetectable` where nothing tells."""
    found = language_of(text)
    return undetectable if found is None else found == code
