"""What the sites of one file must know about the other files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Facts about all files that are migrated together.

    * `poked`: functions of which attributes are used that tenacity sets, such as ``load.retry.statistics``.
    * `try_again`: where ``tenacity.TryAgain`` is used first, or "".
    * `switches`: where stamina is switched off or into test mode, or "".
    * `imported_names`: names that other files import, by the last part of the module's name.
    """

    poked: frozenset[str] = frozenset()
    try_again: str = ""
    switches: str = ""
    imported_names: frozenset[tuple[str, str]] = frozenset()
