"""Results of a run, as text and as JSON."""

import collections
import json

WIDTH = 22


def as_json(totals, stalls, seed, seconds):
    return json.dumps({
        "seed": seed, "seconds": round(seconds, 1), "good": totals.good, "jobs": totals.jobs,
        "faults": dict(sorted(totals.faults.items())), "kills": totals.kills,
        "batches": totals.batches, "delivered": totals.delivered, "skipped": totals.skipped,
        "lost": totals.lost, "twice": totals.twice, "batches_again": totals.replays,
        "hash_mismatches": totals.hash_mismatches, "held_fire": totals.held,
        "stalls": stalls.summary(), "worst_recovery": stalls.worst_recovery(), "errors": totals.errors, "hung": totals.hung,
        "fetchers_said": dict(totals.said), "ended": dict(totals.ends),
    })


def seconds_of(value):
    return "-" if value is None else f"{value:.2f} s"


def table(totals, stalls, seed, seconds):
    lines = [f"seed {seed}, {seconds:.0f} s, {totals.jobs} jobs", ""]
    summary = stalls.summary()
    heads = ("median", "worst", "of kills", "median", "worst")
    lines.append(f"{'fault':{WIDTH}}{'injected':>9}" + "".join(f"{head:>11}" for head in heads))
    for kind, count in sorted(totals.faults.items()):
        row = f"{kind:{WIDTH}}{count:>9}"
        if kind in summary:
            row += stall_columns(summary[kind])
        lines.append(row)
    lines.append("  (from a kill to the next new batch; of kills: while nothing was paused, cut, slow or full)")
    lines.append("")
    for name in ("kills", "batches", "delivered", "skipped", "lost", "twice"):
        lines.append(f"{name:{WIDTH}}{getattr(totals, name):>9}")
    lines.append(f"{'batches sent again':{WIDTH}}{totals.replays:>9}")
    lines.append(f"{'hash differs':{WIDTH}}{totals.hash_mismatches:>9}")
    lines.append(f"{'waits over 40 s':{WIDTH}}{totals.held:>9}")
    lines.append(f"{'hung':{WIDTH}}{len(totals.hung):>9}")
    lines += ["", recovery(stalls), *notes(totals)]
    return "\n".join(lines)


def recovery(stalls):
    worst = stalls.worst_recovery()
    if worst is None:
        return "worst recovery: no kill was followed by a batch"
    kind, seconds = worst
    return f"worst recovery {seconds_of(seconds)} after {kind}"


def stall_columns(figures):
    return "".join(f"{text:>11}" for text in (
        seconds_of(figures["median_s"]), seconds_of(figures["worst_s"]), str(figures["alone"]),
        seconds_of(figures["alone_median_s"]), seconds_of(figures["alone_worst_s"]),
    ))


def notes(totals):
    lines = []
    for title, said in (("fetchers said", totals.said), ("ended by itself", totals.ends)):
        if said:
            lines += ["", f"{title}:"]
            lines += [f"  {count} x {text[:150]}" for text, count in said.most_common(12)]
    if totals.errors:
        errors = collections.Counter(totals.errors).most_common(20)
        lines += ["", "errors:"] + [f"  {count} x {error}" for error, count in errors]
    for hung in totals.hung:
        lines += ["", "hung: " + hung]
    return lines
