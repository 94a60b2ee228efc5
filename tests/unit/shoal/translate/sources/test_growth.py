"""Sources of a few lines whose values would fill all memory, or take for ever to read."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from shoal.translate.sources.expansion import arithmetic, cut
from shoal.translate.sources.interpolation import References
from tests.support.translations import translate_file

CALL = "from trl import GRPOConfig\nargs = GRPOConfig(learning_rate=%s, output_dir=%s)\n"


def notes_of(system: str, path: Path, text: str) -> str:
    try:
        translation = translate_file(system, path, text)
    except InvalidArgument as error:
        return error.message
    return "\n".join(map(str, translation.refusals))


def test_a_variable_that_doubles_with_each_line_is_refused(tmp_path: Path) -> None:
    doubled = "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 40 + "trl grpo --learning_rate $A\n"
    assert "more than 1048576 characters" in notes_of("trl", tmp_path / "a.sh", doubled)
    words = "A=(1 2 3)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'trl grpo --dataset_name "${A[@]}"\n'
    assert "more than 100000 words" in notes_of("trl", tmp_path / "a.sh", words)


def test_a_long_word_is_read_in_linear_time(tmp_path: Path) -> None:
    assert "trainer" in notes_of("verl", tmp_path / "a.sh", "a\\\n" * 100_000)


def test_names_and_numbers_that_grow_with_each_line_stay_unread(tmp_path: Path) -> None:
    for first, operator in (("10", "*"), ("'text'", "+"), ("1.5", "*")):
        lines = [f"a0 = {first}", *(f"a{n} = a{n - 1} {operator} a{n - 1}" for n in range(1, 60))]
        said = notes_of("trl", tmp_path / "a.py", "\n".join(lines) + "\n" + CALL % ("a59", "a59"))
        assert "learning_rate" in said and "without running" in said, (first, said)
    said = notes_of("trl", tmp_path / "a.py", CALL % ("'x'.replace('x')", "f'{1}'"))
    assert "without running" in said, said


@pytest.mark.parametrize("text", ["(" * 3000, "a = " + "-" * 90_000 + "1", "a = " + "+".join("1" * 5000)])
def test_deep_python_is_refused(text: str, tmp_path: Path) -> None:
    assert notes_of("trl", tmp_path / "a.py", text + "\n" + CALL % ("a", "a"))


def test_references_that_double_or_grow_for_ever_are_refused() -> None:
    values = {"a0": "x" * 16, **{f"a{n}": f"${{a{n - 1}}}${{a{n - 1}}}" for n in range(1, 40)}}
    with pytest.raises(InvalidArgument, match="expand to more than"):
        References(values).resolved(values)


def test_arithmetic_and_patterns_have_bounds() -> None:
    assert arithmetic("*".join(["99999"] * 3), {}) == 99999**3
    assert arithmetic("*".join(["99999"] * 9), {}) is None
    assert arithmetic("(" * 3000, {}) is None
    assert cut("a" * 4000, "##*a*a*b") is None


def test_a_name_of_many_characters_is_refused_at_once(tmp_path: Path) -> None:
    said = notes_of("roll", tmp_path / "a.json", '{"' + "rollout_batch_size" * 5000 + '": 1}')
    assert "rollout_batch_size" in said
