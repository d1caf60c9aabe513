"""What scripts/smoke-aws measures and writes.

    smoke.py calls GRISTMILL                       milliseconds of calls to the coordinator, the first one cold
    smoke.py compare WORK                          fails unless every run delivered the same batches
    smoke.py measure WORK STACK ARCHITECTURE       what the logs and CloudWatch say
    smoke.py report WORK OUTCOME STEP LEFT         all of it, without account numbers and keys

WORK has the standard output of each step in a file of its name. $AWS names the AWS CLI.
"""

import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

FUNCTIONS = ("coordinator", "worker", "scaler")
# As shared/policy/src/cost/prices.rs has them: us-east-1, November 2026.
GB_SECOND = {"arm64": 0.0000133334, "x86_64": 0.0000166667}
LAMBDA_REQUEST, PUT, GET = 0.20e-6, 0.005e-3, 0.0004e-3


def aws(*words):
    """The answer of a call, or None."""
    done = subprocess.run([os.environ["AWS"], *words, "--output", "json"], capture_output=True, text=True)
    if done.returncode:
        print(f"aws {' '.join(words[:2])}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout or "null")


def last_json(path):
    """The last line of a file, or None."""
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        return None


def spread(values):
    if not values:
        return None
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]  # noqa: E731
    return {"count": len(values), "p50": statistics.median(values), "p99": at(0.99), "max": values[-1]}


# ---- calls and comparison


def calls(gristmill):
    found = []
    for _ in range(6):
        started = time.monotonic()
        command = [gristmill, "status", "nobody", "--backend", "aws"]
        subprocess.run(command, capture_output=True, check=False)
        found.append(round((time.monotonic() - started) * 1000))
    print(json.dumps(found))


def compare(work):
    runs = {name: last_json(work / name) for name in ("here", "there", "killed")}
    hashes = {name: run and run["batches_blake3"] for name, run in runs.items()}
    print(json.dumps(hashes))
    if None in hashes.values() or len(set(hashes.values())) != 1:
        sys.exit("the batches differ")
    for name, run in runs.items():
        if run["lost"] or run["duplicates"]:
            sys.exit(f"{name}: {run['lost']} records lost, {run['duplicates']} delivered twice")


# ---- logs


def events(group, start=0, end=None):
    """Messages of a log group."""
    until = ["--end-time", str(end)] if end else []
    said = aws("logs", "filter-log-events", "--log-group-name", group, "--start-time", str(start), *until)
    return [each["message"] for each in (said or {}).get("events", [])]


# Names in JSON logs, and in text.
REPORTED = {
    "duration": ("durationMs", "Duration"),
    "billed": ("billedDurationMs", "Billed Duration"),
    "init": ("initDurationMs", "Init Duration"),
    "memory": ("memorySizeMB", "Memory Size"),
    "used": ("maxMemoryUsedMB", "Max Memory Used"),
}


def platform_report(message):
    """What Lambda says of one call, in milliseconds and MB, or None."""
    if message.startswith("{") and '"platform.report"' in message:
        fields, kind = json.loads(message)["record"]["metrics"], 0
    elif message.startswith("REPORT "):
        fields, kind = dict(re.findall(r"([A-Z][A-Za-z ]+): ([0-9.]+) (?:ms|MB)", message)), 1
    else:
        return None
    return {name: float(fields[names[kind]]) if names[kind] in fields else None for name, names in REPORTED.items()}


def metrics(messages):
    """Lines of the functions' own metrics."""
    return [json.loads(each) for each in messages if each.startswith("{") and '"_aws"' in each]


def of_function(stack, name):
    reports = list(filter(None, map(platform_report, events(f"/aws/lambda/{stack}-{name}"))))
    given = lambda field: [report[field] for report in reports if report[field] is not None]  # noqa: E731
    return {
        "calls": len(reports),
        "duration_ms": spread(given("duration")),
        "init_ms": spread(given("init")),
        "memory_used_mb": max(given("used"), default=None),
    }


def coordinator_calls(lines):
    """Milliseconds within the coordinator, by the name of the call."""
    latencies = {}
    for line in lines:
        names = {each["Name"] for group in line["_aws"]["CloudWatchMetrics"] for each in group["Metrics"]}
        for name in names - {"refusals", "conflicts", "latency_ms"}:
            latencies.setdefault(name, []).append(line["latency_ms"])
    return {name: spread(values) for name, values in sorted(latencies.items())}


# ---- cost


