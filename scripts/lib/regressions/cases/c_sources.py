"""C: what users met of sources."""

import json

import signed
from regressions.run import case
from regressions.world import expect
from regressions.cases.a4_listing import read, trained


@case("C.braces", "braces in paths stand for what a shell makes of them; each must match a file")
def braces(world):
    world.integers([10, 10, 10, 10])
    pipeline = world.integers_pipeline(5, data="data/train-{00001..00002}")
    trained(world, pipeline)
    expect(read(world) == list(range(10, 30)), f"delivered {read(world)}")
    run = trained(world, pipeline, "--data", "{data,data}/train-0000{0,3}")
    expect(run.json["elements_delivered"] == 40, f"{run.json['elements_delivered']} of 40")
    run = world.run("run", pipeline, "--data", "data/train-{00002..00004}")
    run.failed_in_one_line(2, "no file matches", "train-00004")


def elsewhere(world):
    """A second service, as somebody else's S3 with a bucket `theirs`: the variables that lead there."""
    world.up(state="other")
    file = json.loads((world.folder / "other/endpoint.json").read_text())
    keys = {
        "AWS_ENDPOINT_URL_S3": file["s3"], "AWS_ACCESS_KEY_ID": file["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": file["secret_access_key"], "AWS_REGION": file["region"],
    }
    signed.request(keys, "PUT", "/theirs")
    return keys


@case("C.s3-of-others", "a local service reads other people's buckets with the user's credentials")
def s3_of_others(world):
    keys = elsewhere(world)
    world.integers([20, 20], folder="set")
    (world.folder / "set/notes.json").write_text("x")
    for path in sorted((world.folder / "set").iterdir()):
        signed.request(keys, "PUT", f"/theirs/set/{path.name}", path.read_bytes())
    pipeline = world.integers_pipeline(5)
    run = world.run("run", pipeline, "--data", "s3://theirs/set/", "--epochs", "1", "--step-time", "0ms", "--json", "--sink", "sink",
                    env=keys, seconds=90)
    expect(run.code == 0, f"exit {run.code}: {run.lines()[-2:]}")
    expect(read(world) == list(range(40)), f"delivered {len(read(world))} of 40")
    expect(run.json["files_left_out"]["files"] == {"set/notes.json": "not TFRecord"}, f"{run.json['files_left_out']}")
    local = world.run("run", pipeline, "--data", "s3://theirs/set/", "--epochs", "1", "--step-time", "0ms", "--json",
                      "--workers", "0", "--local-workers", "1", env=keys)
    expect(local.code == 0 and local.json["elements_delivered"] == 40, f"local workers: {local.lines()[-2:]}")
    for command in (("explain", pipeline, "--data", "s3://theirs/set/train-{00000..00001}", "--json"),
                    ("plan", pipeline, "--data", "s3://theirs/set", "--step-time", "1ms", "--json")):
        looked = world.run(*command, env=keys)
        expect(looked.code == 0, f"{looked.name}: exit {looked.code}: {looked.err}")
    run = world.run("run", pipeline, "--data", "s3://nobodys/set/", env=keys)
    run.failed_in_one_line(1, "s3://nobodys", "NoSuchBucket")
    run = world.run("run", pipeline, "--data", "s3://theirs/set/", env=keys | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    run.failed_in_one_line(1, "s3://theirs", "SignatureDoesNotMatch")
    without = {name: value for name, value in keys.items() if "KEY" not in name}
    run = world.run("run", pipeline, "--data", "s3://theirs/set/", env=without | {"AWS_EC2_METADATA_DISABLED": "true"})
    run.failed_in_one_line(1, "no AWS credentials found")
