"""The wire format of docs/training.md: a client that takes the width of each field from the page's tables."""

from __future__ import annotations

import json
import re
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from manual import Place, rows, says, tables, until

PAGE = "docs/training.md"
#: Tables of bytes in the order of the page: frames, what a trainer sends, what a rank sends.
HEADER, OF_TRAINER, OF_RANK = [table.rows for table in tables(PAGE) if table.header[0] == "bytes"]
WIDTHS = {"4": "I", "8": "Q"}
RECORDS = 20  # three batches an epoch: one fewer than two steps of two ranks


def messages(rows: list[list[str]]) -> dict[str, str]:
    """The struct of each message of a table, without its payload, by magic."""
    found, magic = {}, ""
    for widths, field, what in rows:
        for width in widths.split(", ") if widths not in ("", "payload_len") else []:
            if field == "magic":
                magic = re.findall(r"`(GM\w+)`", what)[0]
                found[magic] = "<4s"
            else:
                found[magic] += WIDTHS[width]
    return found


SENT = {**messages(OF_TRAINER), **messages(OF_RANK)}
FIELDS = [row[1] for row in HEADER]
FRAME = struct.Struct("<" + "".join("4s" if row[1] == "magic" else WIDTHS[row[0]] for row in HEADER))


class Client:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        magic, _, _, hello = self.frame()
        assert magic == "GMBH"
        self.hello: dict[str, Any] = json.loads(hello)

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the fetcher went away"
            data += more
        return data

    def frame(self) -> tuple[str, int, int, bytes]:
        """Magic, epoch, batch index and payload."""
        values = dict(zip(FIELDS, FRAME.unpack(self.receive(FRAME.size)), strict=True))
        payload = self.receive(values["payload_len"])
        return values["magic"].decode(), values["epoch"], values["batch_index"], payload

    def send(self, magic: str, *values: int, payload: bytes = b"") -> None:
        self.socket.sendall(struct.pack(SENT[magic], magic.encode(), *values) + payload)

    def greet(self, magic: str, **more: Any) -> None:
        names = {name: self.hello[name] for name in ("job", "dataset", "fingerprint")}
        text = json.dumps(names | more).encode()
        self.send(magic, len(text), payload=text)


def fetcher(place: Place, more: str = "") -> None:
    if not place.background:
        place.numbers(RECORDS)
        place.start("gristmill up --state-dir state", "is ready at unix:")
    job = "--state-dir state --job j1 --pipeline numbers.yaml --epochs 2 --socket /tmp/s"
    place.start(f"gristmill-fetcher {job} {more}", "serving ")


@pytest.fixture
def connect(place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(place.folder)  # paths of sockets are short
    return lambda: Client(Path("s"))


def test_the_tables_of_bytes() -> None:
    says(PAGE, f"a {FRAME.size}-byte header")
    assert set(SENT) == {"GMAH", "GMA1", "GMAW", "GMH1", "GMAJ"}
    assert messages(OF_RANK)["GMA1"] == messages(OF_TRAINER)["GMA1"] == messages(OF_RANK)["GMAJ"]


def test_frames(place: Place, connect: Any) -> None:
    listed = rows(PAGE, "frame", "payload")
    fetcher(place)
    stranger = connect()
    stranger.greet("GMAH", job="other")
    frames = {"`GMBX`": stranger.frame()}
    assert frames["`GMBX`"][0] == "GMBX" and len(frames["`GMBX`"][3].decode().splitlines()) == 1
    stranger.socket.close()
    until(lambda: connect().hello["batches"] == 3)  # null until the dataset is indexed
    client = connect()
    assert {"job", "dataset", "fingerprint", "epochs", "batches", "visitation"} <= client.hello.keys()
    assert (client.hello["epochs"], client.hello["batches"]) == (2, 3)
    client.greet("GMAH", epoch=0, batch_index=1)
    got = []
    while True:
        client.send("GMAW")
        magic, epoch, batch_index, payload = client.frame()
        if magic == "GMBE":
            break
        assert magic == "GMB1"
        length = int.from_bytes(payload[:8], "little")
        header = json.loads(payload[8 : 8 + length])
        dtypes = {name: it["dtype"] for name, it in header.items() if name != "__metadata__"}
        assert dtypes == {"x": "I64", "__key__": "U64", "__copy__": "U32"}
        got.append((epoch, batch_index))
        client.send("GMA1", epoch, batch_index)
    assert got == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], "from the batch that the hello names"
    summary = json.loads(payload)
    assert {"epochs", "batches", "closed", "totals"} <= summary.keys() and (summary["epochs"], summary["batches"]) == (
        2,
        6,
    )
    for total in summary["totals"]:
        says(PAGE, *(f"`{name}`" for name in total.keys() - {"waits"}), *(f"`{name}`" for name in total["waits"]))
        assert {"epoch", "batches", "rows", "skipped", "left_out", "splits", "stored_bytes", "waits"} <= total.keys()
        assert total["waits"].keys() == {"unclaimed", "working", "fetch", "decode"}
    assert set(listed) == {"`GMBH`", "`GMB1`", "`GMBE`", "`GMBX`"}


