"""Choice of runs whose rounds are streamed: large ones, if rule, attack and mechanism permit."""

import math
import os

from fedbench.adversary import threat_model
from fedbench.api import Traits
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.choices import SUMS
from fedbench.core.errors import Incompatible
from fedbench.experiment.setup import Setup
from fedbench.isolation.stand_ins import StandIn
from fedbench.payload import BinaryMasks, Patch, SignBits

MAX_WHOLE_ROUND_BYTES = 1 << 32  # of rounds that can be streamed, larger ones are
BYTES_PER_PAIR = 48  # of clients, for distances in all steps of a rule, roughly
BYTES_PER_PARAMETER = 24  # of each client in a whole round, roughly


def streams(setup: Setup, wanted: bool | None) -> bool:
    """Return whether a run's rounds are streamed.

    By default those above `MAX_WHOLE_ROUND_BYTES` are, if they can be. `Incompatible` where it is
    ``wanted`` and cannot be, and where a round fits in no memory.
    """
    d = setup.plugins.protocol.trained(setup.shared).d
    size = BYTES_PER_PARAMETER * setup.scenario.per_round * d
    if (wanted is None and size <= MAX_WHOLE_ROUND_BYTES) or wanted is False:
        return False
    why = obstacle(setup)
    if why is None:
        return True
    if wanted or size > memory() or pairs(setup) is not None:
        least = f"about {size / 2**30:.1f} GiB for a round of {setup.scenario.per_round} clients"
        raise Incompatible(
            f"messages must be added up as they come where they do not fit in memory ({least}), "
            f"but {why}, or lower --per-round"
        )
    return False


def memory() -> float:
    """Return the bytes of this machine's memory; infinity on Windows, which does not tell."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bits_alone(setup: Setup) -> bool:
    """Return whether clients send bits, and no floats of normalisation beside them."""
    protocol = setup.plugins.protocol
    masks = issubclass(protocol.sends, BinaryMasks)
    beside = masks and protocol.trained(setup.shared).d > setup.shared.weights.d
    return issubclass(protocol.sends, BinaryMasks | SignBits) and not beside


def needs_sums(setup: Setup) -> bool:
    """Return whether sums of the messages are enough for the rule."""
    traits = ask(setup.plugins.defense, "traits", Traits)
    enough = traits.reads_sum or (traits.counts and bits_alone(setup))
    return setup.plugins.defense.folds and enough


def pairs(setup: Setup) -> str | None:
    """Return which plug-in compares all pairs of messages, if these fit in no memory."""
    plugins = setup.plugins
    rule = plugins.defense
    if BYTES_PER_PAIR * setup.scenario.per_round**2 <= memory():
        return None
    columns = ask(rule, "traits", Traits).columns
    if not needs_sums(setup) and rule.keeps and rule.pairs and not columns:
        return f"defense {plugins.defense_name} compares all pairs of them; use --defense median"
    if plugins.attack.keeps:
        name = registry.split(setup.scenario.attack)[0]
        return f"attack {name} may compare all pairs of them; use --attack sign-flip"
    return None


def obstacle(setup: Setup) -> str | None:
    """Return which part of a run needs all messages of a round, and a remedy; or None."""
    plugins = setup.plugins
    scenario = setup.scenario
    attack = plugins.attack
    name = registry.split(scenario.attack)[0]
    needs = threat_model.needs(attack)
    if isinstance(plugins.defense, StandIn):
        return "rules and attacks of other processes get whole rounds; leave --isolate out"
    if not (needs_sums(setup) or plugins.defense.keeps):
        return f"defense {plugins.defense_name} reads each of them; use --defense median"
    if (why := pairs(setup)) is not None:
        return why
    patches = issubclass(plugins.protocol.sends, Patch)
    if patches and not needs_sums(setup):
        return "a packet of a patch does not say all of its values; use --defense mean"
    if patches and attack.keeps:
        return "a packet of a patch does not say all of its values; use --attack sign-flip"
    if needs.defense or attack.learns or threat_model.recruits(attack) != 0:
        return f"attack {name} asks the rule, learns or recruits; use --attack sign-flip"
    if not (attack.idle or needs.tier == "own" or attack.folds or attack.keeps):
        return f"attack {name} reads each of them; use --attack sign-flip"
    if not plugins.mechanism.folds:
        return f"mechanism {scenario.mechanism} counts clients; use one that does not adapt"
    if scenario.sees in SUMS:
        return f"--sees {scenario.sees} masks them together; use --sees messages"
    return "a canonical run commits to them; leave --canonical out" if setup.canonical else None
