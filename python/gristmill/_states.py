"""States of loaders as texts of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import CheckpointError

__all__ = ["VERSION", "State", "text_of"]

State = dict[str, Any]

# 2: the batches of a split are a part of it.
VERSION = 2


def text_of(state: Mapping[str, Any]) -> str:
    """The text of the checkpoint in `state`. Raises CheckpointError if it is no state."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise CheckpointError("this is no state of a loader: give load_state_dict what state_dict returned")
    if state["version"] != VERSION:
        raise CheckpointError(f"the state has version {state['version']}, and this gristmill reads version {VERSION}")
    fields = {name: value for name, value in state.items() if name != "version"}
    if set(fields) != {"job", "fingerprint", "seed", "split_batches", "epoch", "g"}:
        raise CheckpointError(
            f"the state has the fields {', '.join(sorted(fields))}: it was changed, or is of another tool"
        )
    try:
        return json.dumps({name: value if isinstance(value, str) else int(value) for name, value in fields.items()})
    except (TypeError, ValueError):
        raise CheckpointError("the state holds a value that is neither text nor integer") from None
