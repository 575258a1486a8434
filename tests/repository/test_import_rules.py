"""The import rules of the architecture, checked against the code's imports."""

import ast
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from tools import import_graph

ROOT = Path(__file__).parents[2]
SERVICES = ("frontend", "tokenizer_svc", "engine_core_svc", "worker_svc")
# Names of the root package that are none of its files.
OWN = {"services", "v1", "vllm_api", "openengine_api", *SERVICES}
MESSAGES = ("tetrad.v1", "tetrad.vllm_api", "tetrad.openengine_api", "smg_grpc_proto")

KIT = {"grpc", "grpc_health", "grpc_reflection", "grpc_status", "google", "structlog", "pydantic", "pydantic_settings"}
THIRD_PARTY = {
    "services": KIT | {"uvloop", "prometheus_client", "huggingface_hub", "grpc_channelz", "opentelemetry", "yaml"},
    "frontend": KIT
    | {
        "pydantic_core",
        "fastapi",
        "starlette",
        "uvicorn",
        "httptools",
        "msgspec",
        "numpy",
        "prometheus_client",
        "safetensors",
        "smg_grpc_proto",
    },
    "tokenizer_svc": KIT | {"transformers", "tokenizers", "jinja2", "gguf", "numpy", "PIL", "av", "prometheus_client"},
    "engine_core_svc": KIT | {"numpy", "llguidance", "prometheus_client"},
    "worker_svc": KIT | {"torch", "triton", "safetensors", "gguf", "transformers", "numpy", "prometheus_client", "msgspec"},
    "tetrad": KIT | {"prometheus_client", "httpx", "httpx_sse", "tqdm", "shtab", "uvloop", "yaml"},
}
OURS = {
    "services": {"v1", "services"},
    **{name: {"v1", "services", name} for name in SERVICES},
    "frontend": {"v1", "vllm_api", "openengine_api", "services", "frontend"},
    "tetrad": OWN | {"tetrad"},
}


def files_of(room: str) -> list[Path]:
    if room != "tetrad":
        return sorted((ROOT / room).rglob("*.py"))
    folders = [ROOT / "tetrad" / each for each in ("cli", "library", "stack")]
    return sorted([*(ROOT / "tetrad").glob("*.py"), *(path for each in folders for path in each.rglob("*.py"))])


ALL_FILES = [(room, path) for room in THIRD_PARTY for path in files_of(room)]


def module_of(room: str, path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    parts = relative.parts if room == "tetrad" else ("tetrad", *relative.parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    """Return what a file imports, as ("a.b.c", whether it happens when the file is imported)."""
    tree = ast.parse(path.read_text())
    return list(_walk(tree, at_import=True))


def _walk(node: ast.AST, *, at_import: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "relative imports hide who imports whom"
            for alias in child.names:
                yield f"{child.module}.{alias.name}", at_import
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from _walk(child, at_import=False)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, at_import=at_import and not inside)


def room_of(imported: str) -> str:
    """Return the room of a name under `tetrad`."""
    parts = imported.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in OWN else "tetrad"


@pytest.mark.parametrize("room", THIRD_PARTY)
def test_a_room_imports_only_the_rooms_it_may(room):
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files_of(room)
        for name, _ in imports_of(path)
        if name.split(".")[0] == "tetrad" and room_of(name) not in OURS[room]
    ]

    assert not wrong


@pytest.mark.parametrize("room", THIRD_PARTY)
def test_a_room_imports_only_the_packages_it_may(room):
    allowed = THIRD_PARTY[room] | {"tetrad"} | sys.stdlib_module_names
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files_of(room)
        for name, _ in imports_of(path)
        if name.split(".")[0] not in allowed
    ]

    assert not wrong


def test_the_command_line_stands_on_the_library_and_the_library_on_the_stack():
    above = {"stack": ("tetrad.library", "tetrad.cli"), "library": ("tetrad.cli",)}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder, rooms in above.items()
        for path in (ROOT / "tetrad" / folder).rglob("*.py")
        for name, _ in imports_of(path)
        if name.startswith(rooms)
    ]

    assert not wrong


def test_messages_are_known_only_where_the_wire_is():
    """Scheduler, block pool, sampler and the like are plain Python that a test drives without protobuf."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for room, path in ALL_FILES
        for name, _ in imports_of(path)
        if name.startswith(MESSAGES) and not name.endswith("_pb2_grpc") and not knows_the_wire(path)
    ]

    assert not wrong


def knows_the_wire(path: Path) -> bool:
    """Servicers, clients (the executor and the link are the worker's) and wire files."""
    words = ("servicer", "client", "wire", "grpc", "gateways", "admin", "lifecycle", "executor", "link")
    return any(word in part for word in words for part in path.relative_to(ROOT).parts)


def test_no_file_imports_itself_round_about():
    modules = {module_of(room, path): path for room, path in ALL_FILES}

    def targets(path: Path) -> Iterator[str]:
        for name, at_import in imports_of(path):
            if at_import:
                # `from a.b import c` names a module a.b.c or a thing in a.b.
                yield from (candidate for candidate in (name, name.rpartition(".")[0]) if candidate in modules)

    done: set[str] = set()
    for start in modules:
        cycle = find_cycle(start, lambda name: targets(modules[name]), done)
        assert cycle is None, " -> ".join(cycle or ())


def find_cycle(start, targets, done: set[str]) -> list[str] | None:
    path: list[str] = []

    def visit(name: str) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        for target in targets(name):
            if target != name and (cycle := visit(target)):
                return cycle
        path.pop()
        done.add(name)
        return None

    return visit(start)


drawing_of = cache(partial(import_graph.draw, ROOT))


@pytest.mark.parametrize("service", import_graph.SERVICES)
def test_rooms_stand_on_floors(service):
    """No room imports one above it, and no module imports itself round about, not even inside functions."""
    drawing = drawing_of(service)

    assert not drawing.upward
    assert not drawing.cycles
    assert len(drawing.floors) <= 12


@pytest.mark.parametrize("service", import_graph.SERVICES)
def test_no_folder_imports_a_folder_above_it(service):
    """Each folder alone, without those in it, is a room here."""
    assert not import_graph.draw(ROOT, service, deep=True).upward


@pytest.mark.parametrize("service", import_graph.SERVICES)
def test_a_service_has_few_rooms(service):
    assert len(drawing_of(service).files) <= 22


def test_the_graph_finds_upward_arrows_and_cycles(tmp_path):
    """low imports high inside a function, and high imports low."""
    for name, text in {
        "high/a.py": "from tetrad.shop.low.b import B",
        "low/b.py": "B = 1\ndef late():\n    from tetrad.shop.high import a",
    }.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)

    drawing = import_graph.draw(tmp_path, "shop")

    assert len(drawing.upward) == 1
    assert drawing.cycles == [["tetrad.shop.high.a", "tetrad.shop.low.b"]]
