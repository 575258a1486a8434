"""No code executes received data: bans such calls, outside a list of exceptions with reasons."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("services", "frontend", "tokenizer_svc", "engine_core_svc", "worker_svc", "tetrad", "benchmarks", "tools", "deploy")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "np.load",
    "numpy.load",
}
ALLOWED: dict[tuple[str, str], str] = {
    ("worker_svc/checkpoint/torch_file.py", "pickle"): "names the error of torch's restricted unpickler, and unpickles nothing",
}
"""(file, what) -> why it cannot be reached by a stranger's bytes."""


def dangers_of(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from _dangers_of_call(node)


def _dangers_of_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in CALLS:
        yield name
    if name == "torch.load" and not _is(given.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    if "shell" in given and not _is(given["shell"], False):
        yield f"{name}(shell=...)"
    if "trust_remote_code" in given and _is(given["trust_remote_code"], True):
        yield f"{name}(trust_remote_code=True)"
    if "allow_pickle" in given and not _is(given["allow_pickle"], False):
        yield f"{name}(allow_pickle=...)"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@cache
def found() -> set[tuple[str, str]]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {(str(path.relative_to(ROOT)), danger) for path in paths for danger in dangers_of(path.read_text())}


def test_nothing_dangerous_is_called_without_a_reason():
    assert found() - set(ALLOWED) == set()


def test_every_exception_is_still_needed():
    assert set(ALLOWED) - found() == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval(text)",
        "exec(text)",
        "yaml.load(file)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=flag)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=True)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_search_finds(source):
    assert list(dangers_of(source))


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path, weights_only=True)",
        "re.compile(text)",
        "model.eval()",
        "yaml.safe_load(file)",
        "subprocess.run([name])",
    ],
)
def test_the_search_lets_through(source):
    assert not list(dangers_of(source))
