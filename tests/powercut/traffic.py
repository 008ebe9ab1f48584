"""Requests that a real client makes, kept so that they can be made again, and what must be true after them."""

import base64
import http.client
import http.server
import json
import os
import pathlib
import subprocess
import threading
import urllib.request
from dataclasses import dataclass, replace

KIB = 1 << 10

# Enough for the log of the index to be folded into it while the server runs (at 1000 pages), and not only at its end.
LINE_COUNT = 30

# Lines of changes of a repository of the Hub, each of its own, and commits of each.
REPO_COUNT, COMMIT_COUNT = 5, 8


@dataclass
class Request:
    """Something that changes the store, and what is true once it is acknowledged."""

    method: str
    path: str
    body: bytes
    # Hash and bytes of the xorb or the file that it is about.
    hash: str
    data: bytes
    is_xorb: bool
    # Whether that is there then, or not any more.
    is_there: bool = True
    # For a change of a Hub repository, its name: `hash` is then the title of the change, empty for the creation, after the
    # name; and `data` has the files of a commit by their paths. No two commits have the same path.
    repo: str | None = None

    @property
    def title(self):
        return self.hash.removeprefix(f"{self.repo} ")


class Server:
    """A zorb, perhaps behind another command."""

    def __init__(self, binary, data, log, before=(), **environment):
        environment = {"PATH": os.environ["PATH"], "ZORB_LOG": "info", "ZORB_GRANTS": "true", **environment}
        command = [*before, binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data)]
        self.log = open(log, "w+b")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, env=environment, cwd="/"
        )
        line = self.process.stdout.readline().decode()
        if not line.startswith("zorb listening on http://"):
            self.process.wait()
            raise Failure(f"the server did not start: {line!r}\n{self.said()}")
        self.address = line.strip().removeprefix("zorb listening on http://")

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=60)

    def said(self):
        self.log.seek(0)
        return self.log.read().decode()

    def end(self, number):
        """Sends a signal to the server itself, and waits for the end of it and of what it is behind."""
        below = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(below[0]) if below else self.process.pid, number)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


# A connection that breaks.
ERRORS = (OSError, http.client.HTTPException)


class Failure(Exception):
    """What must hold does not."""


def ask(connection, method, path, body=None, headers=None):
    connection.request(method, path, body=body, headers=headers or {})
    response = connection.getresponse()
    return response.status, response.read()


def collect(binary, directory, rng):
    """Lines of requests, each to be made in order, of pushes of files that share something within a line."""
    directory.mkdir()
    server = Server(binary, directory / "original", directory / "log", ZORB_GRANTS="false")
    lines = []
    try:
        with Recorder(server.address) as recorder:
            for line_number in range(LINE_COUNT):
                # One that is long enough to go to the disk past the page cache, and others.
                begin_len = rng.choice([9, 500, 4096, 30 * KIB, 150 * KIB]) if lines else 1200 * KIB
                line, data = [], rng.randbytes(begin_len)
                for version in range(4):
                    if version:
                        data = data + rng.randbytes(rng.choice([1, 70 * KIB]))
                    path = directory / f"{line_number}-{version}"
                    path.write_bytes(data)
                    for method, target, body in recorder.push(binary, path):
                        if "/xorbs/" in target:
                            line.append(Request(method, target, body, target.rsplit("/", 1)[1], body, is_xorb=True))
                        else:
                            line.append(Request(method, target, body, recorder.pushed, data, is_xorb=False))
                lines.append(line)
            # The stored form has no footer.
            connection = server.connect()
            for request in (request for line in lines for request in line if request.is_xorb):
                status, request.data = ask(connection, "GET", f"/xorbs/{request.hash}")
                if status != 200:
                    raise Failure(f"the original of {request.path} cannot be read: {status}")
            connection.close()
    finally:
        server.end(9)
    vary(lines, rng)
    for number in range(REPO_COUNT):
        lines.insert(rng.randrange(len(lines) + 1), repo_line(f"me/r{number}", rng))
    return lines


def repo_line(repo, rng):
    """The creation of a repository, and commits of small files, whose xorbs the server makes."""
    about = {"type": "model", "organization": "me", "name": repo.removeprefix("me/")}
    line = [Request("POST", "/api/repos/create", json.dumps(about).encode(), f"{repo} ", {}, False, repo=repo)]
    for number in range(COMMIT_COUNT):
        title = f"commit {number}"
        files = {
            f"{number}.txt": rng.randbytes(rng.choice([1, 500, 30 * KIB])),
            f"d{number % 3}/{number}.txt": rng.randbytes(50),
        }
        lines = [{"key": "header", "value": {"summary": title, "description": ""}}]
        for path, data in files.items():
            value = {"path": path, "encoding": "base64", "content": base64.b64encode(data).decode()}
            lines.append({"key": "file", "value": value})
        body = "\n".join(map(json.dumps, lines)).encode()
        line.append(Request("POST", f"/api/models/{repo}/commit/main", body, f"{repo} {title}", files, False, repo=repo))
    return line


def vary(lines, rng):
    """The same things by other ways: what is there already, uploads by grant (see `Client`), and files that are removed,
    some of them not for long."""
    for line in lines:
        for index in reversed(range(len(line))):
            request, more = line[index], []
            if not request.is_xorb and rng.random() < 0.3:
                more.append(replace(request, method="DELETE", path=f"/v1/files/{request.hash}", body=None, is_there=False))
            if rng.random() < 0.3:
                more.append(replace(request))
            line[index + 1 : index + 1] = more
        for request in line:
            if request.is_xorb and rng.random() < 0.3:
                request.method = "GRANT"


