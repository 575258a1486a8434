"""`tetrad pull`: downloads models before they are served."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tetrad.cli.models.options import add_device, add_revision
from tetrad.cli.options import new_parser
from tetrad.cli.termination import exit_at_sigterm
from tetrad.services.hub.model_files import existing_path, resolve_model
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.checkpoint.shards import weight_files
from tetrad.worker_svc.families.check import check_model


def run(arguments: list[str]) -> int:
    """Download the models and print their paths."""
    parser = new_parser(
        "pull",
        "Download models into the cache, or bring cached ones up to date. A model that cannot run is refused before its "
        "weights are downloaded; a download that broke off resumes. `tetrad serve` downloads by itself what the cache lacks.",
    )
    text = "Built-in name or Hugging Face id: org/name; org/name:Q4_K_M or org/name:FILE.gguf for one GGUF file of several."
    parser.add_argument("models", nargs="+", metavar="MODEL", help=text)
    add_revision(parser)
    add_device(parser)
    parser.epilog = (
        "Environment: HF_HUB_CACHE or HF_HOME (where the cache is), HF_TOKEN (for gated and private models), HF_ENDPOINT (a "
        "mirror of the hub), HF_HUB_OFFLINE (use the cache alone), TETRAD_CACHE_DIR (cache of the built-in models)."
    )
    trust = "Download a model that has its own Python code. No process runs the code before `tetrad serve --trust-remote-code`."
    parser.add_argument("--trust-remote-code", action="store_true", help=trust)
    options = parser.parse_args(arguments)
    check = partial(check_model, device=options.device, trusts_code=options.trust_remote_code)
    with exit_at_sigterm():
        for name in options.models:
            print(_pull(name, options.revision, check))
    return 0


def _pull(name: str, revision: str | None, check: Callable[[Mapping[str, Any]], object]) -> Path:
    """Return the path of a model that was downloaded, or that is a directory or file of this machine and can run."""
    if (path := existing_path(name)) is not None:
        check(read_model_config(path))
        if path.is_dir():
            weight_files(path)
        print(f"{path} is on this machine: nothing to download", file=sys.stderr)
        return path
    reports: list[str] = []

    def report(line: str) -> None:
        reports.append(line)
        print(line, file=sys.stderr, flush=True)

    path = resolve_model(name, revision=revision, report=report, check=check, refresh=True)
    if not reports:
        print(f"{name} is up to date", file=sys.stderr)
    return path
