"""Draws the import graph of each service: its rooms, their floors, and the arrows between them.

A room is a folder of a service with everything below it; a folder in api/; or a file directly in the service's folder. With
--deep each folder is a separate room. A room imports rooms on lower floors only, except along upward arrows: a small set of
arrows without which the graph has no cycle. Cycles of modules include imports inside functions.

    python tools/import_graph.py                    the drawing as text, for every service
    python tools/import_graph.py --service frontend
    python tools/import_graph.py --mermaid          the same as Mermaid flowcharts
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVICES = ("frontend", "tokenizer_svc", "engine_core_svc", "worker_svc", "services")

Arrow = tuple[str, str]


@dataclass(frozen=True)
class Drawing:
    """A service's rooms.

    Attributes:
        files: number of modules of each room.
        arrows: number of imports from one room to another.
        upward: arrows from a lower to a higher floor.
        floors: rooms of each floor, the lowest first.
        cycles: cycles of modules that import each other, one cycle per strongly connected group.
    """

    files: Mapping[str, int]
    arrows: Mapping[Arrow, int]
    upward: frozenset[Arrow]
    floors: list[list[str]]
    cycles: list[list[str]]

    @property
    def summary(self) -> str:
        """The numbers of the drawing in one line."""
        return (
            f"{sum(self.files.values())} files, {len(self.files)} rooms, {len(self.floors)} floors, {len(self.arrows)} arrows, "
            f"{len(self.upward)} upward, {len(self.cycles)} cycles of modules"
        )


def draw(root: Path, service: str, *, deep: bool = False) -> Drawing:
    """Return the drawing of one service of the repository at `root`; with `deep`, each folder is a room."""
    modules = modules_of(root, service)
    edges = module_edges(modules)
    rooms = {name: _room(path.relative_to(root), deep=deep) for name, path in modules.items()}
    arrows = Counter(
        (rooms[one], rooms[other]) for one, others in edges.items() for other in others if rooms[one] != rooms[other]
    )
    files = Counter(rooms.values())
    upward = upward_arrows(arrows)
    floors = floors_of(files, [arrow for arrow in arrows if arrow not in upward])
    return Drawing(files, arrows, upward, floors, [sorted(group) for group in groups_of(edges) if len(group) > 1])


def modules_of(root: Path, service: str) -> dict[str, Path]:
    """Return the paths of a service's modules by name, without `__init__` files that have no code."""
    found = {}
    for path in sorted((root / service).rglob("*.py")):
        if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) <= 1:
            continue  # has at most a docstring
        parts = ("tetrad", *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def module_edges(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return for each module the modules that it imports, at import time or inside functions, except for type checking."""
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        # `from a.b import c` imports the module a.b.c or a name of a.b.
        imported = {each if each in modules else each.rpartition(".")[0] for each in _imports(ast.parse(path.read_text()))}
        edges[name] = {each for each in imported if each in modules and each != name}
    return edges


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _imports(child)


def _room(path: Path, *, deep: bool) -> str:
    if len(path.parts) == 2:
        return path.with_suffix("").as_posix()
    depth = 3 if path.parts[1] == "api" else 2
    return (path.parent if deep else Path(*path.parent.parts[:depth])).as_posix()


def groups_of(edges: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Return the strongly connected groups (Tarjan, 1972); a group stands after the groups that it imports."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            cut = stack.index(node)
            groups.append(set(stack[cut:]))
            del stack[cut:]

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return groups


def upward_arrows(arrows: Mapping[Arrow, int]) -> frozenset[Arrow]:
    """Return arrows without which no cycle is left: in each cycle of rooms, the arrow with the fewest imports first."""
    left = dict(arrows)
    upward: set[Arrow] = set()
    while True:
        tied = [group for group in groups_of(_targets(left)) if len(group) > 1]
        if not tied:
            return frozenset(upward)
        for group in tied:
            inside = [arrow for arrow in left if set(arrow) <= group]
            weakest = min(inside, key=lambda arrow: (left[arrow], arrow))
            upward.add(weakest)
            del left[weakest]


def _targets(arrows: Iterable[Arrow]) -> dict[str, set[str]]:
    targets: dict[str, set[str]] = {}
    for one, other in arrows:
        targets.setdefault(one, set()).add(other)
        targets.setdefault(other, set())
    return targets


def floors_of(rooms: Iterable[str], arrows: Iterable[Arrow]) -> list[list[str]]:
    """Return the rooms of each floor: a room is one floor above the highest room that it imports."""
    targets = _targets(arrows)
    floor: dict[str, int] = {}
    for [room] in groups_of({room: targets.get(room, set()) for room in rooms}):
        floor[room] = max((floor[other] + 1 for other in targets.get(room, ())), default=0)
    return [sorted(room for room in floor if floor[room] == number) for number in range(max(floor.values(), default=-1) + 1)]


def as_text(drawing: Drawing) -> Iterator[str]:
    """Yield the lines of a drawing, the highest floor first."""
    for number, rooms in reversed(list(enumerate(drawing.floors))):
        yield f"{number:3}  " + "   ".join(f"{room} ({drawing.files[room]})" for room in rooms)
    for one, other in sorted(drawing.upward):
        yield f"  upward: {one} -> {other} ({drawing.arrows[one, other]} imports)"
    for cycle in drawing.cycles:
        yield f"  cycle: {', '.join(cycle)}"


def as_mermaid(drawing: Drawing) -> Iterator[str]:
    """Yield the lines of a Mermaid flowchart; upward arrows are dotted."""
    yield "```mermaid\nflowchart TD"
    for one, other in sorted(drawing.arrows):
        line = "-.->" if (one, other) in drawing.upward else "-->"
        yield f"  {_id(one)}[{one}] {line} {_id(other)}[{other}]"
    yield "```"


def _id(room: str) -> str:
    return room.replace("/", "_")


def main() -> None:
    """Print the drawings of the services that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", choices=SERVICES, action="append", help="only this one; may be repeated")
    parser.add_argument("--mermaid", action="store_true", help="draw flowcharts")
    parser.add_argument("--deep", action="store_true", help="each folder is a room")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    args = parser.parse_args()
    for service in args.service or SERVICES:
        drawing = draw(args.root, service, deep=args.deep)
        lines = as_mermaid(drawing) if args.mermaid else as_text(drawing)
        sys.stdout.write("\n".join([f"{service}: {drawing.summary}", *lines, "", ""]))


if __name__ == "__main__":
    main()
