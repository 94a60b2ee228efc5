"""The constraints by open-instruct's ids, with the kwargs that each needs."""

from collections.abc import Callable
from dataclasses import dataclass

from services.reward.verifiers.ifeval import copies, counting, formats, keywords
from services.reward.verifiers.ifeval.arguments import Arguments


@dataclass(frozen=True)
class Constraint:
    """The check of one instruction."""

    follows: Callable[[str, Arguments], bool]
    """Returns whether a response follows the instruction. Raises `Unscorable` for a bad label, whatever the
    response."""
    needs: tuple[str, ...] = ()
    """Required kwargs."""
    unused: tuple[str, ...] = ()
    """Kwargs that datasets also have and that have no effect: the text from which another kwarg was chosen."""


_PROMPT = ("prompt_to_repeat",)
CONSTRAINTS = {
    "change_case:capital_word_frequency": Constraint(counting.capital_words, ("capital_frequency", "capital_relation")),
    "change_case:english_capital": Constraint(formats.english_capitals),
    "change_case:english_lowercase": Constraint(formats.english_lowercase),
    "combination:repeat_prompt": Constraint(copies.repeat_prompt, _PROMPT),
    "combination:two_responses": Constraint(copies.two_responses),
    "copy:copy": Constraint(copies.copy, _PROMPT),
    "copy:copying_multiple": Constraint(copies.copies, ("prompt_to_repeat", "N")),
    "copy:copying_simple": Constraint(copies.copy, _PROMPT),
    "copy:repeat_phrase": Constraint(copies.repeat_phrase, ("phrase", "small_n")),
    "count:count_increment_word": Constraint(keywords.once_and_twice, ("keyword1", "keyword2")),
    "count:count_unique": Constraint(counting.unique_words),
    "count:counting_composition": Constraint(counting.composition, ("n_sent", "n_words")),
    "count:lowercase_counting": Constraint(counting.lowercase_words, ("N",)),
    "detectable_content:number_placeholders": Constraint(formats.placeholders, ("num_placeholders",)),
    "detectable_content:postscript": Constraint(formats.postscript, ("postscript_marker",)),
    "detectable_format:bigram_wrapping": Constraint(formats.bigrams),
    "detectable_format:constrained_response": Constraint(formats.constrained_response),
    "detectable_format:json_format": Constraint(formats.json_format),
    "detectable_format:multiple_sections": Constraint(formats.sections, ("section_spliter", "num_sections")),
    "detectable_format:number_bullet_lists": Constraint(formats.bullets, ("num_bullets",)),
    "detectable_format:number_highlighted_sections": Constraint(formats.highlights, ("num_highlights",)),
    "detectable_format:sentence_hyphens": Constraint(formats.sentence_hyphens),
    "detectable_format:square_brackets": Constraint(formats.square_brackets),
    "detectable_format:title": Constraint(formats.title),
    "first_word:first_word_answer": Constraint(keywords.first_word, ("first_word",)),
    "first_word:first_word_sent": Constraint(keywords.first_word_of_sentences, ("first_word",)),
    "keywords:exclude_word_harder": Constraint(keywords.excluded, ("keyword",), ("instruction",)),
    "keywords:existence": Constraint(keywords.existence, ("keywords",)),
    "keywords:forbidden_words": Constraint(keywords.forbidden, ("forbidden_words",)),
    "keywords:frequency": Constraint(keywords.frequency, ("keyword", "frequency", "relation")),
    "keywords:keyword_specific_position": Constraint(keywords.at_position, ("keyword", "n", "m")),
    "keywords:letter_frequency": Constraint(counting.letter_frequency, ("letter", "let_frequency", "let_relation")),
    "keywords:no_adjacent_consecutive": Constraint(keywords.no_adjacent_letters),
    "keywords:palindrome": Constraint(keywords.palindrome),
    "keywords:start_end": Constraint(keywords.first_is_last),
    "keywords:word_count_different_numbers": Constraint(keywords.frequency, ("keyword", "frequency", "relation")),
    "keywords:word_once": Constraint(keywords.once, ("keyword",)),
    "language:response_language": Constraint(formats.response_language, ("language",)),
    "last_word:last_word_answer": Constraint(keywords.last_word, ("last_word",)),
    "last_word:last_word_sent": Constraint(keywords.last_word_of_sentences, ("last_word",)),
    "length_constraints:nth_paragraph_first_word": Constraint(
        counting.nth_first_word, ("num_paragraphs", "nth_paragraph", "first_word")
    ),
    "length_constraints:number_paragraphs": Constraint(counting.starred, ("num_paragraphs",)),
    "length_constraints:number_sentences": Constraint(counting.sentences, ("num_sentences", "relation")),
    "length_constraints:number_words": Constraint(counting.words, ("num_words", "relation")),
    "letters:letter_counting": Constraint(counting.letters, ("N", "relation")),
    "letters:letter_counting2": Constraint(counting.letter_frequency, ("letter", "let_frequency", "let_relation")),
    "new:copy_span_idx": Constraint(copies.copy_span, ("prompt_to_repeat", "n_start", "n_end")),
    "paragraphs:paragraphs": Constraint(counting.two_starred),
    "paragraphs:paragraphs2": Constraint(counting.two_spaced),
    "punctuation:no_comma": Constraint(formats.lacks(",")),
    "punctuation:punctuation_dot": Constraint(formats.lacks(".")),
    "punctuation:punctuation_exclamation": Constraint(formats.lacks("!")),
    "startend:end_checker": Constraint(keywords.end_phrase, ("end_phrase",)),
    "startend:quotation": Constraint(keywords.quotation),
}
