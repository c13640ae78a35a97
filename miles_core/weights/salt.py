"""Salts for the engines' prefix caches."""

from __future__ import annotations

import secrets


class PrefixSalt:
    """What requests carry as ``extra_key``: cached prefixes serve only requests of the same salt.

    An engine that is paused in place keeps the prefixes of its old weights. The salt holds the policy version, so that
    requests of later versions do not match them, and a random part, since an engine may outlive an update that failed,
    or a run whose versions count other weights.
    """

    def __init__(self) -> None:
        self.current = _salt(0)

    def renew(self, version: int) -> None:
        """Salt the requests from now on with ``version``."""
        self.current = _salt(version)


def _salt(version: int) -> str:
    return f"{version}-{secrets.token_hex(4)}"
