"""The way back from a folded seed, which an adversary could go."""

from fedbench.core.rng import _word


def unfold(seed: int, *names: str | int) -> int:
    """The seed of which `Key.fold` made this one: each of its steps can be taken back."""

    def unmix(z: int) -> int:
        for shift, factor in ((31, 1), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
            z = z * pow(factor, -1, 2**64) % 2**64
            x = z
            for _ in range(64 // shift + 1):
                x = z ^ (x >> shift)
            z = x
        return z

    for name in reversed(names):
        seed = (unmix(unmix(seed) ^ _word(name)) - 0x9E3779B97F4A7C15) % 2**64
    return seed
