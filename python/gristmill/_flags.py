"""Options by name as flags of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """`--on-error=skip` for `on_error="skip"`. True is a flag without a value; None and False are left out."""
    flags = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        flags.append(flag if value is True else f"{flag}={value}")
    return flags
