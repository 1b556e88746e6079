"""A later version of the rules only adds."""

from collections.abc import Iterator
from itertools import pairwise

from fedbench.leaderboard.rules import Rules


def growth(versions: dict[int, Rules]) -> dict[int, list[str]]:
    """Return, by version, the demands of the version before that it has dropped, if any."""
    pairs = {new.version: list(losses(old, new)) for old, new in pairwise(versions.values())}
    return {version: lost for version, lost in pairs.items() if lost}


def losses(old: Rules, new: Rules) -> Iterator[str]:
    """Yield every change that would let an entry in that the version before kept out."""
    before = f"as in version {old.version}"
    if new.version != old.version + 1:
        yield f"version must be {old.version + 1}, got {new.version}"
    if new.seeds < old.seeds:
        yield f"seeds must be at least {old.seeds} {before}, got {new.seeds}"
    if new.confidence != old.confidence:
        yield f"confidence must be {old.confidence} {before}, got {new.confidence}"
    if freed := set(new.free) - set(old.free):
        yield f"free must not have {', '.join(sorted(freed))}, {before}"
    for name in ("accuracy", "bits", "epsilon"):
        limit, got = getattr(old.tolerance, name), getattr(new.tolerance, name)
        if got > limit:
            yield f"tolerance.{name} must be at most {limit} {before}, got {got}"
    for alphabet, attacks in old.ensemble.items():
        newer = new.ensemble.get(alphabet, ())
        if missing := [attack for attack in attacks if attack not in newer]:
            yield f"ensemble.{alphabet} must have {', '.join(missing)} {before}"
    for track in old.track:
        now = new.named(track.name)
        if now is None:
            yield f"track {track.name} must be there {before}"
            continue
        for name in ("scenario", "seeds", "data"):
            if getattr(now, name) != getattr(track, name):
                yield f"track {track.name} must have the {name} that it has in {old.version}"
        if now.clean.low < track.clean.low or now.clean.high > track.clean.high:
            yield f"track {track.name} must have an envelope within that of {old.version}"