class Recorder:
    """A proxy that keeps what is sent through it to change something."""

    def __init__(self, address):
        kept = self.kept = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.body()
                dropped = ("host", "transfer-encoding", "content-length", "connection")
                headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
                connection = http.client.HTTPConnection(address, timeout=60)
                connection.request(self.command, self.path, body=body, headers=headers)
                response = connection.getresponse()
                data = response.read()
                if self.command == "POST" and response.status < 300:
                    kept.append((self.command, self.path, body))
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in dropped:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)
                connection.close()

            do_GET = do_POST = do_HEAD = do_PUT = handle_any

            def body(self):
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                parts = []
                while length := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(length))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def push(self, binary, path):
        """What a push of this file sends."""
        self.kept.clear()
        command = [binary, "push", "--server", self.url, "--no-resume", "--json", str(path)]
        result = subprocess.run(command, check=True, capture_output=True)
        self.pushed = json.loads(result.stdout.splitlines()[0])["hash"]
        return list(self.kept)


class Client:
    """Makes one line of requests, each when the one before has its response."""

    def __init__(self, server):
        self.server, self.connection = server, server.connect()

    def make(self, request, name="again"):
        """Makes a request, whose response will have this name; returns False where the server has gone."""
        try:
            status, body = self.send(request, name)
        except ERRORS:
            return False
        # What is to be removed may have been removed before, and a repository created.
        is_done = status == 404 and not request.is_there or status == 409 and request.repo and not request.title
        if status not in (200, 201) and not is_done:
            raise Failure(f"{request.method} {request.path}: {status} {body[:300]!r}")
        return True

    def send(self, request, name):
        named = {"X-Request-Id": name}
        if request.repo:
            named["Content-Type"] = "application/x-ndjson" if request.title else "application/json"
        if request.method != "GRANT":
            return ask(self.connection, request.method, request.path, request.body, named)
        # Only the response to the commit says that the xorb is stored.
        place = "default/" + request.path.rsplit("/", 1)[1]
        about = {"length": len(request.body), "checksum": {"algo": "crc64nvme", "value": str(crc64nvme(request.body))}}
        headers = {"Content-Type": "application/json"}
        status, body = ask(self.connection, "POST", f"/v1/xorb-grants/{place}", json.dumps(about), headers)
        if status == 200:
            return ask(self.connection, "POST", request.path, request.body, named)
        if status != 201:
            return status, body
        grant = json.loads(body)
        path = "/" + grant["url"].split("/", 3)[3]
        status, body = ask(self.connection, "PUT", path, request.body)
        if status != 200:
            return status, body
        return ask(self.connection, "POST", f"/v1/xorb-commits/{place}/grant/{grant['id']}", b"", named)

    def read_file(self, file):
        """The bytes of a file as it is reconstructed; None where there is no such file."""
        status, body = ask(self.connection, "GET", f"/v1/reconstructions/{file}")
        if status == 404:
            return None
        if status != 200:
            raise Failure(f"the reconstruction of {file}: {status} {body[:300]!r}")
        plan = json.loads(body)
        chunks = {}
        for xorb, fetches in plan["fetch_info"].items():
            for fetch in fetches:
                path = "/" + fetch["url"].split("/", 3)[3]
                wanted = f"bytes={fetch['url_range']['start']}-{fetch['url_range']['end']}"
                status, data = ask(self.connection, "GET", path, headers={"Range": wanted})
                if status != 206:
                    raise Failure(f"data of {file}: {status} {data[:300]!r}")
                for index, chunk in enumerate(decode(data), fetch["range"]["start"]):
                    chunks[xorb, index] = chunk
        terms = [(term["hash"], term["range"]["start"], term["range"]["end"]) for term in plan["terms"]]
        return b"".join(chunks[xorb, index] for xorb, start, end in terms for index in range(start, end))

    def read_xorb(self, xorb):
        """The stored bytes of a xorb; None where there is no such xorb."""
        status, body = ask(self.connection, "GET", f"/xorbs/{xorb}")
        if status not in (200, 404):
            raise Failure(f"xorb {xorb}: {status} {body[:300]!r}")
        return body if status == 200 else None

    def read_repo(self, repo):
        """The titles of the commits of a Hub repository, and the files of its head; None where there is no such repository."""
        status, body = ask(self.connection, "GET", f"/api/models/{repo}")
        if status in (401, 404):
            return None
        history = self.read_json(f"/api/models/{repo}/commits/main?limit=1000")
        files = {}
        for entry in self.read_json(f"/api/models/{repo}/tree/main?recursive=true&limit=1000"):
            if entry["type"] == "file" and entry["path"] != ".gitattributes":
                status, files[entry["path"]] = ask(self.connection, "GET", f"/{repo}/resolve/main/{entry['path']}")
                if status != 200:
                    raise Failure(f"{entry['path']} of {repo}: {status}")
        return [commit["title"] for commit in history], files

    def read_json(self, path):
        status, body = ask(self.connection, "GET", path)
        if status != 200:
            raise Failure(f"GET {path}: {status} {body[:300]!r}")
        return json.loads(body)


def decode(data):
    """Chunks of random bytes, which nothing compresses."""
    at = 0
    while at < len(data):
        length, scheme = int.from_bytes(data[at + 1 : at + 4], "little"), data[at + 4]
        if scheme != 0:
            raise Failure("a chunk of random bytes is compressed")
        yield data[at + 8 : at + 8 + length]
        at += 8 + length


def table():
    polynomial = 0x9A6C9329AC4BC9B5
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        yield value


CRC64 = list(table())


def crc64nvme(data):
    value = (1 << 64) - 1
    for byte in data:
        value = CRC64[(value ^ byte) & 255] ^ value >> 8
    return value ^ (1 << 64) - 1
