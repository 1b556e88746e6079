"""The errors that a user can cause; the command line prints them in one line and exits 2."""


class FedbenchError(Exception):
    """Subject, rule, what we got, what to do: one line, lower case, no full stop."""


class ConfigError(FedbenchError):
    """A parameter, a file or a combination that cannot be run as asked."""


class Misfit(ConfigError):
    """Parts that exist, but not together: a sweep lists them as skipped."""


class NoTheorem(Misfit):
    """A guarantee that nobody has proved: it is refused with the reason, never priced."""


class UnknownPluginError(ConfigError):
    """A name that no installed plug-in answers to, or several do, or one whose import fails."""


class IllegalPayloadError(FedbenchError):
    """A message that its wire format does not allow."""


def require(subject: str, value: object, holds: bool, rule: str) -> None:
    """Raise `ConfigError` naming ``subject``, the ``rule`` and the ``value`` unless it ``holds``.

    >>> require("ALIE.z", -1.0, False, "None or >= 0")
    Traceback (most recent call last):
    fedbench.errors.ConfigError: ALIE.z must be None or >= 0, got -1.0
    """
    if not holds:
        raise ConfigError(f"{subject} must be {rule}, got {value!r}")
