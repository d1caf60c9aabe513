"""A small training whose losses are equal to the last bit however often it is killed: `training.py FOLDER OPTIONS`.

It writes FOLDER/losses.jsonl, a line for each step, and FOLDER/state.pt; started again it goes on at the state.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

import gristmill as gm  # noqa: E402
import gristmill.torch  # noqa: E402
from gristmill import _native  # noqa: E402

EPOCHS, SAVE_EVERY, SIDE = 2, 4, 64


def network(device):
    torch.manual_seed(1)
    layers = [
        torch.nn.Conv2d(3, 16, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 15 * 15, 10),
    ]
    return torch.nn.Sequential(*layers).to(device)


def main():
    folder, options = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    device = torch.device(options["device"])
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    data = _native.generate("images", options["images"])
    source = gm.tfrecord(data / "train-*", image=gm.bytes("image/encoded"), label=gm.i64("image/class/label"))
    taken = source.take(count=options["some_images"]).shuffle()
    pipeline = taken.decode().random_resized_crop(size=SIDE).flip()
    pipeline = pipeline.batch(size=options["losses_batch"], drop_remainder=True).deliver(normalise=gm.IMAGENET)
    model = network(device)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    path, log = folder / "state.pt", folder / "losses.jsonl"
    service = gm.local(state_dir=folder / "service")
    loader = gm.torch.Loader(
        pipeline, service=service, job="losses", epochs=EPOCHS, seed=3, device=device, channels_first=True, workers=2
    )
    step = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        loader.load_state_dict(json.loads(state["loader"]))
        step = state["step"]
        lines = log.read_text().splitlines()[:step]
        log.write_text("".join(f"{line}\n" for line in lines))

    def save():
        kept = {
            "model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step,
            "loader": json.dumps(loader.state_dict()),
        }
        torch.save(kept, folder / "state.tmp")
        os.replace(folder / "state.tmp", path)

    with log.open("a") as losses, loader:
        if step == 0:
            save()
        for _ in range(loader.epoch, EPOCHS):
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"] % 10)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                step += 1
                losses.write(json.dumps([step, loss.item().hex()]) + "\n")
                losses.flush()
                if step % SAVE_EVERY == 0:
                    save()
    service.close()


if __name__ == "__main__":
    main()
