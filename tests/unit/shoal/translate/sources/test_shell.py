"""Tests of the launch-script reader, which reads like bash without running anything."""

from pathlib import Path

import pytest

from shoal.translate.sources.script import Word
from shoal.translate.sources.shell import read_script


def _words(text: str) -> list[list[str]]:
    return [[word.text for word in command] for command in read_script(text).commands]


BRANCHES = (
    "N=1\nif [ $N -gt 1 ]; then\n  run many\n  if [ $N -gt 2 ]; then run more; fi\nelse\n  run one\nfi\nrun after"
)


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        # A continued line makes one command, and a comment after it ends at its own line.
        ("python a.py \\\n  --x 1 \\\n  --y 2\necho done", ["python|a.py|--x|1|--y|2", "echo|done"]),
        ("run --x 1 \\\n  # --y 2 \\\n  --z 3", ["run|--x|1", "--z|3"]),
        ("run --tag a#b '#c'", ["run|--tag|a#b|#c"]),
        # Variables are expanded, split into words outside of quotes, and defaults replace those that are not set.
        ('MIX="a 1.0 b 2"\nexport NAME=run_${MIX%%x}\nrun $MIX "$MIX" ${MIX}', ["run|a|1.0|b|2|a 1.0 b 2|a|1.0|b|2"]),
        ('GPUS=${GPUS:-8}\nIMAGE="${1:-me/image}"\nrun $GPUS $IMAGE ${OTHER:-$GPUS}', ["run|8|me/image|8"]),
        ("A='x y'\nB=$A\nA=z\nrun $A \"$B\"", ["run|z|x y"]),
        ("N=32\nrun $((5 * N * 4)) $((7/2)) $(( (1+2)*3 )) $(((2*N)))", ["run|640|3|9|64"]),
        ("Q=\nP=fp8\nrun a${Q:+_$Q}b${P:+_${P}}", ["run|ab_fp8"]),
        (
            ': "${MODEL:=org/model-7b}"\nrun $MODEL ${MODEL##*/} ${MODEL%-*} ${MODEL%%/*} ${MODEL//o/0}',
            ["run|org/model-7b|model-7b|org/model|org|0rg/m0del-7b"],
        ),
        (r"mason -- source x.sh \&\& python y.py \$URL", ["mason|--|source|x.sh|&&|python|y.py|$URL"]),
        ("""run '{"a": "$B", "c": 1}'""", ['run|{"a": "$B", "c": 1}']),
        ("run $HOME/data", [f"run|{Path.home()}/data"]),
        ('run --x 1 "$@" $@', ["run|--x|1"]),  # The script has no arguments.
        ('A=()\nrun "${A[@]}" "x$@" "${@}" ""', ["run|x|"]),
        (
            'ARGS=(\n  --x 1  # not --y\n  --name "a b"\n)\nARGS+=(--z $((1+1)))\nrun "${ARGS[@]}" --end',
            ["run|--x|1|--name|a b|--z|2|--end"],
        ),
        # An assignment in a condition counts, and those of branches and commands that do not run do not.
        ('if [ $# -gt 0 ]; then IMAGE="me"; fi\nrun $IMAGE', ["run|me"]),
        ('A=x\n[ -z "$A" ] && A=y\nrun $A', ["run|x"]),
        ('A=x\n[ "$A" = z ] || A=y\nrun $A', ["run|y"]),
        ("A=x\ncd /somewhere && A=y\nrun $A", ["run|y"]),
        (
            "A=(a.b=1)\nif [ x = y ]; then\n  A+=(bad=1)\nfi\n[ x = x ] && A+=(good=1)\n[ x = y ] && A+=(bad=2)\n"
            'run "${A[@]}"',
            ["run|a.b=1|good=1"],
        ),
        (BRANCHES, ["run|one", "run|after"]),
        # Redirections are no arguments.
        ("run --y 2 > out.txt 2>err.txt\nrun --z 3 &>> all.log &", ["run|--y|2", "run|--z|3"]),
        ("run --w 4 </dev/null", ["run|--w|4"]),
        ("run --x 1 2>&1 | tee log.txt", ["run|--x|1"]),
    ],
)  # fmt: skip
def test_words_are_those_that_bash_would_pass(script: str, commands: list[str]) -> None:
    begins = {command.partition("|")[0] for command in commands}
    found = ["|".join(words) for words in _words(script) if words and words[0] in begins]
    assert found == commands


def test_a_value_known_only_to_a_shell_is_empty_and_listed() -> None:
    (command,) = read_script('run --user $(whoami) --gone "$NOWHERE" --sum $((NOWHERE + 1))').commands
    assert [(word.text, word.unknown) for word in command if word.unknown] == [
        ("", ("$(whoami)",)),
        ("", ("$NOWHERE",)),
        ("", ("$((NOWHERE + 1))",)),
    ]


def test_a_loop_over_one_value_assigns_it_and_over_several_leaves_it_unknown() -> None:
    assert _words('SIZES=(\n 64 # usual\n)\nfor n in "${SIZES[@]}"; do\n run $n\ndone')[0] == ["run", "64"]
    (command, *_) = read_script("for n in 1 2; do run $n; done").commands
    (unknown,) = command[-1].unknown
    assert unknown.startswith("$n (")


