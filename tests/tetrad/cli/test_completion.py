"""`tetrad completion`: scripts for shells that know every command and option."""

import subprocess
import sys

import pytest
import shtab

from tetrad.cli import commands
from tetrad.cli.completion import whole_parser
from tetrad.services.command_line import CommandLineParser, parser_of


@pytest.fixture(scope="module")
def scripts():
    """The script of each shell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tetrad"])
        parser = whole_parser()
    return {shell: shtab.complete(parser, shell=shell) for shell in ("bash", "zsh", "fish")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_every_command_and_the_options_of_services(scripts, shell):
    assert [name for name in commands() if name not in scripts[shell]] == []
    assert "max-num-seqs" in scripts[shell]
    assert "tokenizer-targets" in scripts[shell]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tetrad stat", "status"),
        ("tetrad serve --max-num-s", "--max-num-seqs"),
        ("tetrad frontend --http-", "--http-fd"),
        ("tetrad serve --device s", "sim"),
    ],
)
def test_bash_completes_commands_options_and_choices(scripts, tmp_path, words, completed):
    (tmp_path / "tetrad").write_text(scripts["bash"])
    number = len(words.split()) - 1
    run = f'source "{tmp_path}/tetrad"; COMP_WORDS=({words}); COMP_CWORD={number}; _shtab_tetrad; echo "${{COMPREPLY[@]}}"'

    assert subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True).stdout.split() == [completed]


def test_a_command_is_not_run_for_its_parser():
    happened = []

    def command():
        parser = CommandLineParser(prog="x")
        parser.add_argument("--flag")
        happened.append("made")
        parser.parse_args([])
        happened.append("run")

    parser = parser_of(command)

    assert (parser.prog, happened) == ("x", ["made"])
    with pytest.raises(LookupError):
        parser_of(lambda: None)
    assert parser.parse_args(["--flag", "1"]).flag == "1"
