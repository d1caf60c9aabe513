"""Checkpoints of `train_resnet.py`: weights, optimiser, random numbers and the state of the loader."""

import json
import os
from pathlib import Path
from typing import Any

import torch


class Checkpoints:
    """A folder with the newest checkpoint and the loss of every step. Without a folder nothing is written."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.losses = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.losses = (folder / "losses.jsonl").open("a+b")

    def restore(self, device: torch.device) -> dict[str, Any] | None:
        """What was saved last, or None. Losses of later steps are removed: these steps are trained again."""
        if self.losses is None:
            return None
        path = self.folder / "checkpoint.pt"
        saved = torch.load(path, map_location=device, weights_only=True) if path.exists() else None
        self.losses.truncate(saved["losses_bytes"] if saved else 0)
        if saved:
            torch.set_rng_state(saved["rng"].cpu())
            if device.type == "cuda":
                torch.cuda.set_rng_state(saved["cuda_rng"].cpu(), device)
        return saved

    def log(self, step: int, epoch: int, loss: float) -> None:
        if self.losses is not None:
            self.losses.write(json.dumps({"step": step, "epoch": epoch, "loss": loss}).encode() + b"\n")
            self.losses.flush()

    def save(self, device: torch.device, content: dict[str, Any]) -> None:
        """Writes the checkpoint whole or not at all."""
        if self.losses is None:
            return
        os.fsync(self.losses.fileno())
        length = os.fstat(self.losses.fileno()).st_size
        content = {**content, "rng": torch.get_rng_state(), "losses_bytes": length}
        if device.type == "cuda":
            content["cuda_rng"] = torch.cuda.get_rng_state(device)
        path = self.folder / "checkpoint.pt"
        draft = path.with_suffix(".draft")
        with open(draft, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