def test_an_indirect_variable_is_followed_and_an_unset_one_is_named() -> None:
    script = 'mix="a 1 b 2"\nfor name in mix; do\n value="${!name}"\n run "$value" ${!none}\ndone'
    (command, *_) = read_script(script).commands
    assert [word.text for word in command] == ["run", "a 1 b 2", ""]
    assert command[-1].unknown == ("${!none}",)


@pytest.mark.parametrize(
    ("size", "length"), [("7b", "8192"), ("32b", "4096"), ("70b", "2048")], ids=["if", "elif", "else"]
)
def test_a_test_of_a_variable_that_the_script_sets_chooses_the_branch(size: str, length: str) -> None:
    script = (
        f'SIZE={size}\nif [ "$SIZE" = "7b" ]; then\n  LENGTH=8192\nelif [[ $SIZE == "32b" ]]; then\n  LENGTH=4096\n'
        "else\n  LENGTH=2048\nfi\nrun $LENGTH"
    )
    assert _words(script)[-1] == ["run", length]
    assert not read_script(script).guesses


def test_a_test_that_only_a_shell_can_decide_leaves_a_guess() -> None:
    script = read_script("LENGTH=1024\nif [ -f /etc/here ]; then LENGTH=8192; fi\nrun $LENGTH")
    assert [word.text for word in script.commands[-1]] == ["run", "8192"]
    assert (script.guesses, "LENGTH" in script.used) == ({"LENGTH": "8192"}, True)


@pytest.mark.parametrize(("size", "rate"), [("7b", "1"), ("32b", "2"), ("72b", "2"), ("0.5b", "3")])
def test_a_case_on_a_variable_that_the_script_sets_is_decided(size: str, rate: str) -> None:
    arms = "7b) RATE=1; N=1 ;;\n 32b|7?b) RATE=2 ;;\n *)\n for x in 1; do RATE=3; done\n ;;"
    script = f'SIZE={size}\ncase "$SIZE" in\n {arms}\nesac\nrun $RATE'
    assert _words(script)[-1] == ["run", rate]
    assert not read_script(script).guesses


def test_a_case_that_only_a_shell_can_decide_leaves_a_guess() -> None:
    script = read_script('case "$1" in a) R=1 ;; b) R=2 ;; esac\nrun $R')
    assert ([word.text for word in script.commands[-1]], script.guesses) == (["run", "2"], {"R": "2"})


def test_an_array_that_an_undecided_branch_extends_is_a_guess() -> None:
    script = read_script('A=(a.b=1)\nif [ "$HOST" = y ]; then\n  A+=(c.d=2)\nfi\nrun "${A[@]}"')
    assert [word.text for word in script.commands[-1]] == ["run", "a.b=1", "c.d=2"]
    assert script.guesses == {"A": "a.b=1 c.d=2"} and "A" in script.used


def test_an_element_of_an_array_is_no_assignment() -> None:
    script = read_script('EXTRA=(engine=x\n  a.b=c)\nrun "${EXTRA[@]}"')
    assert [word.text for word in script.commands[-1]] == ["run", "engine=x", "a.b=c"]
    assert "engine" not in script.variables


def test_a_probe_of_the_machine_is_assumed_to_fail_and_recorded() -> None:
    probe = "$(python3 -c 'import npu' 2>/dev/null && echo npu || echo gpu)"
    script = read_script(f'D=${{D:-{probe}}}\nN=8\ncase "$D" in\n  gpu) ;;\n  npu) N=16 ;;\nesac\nrun $N')
    assert [word.text for word in script.commands[-1]] == ["run", "8"]
    assert script.guesses == {probe: "gpu"} and probe in script.used


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("$PWD/data", "./data"),
        ('"$(pwd)"/data', "./data"),
        ('"$(dirname "$0")/data"', "/a/b/data"),
        ('"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/data"', "/a/b/data"),
        ('$(cd -- "$(dirname -- "$0")/../.." >/dev/null 2>&1 && pwd -P)/data', "//data"),
        ('"$(cd "$OTHER" && pwd)/data"', "/data"),
    ],
)
def test_folders_of_a_script_need_no_run(value: str, expected: str) -> None:
    script = read_script(f"AT={value}\nrun $AT", Path("/a/b"))
    assert script.commands == [[Word("run"), Word(expected, script.variables["AT"].unknown)]]
    assert bool(script.variables["AT"].unknown) == ("OTHER" in value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("export A=1 B=2", ["A", "B"]),
        ("A=1\nexport A", ["A"]),
        ("declare -x A=1\ntypeset -gx B=2", ["A", "B"]),
        ("A=1 B=2 python a.py", ["A", "B"]),
        ("A=1 env B=2 python a.py", ["A", "B"]),
        ('[ -n "$X" ] && export A=1', ["A"]),
        ("A=1\nreadonly B=2\ndeclare -i C=3\nexport -n A", []),
    ],
)
def test_variables_of_the_environment_are_told_from_those_of_the_script(text: str, names: list[str]) -> None:
    assert list(read_script(text).exported) == names
    assert all(read_script(text).variables[name].text in "123" for name in names)
