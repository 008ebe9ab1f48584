"""Transfers of the Hub without hf_xet: downloads beside ranges of xorbs, and memory per transfer.

    python3 benches/hub_plain.py [ROUNDS [MIB [COUNT]]]

ROUNDS is 5, MIB 1024 and COUNT 32 if not given. Random bytes in four files are uploaded by the Git LFS batch. In each round curl
downloads the files by their URLs, and the same bytes as raw xorbs, each over one connection. Then COUNT clients at once upload
files of 16 MiB, then COUNT clients download one, then COUNT clients its raw xorb, all slowly. Prints the medians, and the ratio of each round with its spread;
and how much memory the server takes more per transfer, at most. Needs target/release/zorb, and curl.
"""

import hashlib
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/clients"))

from hub import Server  # noqa: E402

PIECE_LEN = 1 << 16
SLOW_LEN = 16 << 20
# Bytes per second of a slow client: each transfer takes eight seconds.
SLOW_RATE = 2 << 20


def main(rounds=5, mib=1024, count=32):
    with tempfile.TemporaryDirectory() as scratch:
        with Server(ROOT / "target/release/zorb", pathlib.Path(scratch) / "data", "off") as server:
            post(server, "/api/repos/create", {"name": "model", "organization": "me"})
            names = [f"{number}.bin" for number in range(4)]
            for name in names:
                upload(server, name, os.urandom((mib // 4) << 20))
            xorbs = json.loads(server.get("/v1/xorbs?limit=1000", "any")[2])["xorbs"]
            plain = [f"{server.url}/me/model/resolve/main/{name}" for name in names]
            raw = [f"{server.url}/xorbs/{xorb['hash']}?format=raw" for xorb in xorbs]
            measured = {"files": [], "raw xorbs": []}
            for number in range(rounds):
                ways = [("files", plain), ("raw xorbs", raw)]
                for name, urls in ways if number % 2 else reversed(ways):
                    seconds, received = download(urls)
                    # A xorb of the small files, too.
                    assert mib << 20 <= received < (mib << 20) + 10_000, received
                    measured[name].append(mib / seconds)
            ratios = [files / raw for files, raw in zip(measured["files"], measured["raw xorbs"])]
            for name, rates in measured.items():
                print(f"download of {name:9} {statistics.median(rates):6.0f} MiB/s")
            print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        transfers = {"upload": slow_upload, "download": slow_download, "download of raw xorb": slow_raw_download}
        for what, transfer in transfers.items():
            with Server(ROOT / "target/release/zorb", pathlib.Path(scratch) / what, "off") as server:
                post(server, "/api/repos/create", {"name": "model", "organization": "me"})
                upload(server, "one.bin", os.urandom(SLOW_LEN))
                transfer(server, 0)
                before = memory(server)
                highest = at_once(server, transfer, count)
                print(f"{count} times {what} at once: {(highest - before) / count:.2f} MiB each, beside {before:.0f} MiB")


def post(server, path, body, kind="application/json"):
    return json.loads(request(server, "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), kind))


def request(server, method, path, body, kind="application/octet-stream"):
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=120)
    headers = {"Authorization": "Bearer any", "Content-Type": kind}
    if not isinstance(body, bytes):
        headers["Content-Length"] = str(SLOW_LEN)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    received = response.read()
    assert response.status == 200, (path, response.status, received)
    connection.close()
    return received


def upload_path(server, oid, size):
    """Where a file with this sha256 is to be sent."""
    batch = {"operation": "upload", "transfers": ["basic"], "objects": [{"oid": oid, "size": size}]}
    response = post(server, "/me/model.git/info/lfs/objects/batch", batch, "application/vnd.git-lfs+json")
    return response["objects"][0]["actions"]["upload"]["href"].removeprefix(server.url)


def upload(server, name, contents):
    oid = hashlib.sha256(contents).hexdigest()
    request(server, "PUT", upload_path(server, oid, len(contents)), contents)
    file = {"key": "lfsFile", "value": {"path": name, "algo": "sha256", "oid": oid, "size": len(contents)}}
    header = {"key": "header", "value": {"summary": name}}
    lines = "".join(json.dumps(line) + "\n" for line in (header, file)).encode()
    post(server, "/api/models/me/model/commit/main", lines, "application/x-ndjson")


def download(urls):
    """Seconds and bytes of a download of these, over one connection."""
    command = ["curl", "-sS", "--fail", "-H", "Authorization: Bearer any", "-w", "%{size_download}\n"]
    for url in urls:
        command += ["-o", "/dev/null", url]
    begin = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.monotonic() - begin, sum(int(line) for line in done.stdout.split())


def paced(pieces):
    begin, sent = time.monotonic(), 0
    for piece in pieces:
        yield piece
        sent += len(piece)
        time.sleep(max(0, begin + sent / SLOW_RATE - time.monotonic()))


def slow_upload(server, number):
    contents = hashlib.shake_128(str(number).encode()).digest(SLOW_LEN)
    path = upload_path(server, hashlib.sha256(contents).hexdigest(), SLOW_LEN)
    request(server, "PUT", path, paced(contents[at : at + PIECE_LEN] for at in range(0, SLOW_LEN, PIECE_LEN)))


def slow_download(server, _):
    receive_slowly(server, "/me/model/resolve/main/one.bin")


def slow_raw_download(server, _):
    xorbs = json.loads(server.get("/v1/xorbs", "any")[2])["xorbs"]
    largest = max(xorbs, key=lambda xorb: xorb["raw_len"])
    receive_slowly(server, f"/xorbs/{largest['hash']}?format=raw")


def receive_slowly(server, path):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    connection.request("GET", path, headers={"Authorization": "Bearer any"})
    response = connection.getresponse()
    assert response.status == 200, response.status
    received = sum(len(piece) for piece in paced(iter(lambda: response.read(PIECE_LEN), b"")))
    assert received == SLOW_LEN, received
    connection.close()


def at_once(server, transfer, count):
    """Runs so many transfers, and returns the memory of the server meanwhile, at most."""
    failures = []

    def run(number):
        try:
            transfer(server, number)
        except Exception as error:  # Reported below.
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number + 1,)) for number in range(count)]
    for thread in threads:
        thread.start()
    highest = 0
    while any(thread.is_alive() for thread in threads):
        highest = max(highest, memory(server))
        time.sleep(0.05)
    if failures:
        sys.exit(f"{len(failures)} of {count} failed: {failures[0]!r}")
    return highest


def memory(server):
    """MiB of memory that the server process has now."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