def billed(stack, architecture, start, end):
    """Dollars of the functions between two times, by Lambda's reports."""
    compute = requests = 0.0
    for name in FUNCTIONS:
        for report in filter(None, map(platform_report, events(f"/aws/lambda/{stack}-{name}", start, end))):
            compute += report["memory"] / 1024 * report["billed"] / 1000 * GB_SECOND[architecture]
            requests += LAMBDA_REQUEST
    return compute, requests


def table_units(table, kind):
    """Units that CloudWatch counted in the last hour."""
    now = datetime.datetime.now(datetime.timezone.utc)
    options = {
        "namespace": "AWS/DynamoDB",
        "metric-name": f"Consumed{kind}CapacityUnits",
        "dimensions": f"Name=TableName,Value={table}",
        "statistics": "Sum",
        "period": "3600",
        "start-time": (now - datetime.timedelta(hours=1)).isoformat(),
        "end-time": now.isoformat(),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    points = (aws("cloudwatch", "get-metric-statistics", *words) or {}).get("Datapoints", [])
    return sum(point["Sum"] for point in points) if points else None


def cost(work, stack, architecture, run):
    began = [int(line) for line in (work / "began").read_text().split()]
    compute, requests = billed(stack, architecture, *began[:2])
    gets = run["requests"].get("s3", {}).get("GetObject", 0)
    # A worker puts each split, and reads a piece of the source and of the index for it.
    objects = run["splits"] * (PUT + 2 * GET) + gets * GET
    return {
        "of": "the run without kills",
        "report_usd": run.get("cost"),
        "bill_usd": {"functions": compute, "function_requests": requests, "object_requests": objects},
    }


# ---- all of it


def measure(work, stack, architecture):
    run, table = last_json(work / "there"), last_json(work / "deploy")["TableName"]
    workers = metrics(events(f"/aws/lambda/{stack}-worker"))
    coordinator = metrics(events(f"/aws/lambda/{stack}-coordinator"))
    counted = ("splits", "rows", "source_ms", "compute_ms", "put_ms")
    stored = sum(epoch["stored_bytes"] for epoch in run["epochs"])
    put_s = sum(epoch["worker_seconds"]["put"] for epoch in run["epochs"])
    found = {
        "functions": {name: of_function(stack, name) for name in FUNCTIONS},
        "coordinator_ms": coordinator_calls(coordinator),
        "workers": {name: sum(line[name] for line in workers) for name in counted},
        "put_mb_per_s": round(stored / 1e6 / put_s, 1) if put_s else None,
        "failure_was_reported": any("release" in line for line in coordinator),
        "table_units": {kind: table_units(table, kind) for kind in ("Read", "Write")},
        "cost": cost(work, stack, architecture, run),
    }
    print(json.dumps(found))


def seconds(work):
    lines = (work / "seconds").read_text().split("\n") if (work / "seconds").exists() else []
    return {name: int(count) for name, count in (line.split() for line in lines if line)}


def transfer(work, took):
    """Rates of this machine, by the AWS CLI, which takes a second to start."""
    size = sum(each.stat().st_size for each in work.glob("downloaded/*"))
    rate = lambda name: round(size / 1e6 / max(took[name], 1), 1) if took.get(name) is not None else None  # noqa: E731
    return {"bytes": size, "upload_mb_per_s": rate("upload"), "download_mb_per_s": rate("download")}


def report(work, outcome, step, left):
    took = seconds(work)
    runs = {name: last_json(work / name) for name in ("here", "there", "killed")}
    kept = ("batches_blake3", "lost", "duplicates", "kills", "splits", "requests", "epochs")
    doctor = work / "doctor"
    found = {
        "outcome": outcome,
        "last_step": step,
        "left": left,
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "region": os.environ["AWS_REGION"],
        "emulator": bool(os.environ.get("AWS_ENDPOINT_URL")),
        "trainer": platform.platform(),
        "seconds": took,
        "runs": {name: run and {key: run[key] for key in kept} for name, run in runs.items()},
        "calls_from_here_ms": last_json(work / "calls"),
        "transfers_from_here": transfer(work, took),
        "doctor": doctor.read_text().splitlines() if doctor.exists() else None,
        "measured": last_json(work / "measure"),
    }
    if outcome != "ok":
        logs = [work / step, work / "logs" / step]
        found["log"] = [line for log in logs if log.exists() for line in log.read_text().splitlines()[-30:]]
    text = json.dumps(found, indent=1)
    # Nobody has to read it before it is sent.
    text = re.sub(r"\b[0-9]{12}\b", "ACCOUNT", text)
    print(re.sub(r"\bA(KI|SI)A[A-Z0-9]+", "KEY", text))


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "calls":
        calls(arguments[0])
    else:
        {"compare": compare, "measure": measure, "report": report}[command](pathlib.Path(arguments[0]), *arguments[1:])
