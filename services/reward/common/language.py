"""Language detection by langdetect (github.com/Mimino666/langdetect): 55 languages, by trigrams."""

# langdetect removes web and mail addresses, then reads 10,000 characters.
_CHARACTERS_READ = 100_000


def load() -> None:
    """Reads the trigram tables; takes a second."""
    from langdetect import DetectorFactory, detector_factory

    DetectorFactory.seed = 0  # langdetect samples trigrams at random.
    detector_factory.init_factory()


def language_codes() -> frozenset[str]:
    """Returns the codes of the languages that can be detected."""
    from langdetect import detector_factory

    load()
    return frozenset(detector_factory._factory.get_lang_list())


def language_of(text: str) -> str | None:
    """Returns the code of the likeliest language ("en", "zh-cn"); None if no language is detected."""
    from langdetect import LangDetectException, detect

    load()
    try:
        found = str(detect(text[:_CHARACTERS_READ]))
    except LangDetectException:
        return None
    return None if found == "unknown" else found


def is_language(text: str, code: str, *, undetectable: bool) -> bool:
    """Returns whether a text is in a language. If no language is detected, returns `undetectable`."""
    found = language_of(text)
    return undetectable if found is None else found == code
