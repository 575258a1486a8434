"""`python -m tests.chaos`: a chaos run of any length, behind `make chaos` and its kin. Exit code 0: all is well."""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import report
from tests.chaos.kinds import ALL, Kind, named
from tests.chaos.machine import why_not
from tests.chaos.run import run
from tests.chaos.schedule import Fault, Targets, deck
from tests.chaos.settings import embeds_plan, media_plan, model_plan, prefill_plan, ranks_plan, sim_plan, stages_plan
from tests.chaos.stack import ChaosStack

# A frontend that is told to end closes its port until the next one is up: that is a matter for a load balancer.
_NOT_DRAINED = ("frontend",)
_PLANS = {
    "sim": sim_plan,
    "cpu": model_plan,
    "embeds": embeds_plan,
    "media": media_plan,
    "prefill": prefill_plan,
    "ranks": ranks_plan,
    "stages": stages_plan,
}


def main() -> int:
    """Run as the flags say."""
    options = _parse()
    extent = f"{options.kills} kills" if options.kills else f"{options.seconds:g} s"
    report.say(f"Chaos on {options.device}: {extent}, seed {options.seed}. The same again: SEED={options.seed}")
    log = Path(tempfile.gettempdir()) / f"tetrad-chaos-{options.seed}.log"
    report.say(f"The services' own lines are in {log}")
    duration_s = 0.0 if options.kills else options.seconds
    plan = _PLANS[options.device](options.seed, duration_s)

    kinds = _possible(named(["kill"]) if options.kills else options.kinds)

    def make_faults(stack: ChaosStack) -> Sequence[Fault]:
        cards = deck(kinds, _targets(stack), mean_pause_s=options.pause_s)
        return cards.deal_number(options.seed, options.kills) if options.kills else cards.deal(options.seed, options.seconds)

    result = asyncio.run(run(plan, make_faults, log))
    report.say(f"\n{'FAILED' if result.problems else 'All well'}: seed {options.seed}")
    return 1 if result.problems else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    text = (
        "cpu: SmolLM2 in float32. embeds: two layers that generate and embed. media: a tiny model that reads images, audio "
        "or videos, or transcribes. "
        "prefill: an engine core that computes prompts for another one. "
        "ranks: three workers with a part of each layer. stages: three with some layers."
    )
    parser.add_argument("--device", choices=_PLANS, default="sim", help=text)
    parser.add_argument("--seconds", type=float, default=600.0, help="How long faults strike.")
    parser.add_argument("--seed", type=int, default=None, help="Of requests, load and faults. Unset: a new one.")
    parser.add_argument("--pause-s", type=float, default=3.0, help="Mean seconds between two faults.")
    parser.add_argument("--kills", type=int, default=0, help="So many kill -9 and nothing else, however long it takes.")
    parser.add_argument(
        "--kinds", type=_kinds, default=ALL, metavar="KIND,...", help=f"Only these: {', '.join(kind.name for kind in ALL)}."
    )
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    return options


def _kinds(names: str) -> Sequence[Kind]:
    try:
        return named(names.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _possible(kinds: Sequence[Kind]) -> Sequence[Kind]:
    """Return the kinds that this machine can do, and name those that it cannot."""
    for kind in kinds:
        if reason := why_not(kind.needs):
            report.say(f"Left out: {kind.name}: {reason}")
    return [kind for kind in kinds if why_not(kind.needs) is None]


def _targets(stack: ChaosStack) -> Targets:
    drained = [name for name in stack.services if name not in _NOT_DRAINED]
    return Targets(stack.services, drained, sorted(stack.links), stack.tcp_links)


if __name__ == "__main__":
    sys.exit(main())
