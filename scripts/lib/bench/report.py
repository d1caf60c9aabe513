"""Results of the rounds, as text and as JSON."""

import json
import os


def verdict(holds):
    return {None: "", True: "holds", False: "MISSED"}[holds]


def number(value, digits):
    return "-" if value is None else f"{value:,.{digits}f}"


def significant(value):
    """At least three digits: a token takes a hundredth of an image's time."""
    return number(value, 2 if value is None or value >= 0.5 else 4)


def table(figures, held, runs, *_):
    how = {run.who(): run.how for run in runs}
    lines = [
        f"medians of {len(figures.rounds)} rounds; a sample of ingest is a megabyte",
        "",
        f"{'work':9}{'who':28}{'cores':>5}{'samples/s':>12}{'CPU ms/sample':>15}{'peak MB':>9}{'start CPU s':>13}  how",
    ]
    for who in figures.everyone():
        rate, cpu_ms = figures.median(who, "samples_per_s"), figures.median(who, "cpu_ms")
        peak = number(figures.median(who, "peak_rss_mb"), 0)
        start = number(figures.median(who, "start_cpu_s"), 2)
        name = ", ".join(filter(None, (who.name, who.variant)))
        lines.append(
            f"{who.work:9}{name:28}{who.cores:>5}{number(rate, 0):>12}{significant(cpu_ms):>15}{peak:>9}{start:>13}"
            f"  {how.get(who, '')}".rstrip())
    lines += ["", f"{'comparison':54}{'median':>9}{'from':>9}{'to':>9}  bar"]
    lines += map(row, held)
    return "\n".join(lines)


def row(comparison):
    values = comparison.values or [None]
    columns = "".join(f"{significant(value):>9}" for value in (comparison.value, min(values), max(values)))
    return f"{comparison.what:54}{columns}  {bar(comparison):9} {verdict(comparison.holds)}".rstrip()


def bar(comparison):
    if comparison.at_least is not None:
        return f">= {comparison.at_least:g}"
    return "" if comparison.at_most is None else f"<= {comparison.at_most:g}"


def as_json(figures, held, runs, missing, busiest):
    return json.dumps({
        "cores": len(os.sched_getaffinity(0)),
        "rounds": len(figures.rounds),
        "others_busy_max": round(busiest, 3),
        "figures": [
            {**who._asdict(), **{field: figures.median(who, field) for field in figures.of(who)[0]._fields}}
            for who in figures.everyone()
        ],
        "comparisons": [
            {
                "what": comparison.what, "median": comparison.value, "rounds": comparison.values,
                "at_least": comparison.at_least, "at_most": comparison.at_most, "holds": comparison.holds,
            }
            for comparison in held
        ],
        "missing": missing,
        "holds": all(comparison.holds is not False for comparison in held),
    })
