"""Writes the stubs of clients/python: the public API's stubs in a separate package, which can be installed beside `tetrad`."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "clients/python/tetrad_client/v1"
FILES = ("types", "inference")


def render(folder: Path) -> dict[str, str]:
    """Generate the files in `folder` and return their texts by name."""
    outs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    sources = [f"tetrad/v1/{name}.proto" for name in FILES]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", *outs, *sources], cwd=ROOT, check=True)
    made = {path.name: path.read_text() for path in (folder / "tetrad/v1").iterdir()}
    # types.proto has no service.
    del made["types_pb2_grpc.py"]
    return {name: text.replace("from tetrad.v1 import", "from tetrad_client.v1 import") for name, text in made.items()}


def main() -> None:
    """Write the stubs to clients/python."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in render(Path(folder)).items():
            (OUT / name).write_text(text)


if __name__ == "__main__":
    main()
