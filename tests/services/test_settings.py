"""Settings: flags before environment before file, and nothing unknown in any of them."""

import os
import subprocess
import sys
from typing import Literal, Self

import pytest
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import SettingsConfigDict

from tetrad.services.settings import ServiceSettings, child_environment, load_settings


class CupSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TETRAD_CUP_")

    size_ml: int = Field(200, ge=1, description="Volume, in millilitres.")
    label: str | None = Field(None, description="What is written on it.")
    warmth_c: int | Literal["room"] | None = Field(None, ge=0, description="Temperature, in degrees.")
    secret: str = Field("", max_length=8, repr=False, description="What is in it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label == "empty" and self.secret:
            raise ValueError("an empty cup has no secret")
        return self


def load(*argv: str) -> CupSettings:
    return load_settings(CupSettings, argv, prog="tetrad cup")


def test_defaults_hold_when_nothing_is_given():
    assert load().size_ml == 200


def test_the_file_beats_the_default(tmp_path):
    file = tmp_path / "cup.yaml"
    file.write_text("size_ml: 250\n")

    assert load("--config", str(file)).size_ml == 250


def test_the_environment_beats_the_file(tmp_path, monkeypatch):
    file = tmp_path / "cup.yaml"
    file.write_text("size_ml: 250\nlabel: from the file\n")
    monkeypatch.setenv("TETRAD_CUP_SIZE_ML", "300")

    settings = load(f"--config={file}")

    assert (settings.size_ml, settings.label) == (300, "from the file")


def test_a_flag_beats_the_environment(monkeypatch):
    monkeypatch.setenv("TETRAD_CUP_SIZE_ML", "300")

    assert load("--size-ml", "350").size_ml == 350


def refusal(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        load(*argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_an_unknown_flag_is_refused(capsys):
    assert "--colour" in refusal(capsys, "--colour", "red")


def test_an_unknown_variable_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("TETRAD_CUP_COLOUR", "red")

    assert "TETRAD_CUP_COLOUR" in refusal(capsys)


def test_a_mistyped_variable_is_refused_with_the_one_that_was_meant(monkeypatch, capsys):
    monkeypatch.setenv("TETRAD_CUP_SIZE", "300")

    line = refusal(capsys)

    assert "TETRAD_CUP_SIZE: there is no such setting; did you mean TETRAD_CUP_SIZE_ML?" in line


def test_an_unknown_key_of_the_file_is_refused(tmp_path, capsys):
    file = tmp_path / "cup.yaml"
    file.write_text("colour: red\n")

    assert "colour" in refusal(capsys, "--config", str(file))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"label: a\nsecret: [tea\n", "is not YAML: line 3"),
        (b"secret: *tea\n", "is not YAML: line 1"),
        (b"label: \x07\n", "is not YAML"),
        (b"\xff\n", "is not UTF-8"),
        (b"- tea\n", "must hold settings"),
        (b"tea\n", "must hold settings"),
        (b"1: tea\n", "must hold settings"),
    ],
)
def test_a_file_of_another_form_is_one_line_without_its_content(tmp_path, capsys, content, words):
    file = tmp_path / "cup.yaml"
    file.write_bytes(content)

    text = refusal(capsys, "--config", str(file))

    assert text.startswith(f"tetrad cup: --config: {file} {words}")
    assert text.count("\n") == 1
    assert "tea" not in text


def test_an_empty_file_sets_nothing(tmp_path):
    file = tmp_path / "cup.yaml"
    file.write_text("# nothing yet\n")

    assert load("--config", str(file)) == CupSettings()


def test_a_missing_file_is_refused(capsys):
    assert "/no/such.yaml" in refusal(capsys, "--config", "/no/such.yaml")


@pytest.mark.parametrize("number", ["inf", "nan"])
def test_a_time_is_a_finite_number(capsys, number):
    with pytest.raises(SystemExit):
        load("--drain-timeout-s", number)

    assert f"drain-timeout-s: Input should be a finite number (got '{number}')" in capsys.readouterr().err


def test_a_value_out_of_range_is_one_line_that_names_it(capsys):
    line = refusal(capsys, "--size-ml", "0")

    assert line.count("\n") == 1
    assert "size-ml" in line
    assert "0" in line


def test_a_value_of_none_of_several_types_is_one_line_that_names_the_setting_and_all_of_them(capsys):
    text = refusal(capsys, "--warmth-c", "mild")

    assert text.startswith("tetrad cup: warmth-c: ")
    assert "valid integer" in text
    assert text.rstrip().endswith("or 'room' (got 'mild')")


@pytest.mark.parametrize("name", ["max-message-bytes", "max-metadata-bytes", "max-concurrent-streams"])
def test_a_number_that_no_option_of_grpc_can_hold_is_refused(name, capsys):
    with pytest.raises(SystemExit, match="2"):
        load(f"--{name}", str(2**31))

    assert f"{name}: Input should be less than or equal to 2147483647" in capsys.readouterr().err


def test_help_shows_the_description_and_the_default(capsys):
    with pytest.raises(SystemExit) as caught:
        load("--help")

    out = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "Volume, in millilitres. (default: 200)" in out


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        load().size_ml = 3


def test_a_child_reads_the_same_settings(monkeypatch):
    """Also where the parent's environment says otherwise, and a field is back at its default."""
    monkeypatch.setenv("TETRAD_CUP_SIZE_ML", "300")
    settings = CupSettings(size_ml=200, label="a b", lifeline_fd=7)

    environment = child_environment(settings)

    assert "TETRAD_CUP_SIZE_ML" not in environment
    assert environment["PATH"] == os.environ["PATH"]
    monkeypatch.delenv("TETRAD_CUP_SIZE_ML")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert load() == settings


def test_every_service_can_say_what_it_takes():
    for service in ("tokenizer", "worker", "engine-core", "frontend"):
        result = subprocess.run([sys.executable, "-m", "tetrad.cli", service, "--help"], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert "--listen" in result.stdout


@pytest.mark.parametrize(
    "argv",
    [
        ("--secret", "tea-and-more"),
        ("--secret", "tea", "--label", "empty"),
        ("--config", "{file}"),
    ],
)
def test_no_error_shows_a_secret(argv, capsys, tmp_path):
    file = tmp_path / "cup.yaml"
    file.write_text("secret_: tea\n")

    assert "tea" not in refusal(capsys, *(part.format(file=file) for part in argv))


def test_no_error_of_a_program_shows_one_either():
    with pytest.raises(ValidationError) as caught:
        CupSettings(secret="tea", label="empty")

    assert "tea" not in f"{caught.value}{CupSettings(secret='tea')!r}"