def test_a_finished_job_has_an_end_for_a_trainer_that_has_all(place: Place, connect: Any) -> None:
    says(PAGE, "It sends `GMBE` to a trainer whose checkpoint covers the whole job.")
    says(PAGE, "Any other gets `GMBX`, also one whose checkpoint is beyond the job's end.")
    place.numbers(RECORDS)
    place.start("gristmill up --state-dir state", "is ready at unix:")
    place.run("gristmill run numbers.yaml --state-dir state --job j1 --epochs 2 --step-time 0ms")
    fetcher(place)
    for at, magic in (((2, 1), "GMBX"), ((2, 0), "GMBE")):
        client = connect()
        client.greet("GMAH", epoch=at[0], batch_index=at[1])
        assert client.frame()[0] == magic, at


def test_frames_of_ranks(place: Place, connect: Any) -> None:
    fetcher(place, "--ranks 0-1 --of 2 --run r --tail repeat")
    ranks = [connect(), connect()]
    seen: dict[int, list[tuple[str, int, int]]] = {0: [], 1: []}
    texts: dict[int, list[bytes]] = {0: [], 1: []}
    for rank, client in enumerate(ranks):
        assert {"seed", "ranks", "from"} <= client.hello.keys()
        assert client.hello["ranks"].keys() >= {"first", "count", "of", "tail", "run"}
        assert client.hello["from"].keys() == {"epoch", "batch_index"}
        client.greet("GMH1", rank=rank, of=2, run="r")
    for _ in range(4):
        for rank, client in enumerate(ranks):
            magic, *after, text = client.frame()
            assert magic == "GMBC" and json.loads(text)["epoch"] == after[0]
            texts[rank].append(text)
            magic, epoch, batch_index, _ = client.frame()
            seen[rank].append((magic, epoch, batch_index))
            client.send("GMA1", epoch, batch_index)
    listed = {name for row in rows(PAGE, "frame", "epoch, batch_index") for name in re.findall(r"GM\w+", row)}
    assert {magic for frames in seen.values() for magic, _, _ in frames} | {"GMBC"} == listed
    assert seen[0] == [("GMB1", epoch, g) for epoch in (0, 1) for g in (0, 2)]
    assert seen[1] == [(magic, epoch, g) for epoch in (0, 1) for magic, g in (("GMB1", 1), ("GMBR", 3))]
    assert texts[0] == texts[1], "the text is the same for all ranks"
    ends = [client.frame() for client in ranks]
    closed = [
        json.loads(end[3])["closed"] or json.loads(client.frame()[3])["closed"]
        for end, client in zip(ends, ranks, strict=True)
    ]
    assert [end[0] for end in ends] == ["GMBE", "GMBE"] and closed == [True, True]


def test_one_rank_speaks_for_the_job(place: Place, connect: Any) -> None:
    """`GMAJ`: the text of a `GMBC` is durable for all ranks of the fetcher."""
    fetcher(place, "--ranks 0-1 --of 2 --run r --tail repeat")
    ranks = [connect(), connect()]
    for rank, client in enumerate(ranks):
        client.greet("GMH1", rank=rank, of=2)
    checkpoints = [client.frame() for client in ranks]
    assert [client.frame()[0] for client in ranks] == ["GMB1", "GMB1"]
    _, epoch, batch_index, text = checkpoints[0]
    ranks[0].send("GMAJ", epoch, batch_index)

    def durable() -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(place.run("gristmill status j1 --checkpoint --state-dir state").out)
        return kept

    until(lambda: durable() == json.loads(text), durable)
