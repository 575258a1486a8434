#!/usr/bin/env python3
"""Stands in for kubectl and for programs that need a cluster or an engine: records its calls, and does the offline part.

Linked under the program's name. Without a cluster kubectl can still build the objects to apply and write the objects to
create; for other verbs the flags are checked against its help. Lines of JSON in $STAND_IN_LOG: program, arguments, output.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

KUBECTL = os.environ["STAND_IN_KUBECTL"]


def ask(*arguments: str) -> str:
    ran = subprocess.run([KUBECTL, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"kubectl {' '.join(arguments)}: {ran.stderr}")
    return ran.stdout


def as_without_a_cluster(arguments: list[str]) -> str:
    """Return what kubectl makes of a command by itself; ends the process if it would refuse it."""
    verb = next(each for each in arguments if each in ("apply", "create", "rollout", "get", "logs", "exec", "port-forward"))
    if verb == "apply" and "-k" in arguments:
        return ask("kustomize", arguments[arguments.index("-k") + 1])
    if verb == "apply":
        return Path(arguments[arguments.index("-f") + 1]).read_text()
    if verb == "create":
        return ask(*arguments, "--dry-run=client", "-o", "yaml")
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    verbs = own[own.index(verb) :][:2] if verb == "rollout" else [verb]
    known = ask(*verbs, "--help") + ask("options")
    flags = [each.partition("=")[0] for each in own if each.startswith("-")]
    unknown = [flag for flag in flags if f"{flag}=" not in known and f"{flag}," not in known]
    if unknown:
        sys.exit(f"kubectl {verb} has no {', '.join(unknown)}")
    return ""


program, arguments = Path(sys.argv[0]).name, sys.argv[1:]
output = as_without_a_cluster(arguments) if program == "kubectl" else ""
with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
    log.write(json.dumps({"program": program, "arguments": arguments, "output": output}) + "\n")
