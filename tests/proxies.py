"""The examples of config/ for nginx and Caddy, and the server's own TLS, with the stock Python client in front, and requests of
the Hub whose paths must not be changed on the way.

    python tests/proxies.py target/release/zorb

Needs nginx, caddy, openssl and hf_xet. Runs the files as they are in the repository, but for names, ports and paths. Every
port is one of loopback, and every process is ended in the end.
"""

import base64
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import random
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "clients"))

import stock_client  # noqa: E402

MIB = 1 << 20


def say(text):
    print(f"proxies: {text}", flush=True)


def main(binary):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        certificate, key, authority = make_certificates(directory)
        # What hf_xet, Python and zorb itself look for authorities in.
        os.environ["SSL_CERT_FILE"] = str(authority)
        for name, front in [("built-in TLS", None), ("nginx", Nginx), ("caddy", Caddy)]:
            begin = time.monotonic()
            place = directory / name.split()[0]
            place.mkdir()
            check_front(name, front, binary, place, certificate, key, rng)
            say(f"{name}: all of it in {time.monotonic() - begin:.0f} s")


def check_front(name, front, binary, place, certificate, key, rng):
    if front is None:
        os.environ.update(ZORB_TLS_CERT=str(certificate), ZORB_TLS_KEY=str(key))
        try:
            server = stock_client.Server(binary, place / "data")
        finally:
            del os.environ["ZORB_TLS_CERT"], os.environ["ZORB_TLS_KEY"]
        proxy = None
    else:
        os.environ["ZORB_TRUSTED_PROXIES"] = "127.0.0.1"
        try:
            server = stock_client.Server(binary, place / "data")
        finally:
            del os.environ["ZORB_TRUSTED_PROXIES"]
        proxy = front(place, [port_of(server.url)], certificate, key)
    try:
        if proxy is not None:
            server.url = f"https://127.0.0.1:{proxy.port}"
        if not server.url.startswith("https://"):
            sys.exit(f"{name} is reached by {server.url}")
        check_client(name, server, place, rng)
        check_data(name, server, place, rng)
        check_upload(name, server, rng, proxy)
        check_hub(name, server, rng)
        check_refusals(name, server)
    finally:
        if proxy is not None:
            proxy.stop()
        server.stop()
    if front is not None:
        check_streaming(name, front, place, certificate, key)


def check_client(name, server, place, rng):
    """The stock client pushes and pulls; every byte is compared."""
    text = b"".join(b"line %d of a text that compresses\n" % number for number in range(200_000))
    contents = {"empty": b"", "small": rng.randbytes(1000), "random": rng.randbytes(90 * MIB), "mixed": text + rng.randbytes(5 * MIB)}
    pushed = stock_client.push(server, list(stock_client.write_files(place / "files", contents)))
    stock_client.check_pull(server, pushed)
    stock_client.check_pull(server, pushed, HF_XET_CLIENT_ENABLE_MULTIRANGE_FETCHING="true")
    say(f"{name}: {len(pushed)} files, {sum(map(len, contents.values()))} bytes pushed and pulled")


def check_data(name, server, place, rng):
    """URLs of data lead through the front, and ranges, one and several, come back as they are stored."""
    # The end of the file is in the xorb twice over: not next to each other, so a URL for it has several ranges.
    first, second, third = (rng.randbytes(8 * MIB) for _ in range(3))
    data = first + second + third + first + third
    (pushed,) = stock_client.push(server, list(stock_client.write_files(place / "parts", {"parts": data}))).values()
    headers = {"Authorization": f"Bearer {server.token('read', 'models/acme/one')}", "Range": f"bytes={24 * MIB}-{len(data) - 1}"}
    plan = json.loads(get(server, f"/v2/reconstructions/{pushed[0]}", headers)[2])
    single = multiple = 0
    for xorb, entries in plan["xorbs"].items():
        (stored,) = (server.directory / "xorbs").glob(f"*/{xorb}.*")
        stored = stored.read_bytes()
        for entry in entries:
            if not entry["url"].startswith(server.url + "/v1/data/"):
                sys.exit(f"{name}: data is at {entry['url']}")
            path = entry["url"][len(server.url) :]
            ranges = [(part["bytes"]["start"], part["bytes"]["end"]) for part in entry["ranges"]]
            for chosen in [ranges[:1], ranges] if len(ranges) > 1 else [ranges]:
                header = "bytes=" + ",".join(f"{start}-{end}" for start, end in chosen)
                status, headers, body = get(server, path, {"Range": header})
                if status != 206 or int(headers["content-length"]) != len(body):
                    sys.exit(f"{name}: {status} for {header}")
                wanted = [stored[start : end + 1] for start, end in chosen]
                if len(chosen) == 1:
                    single += 1
                    if body != wanted[0]:
                        sys.exit(f"{name}: {header} came back changed")
                else:
                    multiple += 1
                    if parts_of(headers["content-type"], body) != wanted:
                        sys.exit(f"{name}: {header} came back changed")
    if not single or not multiple:
        sys.exit(f"{name}: {single} URLs of one range and {multiple} of several; this test is about both")
    say(f"{name}: {single} requests for one range and {multiple} for several gave the stored bytes")


def parts_of(content_type, body):
    boundary = b"--" + content_type.split("boundary=")[1].encode()
    pieces = body.split(boundary)[1:-1]
    return [piece.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n") for piece in pieces]


def check_upload(name, server, rng, proxy):
    """64 MiB that do not compress arrive while they are sent, and nothing of them is kept on the way."""
    xorb, xorb_hash = make_xorb(server.binary, server.directory.parent, rng)
    token = server.token("write", "models/acme/one")
    before = server.received()
    connection = connect(server)
    connection.putrequest("POST", f"/v1/xorbs/default/{xorb_hash}")
    connection.putheader("Authorization", f"Bearer {token}")
    connection.putheader("Content-Length", str(len(xorb)))
    connection.endheaders()
    half = len(xorb) // 2
    connection.send(xorb[:half])
    deadline = time.monotonic() + 60
    # Some of it may be in buffers of sockets; a proxy that keeps bodies back would show nothing at all. Counted in the
    # end, as the server counts only then.
    while True:
        in_flight = server.metric("zorb_uploads_in_flight")
        draft = sum(path.stat().st_size for path in (server.directory / "tmp").iterdir())
        if in_flight and draft > half // 2:
            break
        if time.monotonic() > deadline:
            sys.exit(f"{name}: of {half} bytes the server has written {draft} while the client waits: {in_flight} uploads")
        time.sleep(0.05)
    if proxy is not None and proxy.kept():
        sys.exit(f"{name}: {proxy.kept()} lie about on the way")
    connection.send(xorb[half:])
    response = connection.getresponse()
    body = response.read()
    if response.status != 200 or json.loads(body) != {"was_inserted": True}:
        sys.exit(f"{name}: {response.status} {body!r}")
    if server.received() - before != len(xorb):
        sys.exit(f"{name}: the server has counted {server.received() - before} bytes of {len(xorb)}")
    say(f"{name}: {len(xorb)} bytes in one upload, {draft} of them written when half was sent")


# What must not be decoded, encoded again or taken for something else on the way.
ODD_PATHS = [
    "plain.txt", "a space.txt", "plus+sign.txt", "per%cent.txt", "not%2Fa%20slash.txt", "n\u00e4me/\u65e5\u672c.txt",
    "sub dir/deep+%41/file.txt", "question?.txt", "hash#.txt", "semi;colon&and=.txt", "quote's \"(of)\".txt",
    "~tilde@at:colon.txt",
]  # fmt: skip
ODD_BRANCH = "feature/x+\u00fc"


def check_hub(name, server, rng):
    """Paths and branches with letters that are encoded in URLs; and URLs in responses lead through the front."""
    begin = time.monotonic()
    hub = Hub(name, server, "acme/odd")
    files = {path: f"the contents of {path}\n".encode() for path in ODD_PATHS}
    created = hub.expect(200, "POST", "/api/repos/create", {"type": "model", "organization": "acme", "name": "odd"})
    hub.check_url(created["url"], "/acme/odd")
    committed = hub.commit("main", files)
    hub.check_url(committed["commitUrl"], f"/acme/odd/commit/{committed['commitOid']}")
    large = {"sub dir/l\u00e4rge +%41.bin": rng.randbytes(3 * MIB)}
    hub.upload(large)
    branch = {"on branch.txt": b"only on the branch\n"}
    hub.expect(200, "POST", f"/api/models/acme/odd/branch/{quote_all(ODD_BRANCH)}", {"startingPoint": "main"})
    hub.commit(ODD_BRANCH, branch)
    hub.check_files("main", {**files, **large}, absent=branch)
    hub.check_files(ODD_BRANCH, {**files, **large, **branch}, absent={})
    hub.check_files("refs/heads/main", {**files, **large}, absent=branch)
    hub.check_pages(ODD_BRANCH, {**files, **large, **branch})
    token = hub.expect(200, "GET", f"/api/models/acme/odd/xet-read-token/{quote_all(ODD_BRANCH)}")
    if token["casUrl"] != server.url:
        sys.exit(f"{name}: {token['casUrl']} is not {server.url}")
    took = time.monotonic() - begin
    say(f"{name}: {len(files) + 2} files of the Hub with odd paths, on a branch with a slash, too, in {took:.1f} s")


class Hub:
    """A repository of the Hub behind a front."""

    def __init__(self, name, server, repo):
        self.name, self.server, self.repo = name, server, repo
        self.headers = {"Authorization": f"Bearer {server.token('write', f'models/{repo}')}"}
        self.connection = connect(server)

    def ask(self, method, path, body=None, headers=None):
        """Over one connection; the path is sent as it is."""
        self.connection.request(method, path, body, self.headers if headers is None else {**self.headers, **headers})
        response = self.connection.getresponse()
        return response.status, response.headers, response.read()

    def expect(self, status, method, path, body=None, content_type="application/json"):
        encoded = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        found = self.ask(method, path, encoded, {"Content-Type": content_type})
        if found[0] != status:
            sys.exit(f"{self.name}: {method} {path} has the status {found[0]}, not {status}: {found[1]}{found[2]!r}")
        return json.loads(found[2])

    def check_url(self, url, path):
        if url != self.server.url + path:
            sys.exit(f"{self.name}: {url} is not {self.server.url}{path}")

    def commit(self, branch, files=(), lines=()):
        """A commit of small files, which are part of it, and of these lines."""
        lines = [("header", {"summary": "odd", "description": ""}), *lines]
        for path in files:
            lines.append(("file", {"path": path, "encoding": "base64", "content": base64.b64encode(files[path]).decode()}))
        body = "\n".join(json.dumps({"key": key, "value": value}) for key, value in lines)
        path = f"/api/models/{self.repo}/commit/{quote_all(branch)}"
        return self.expect(200, "POST", path, body.encode(), "application/x-ndjson")

    def upload(self, files):
        """As clients without hf_xet send large files: to the URLs of a Git LFS batch."""
        objects = {hashlib.sha256(contents).hexdigest(): contents for contents in files.values()}
        request = {
            "operation": "upload", "transfers": ["basic"], "hash_algo": "sha256",
            "objects": [{"oid": oid, "size": len(contents)} for oid, contents in objects.items()],
        }  # fmt: skip
        batch = self.expect(200, "POST", f"/{self.repo}.git/info/lfs/objects/batch", request, "application/vnd.git-lfs+json")
        for found in batch["objects"]:
            contents = objects[found["oid"]]
            for action, of_action in found["actions"].items():
                if not of_action["href"].startswith(self.server.url + "/"):
                    sys.exit(f"{self.name}: {action} is to be sent to {of_action['href']}, not to {self.server.url}")
            put = found["actions"]["upload"]["href"].removeprefix(self.server.url)
            # Clients send no token here.
            connection = connect(self.server)
            connection.request("PUT", put, contents)
            response = connection.getresponse()
            if response.status != 200:
                sys.exit(f"{self.name}: PUT {put} has the status {response.status}: {response.read()!r}")
            if "verify" in found["actions"]:
                verify = found["actions"]["verify"]["href"].removeprefix(self.server.url)
                status, _, body = self.ask("POST", verify, json.dumps({"oid": found["oid"], "size": len(contents)}))
                if status != 200:
                    sys.exit(f"{self.name}: POST {verify} has the status {status}: {body!r}")
        self.commit("main", lines=[
            ("lfsFile", {"path": path, "algo": "sha256", "oid": hashlib.sha256(contents).hexdigest(), "size": len(contents)})
            for path, contents in files.items()
        ])  # fmt: skip

    def check_files(self, revision, files, absent):
        """Each file, whole and in part, and none of the absent ones."""
        for path, contents in files.items():
            url = f"/{self.repo}/resolve/{quote_all(revision)}/{urllib.parse.quote(path)}"
            status, headers, _ = self.ask("HEAD", url)
            if (status, headers["Content-Length"]) != (200, str(len(contents))):
                sys.exit(f"{self.name}: HEAD {url} has the status {status}: {headers}")
            status, headers, body = self.ask("GET", url)
            if (status, body) != (200, contents):
                sys.exit(f"{self.name}: GET {url} has the status {status}, {len(body)} bytes: {body[:200]!r}")
            status, headers, body = self.ask("GET", url, headers={"Range": "bytes=3-", "Accept-Encoding": "gzip"})
            if (status, body, headers["Content-Encoding"]) != (206, contents[3:], None):
                sys.exit(f"{self.name}: bytes 3- of {url} have the status {status}: {headers}{body[:200]!r}")
        for path in absent:
            url = f"/{self.repo}/resolve/{quote_all(revision)}/{urllib.parse.quote(path)}"
            status, headers, _ = self.ask("GET", url)
            if (status, headers["X-Error-Code"]) != (404, "EntryNotFound"):
                sys.exit(f"{self.name}: {url} has the status {status}: {headers}")
        body = urllib.parse.urlencode([("paths", path) for path in [*files, *absent]] + [("expand", "false")]).encode()
        path = f"/api/models/{self.repo}/paths-info/{quote_all(revision)}"
        found = self.expect(200, "POST", path, body, "application/x-www-form-urlencoded")
        if {item["path"]: item["size"] for item in found} != {path: len(contents) for path, contents in files.items()}:
            sys.exit(f"{self.name}: {path} has {found}")

    def check_pages(self, revision, files):
        """The tree of each directory, and all of it in pages."""
        tree = f"/api/models/{self.repo}/tree/{quote_all(revision)}"
        paths = {*files, ".gitattributes"}
        directories = {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/") + 1)}
        for directory in directories:
            inside = {path.removeprefix(f"{directory}/").split("/")[0] for path in paths if path.startswith(f"{directory}/")}
            # The path is one segment.
            found = self.expect(200, "GET", f"{tree}/{quote_all(directory)}")
            if {item["path"] for item in found} != {f"{directory}/{name}" for name in inside}:
                sys.exit(f"{self.name}: in {directory} are {found}, not {inside}")
        listed, path = [], f"{tree}?recursive=true&limit=3"
        while path:
            status, headers, body = self.ask("GET", path)
            if status != 200:
                sys.exit(f"{self.name}: GET {path} has the status {status}: {body!r}")
            listed += [item["path"] for item in json.loads(body)]
            link = headers["Link"]
            # All pages are of the commit of the first one.
            if link and not link.startswith(f"<{self.server.url}/api/models/{self.repo}/tree/"):
                sys.exit(f"{self.name}: the page after {path} is {link}")
            path = link and link[1:].split(">")[0].removeprefix(self.server.url)
        if sorted(listed) != sorted(paths | directories):
            sys.exit(f"{self.name}: the tree has {listed}")


def quote_all(text):
    """One segment of a path."""
    return urllib.parse.quote(text, safe="")


def check_refusals(name, server):
    """What is refused is refused by zorb, in JSON, not by whoever stands before it; and 1 GiB are nothing to fear."""
    token = server.token("write", "models/acme/one")
    for length in (100 * MIB, 1 << 30):
        # Holes; a client that reads while it sends, as Python's does not.
        body = server.directory.parent / "long"
        with body.open("wb") as file:
            file.truncate(length)
        command = ["curl", "--silent", "--show-error", "--http1.1", "--max-time", "120", "--request", "POST"]
        command += ["--cacert", os.environ["SSL_CERT_FILE"], "--header", f"Authorization: Bearer {token}", "--header", "Expect:"]
        command += ["--upload-file", str(body), "--write-out", "\n%{http_code} %{size_upload}"]
        done = subprocess.run([*command, f"{server.url}/v1/xorbs/default/{'0' * 64}"], capture_output=True, text=True)
        problem, _, sent = done.stdout.rpartition("\n")
        if not sent.startswith("413 ") or json.loads(problem)["code"] != "too_large":
            sys.exit(f"{name}: {length} bytes get {done.stdout!r} {done.stderr!r}")
        if int(sent.split()[1]) > length // 2:
            sys.exit(f"{name}: {sent} of {length} were sent before the client was told")
    status, headers, body = get(server, "/v1/xorb-grants-2/default/" + "0" * 64, {})
    if status != 404 or json.loads(body)["code"] != "not_found":
        sys.exit(f"{name}: a route that is not there is {status} {body!r}")
    if "text/html" in str(headers):
        sys.exit(f"{name}: {headers}")


def check_streaming(name, front, place, certificate, key):
    """Lines of /v2/shards arrive when they are sent, not when the last one is: the server here sends each one only when
    the client has got the one before."""
    seen = [threading.Event() for _ in range(4)]

    class Slow(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number, event in enumerate(seen):
                line = b'{"type":"validating","verified":%d,"total":4}\n' % number
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
                if not event.wait(30):
                    return
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_):
            pass

    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    proxy = front(place, [upstream.server_address[1]], certificate, key)
    try:
        connection = http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=20, context=ssl.create_default_context())
        connection.request("POST", "/v2/shards", b"x" * 1000)
        response = connection.getresponse()
        for number, event in enumerate(seen):
            line = json.loads(response.readline())
            if line["verified"] != number:
                sys.exit(f"{name}: {line} instead of line {number}")
            event.set()
        if response.read():
            sys.exit(f"{name}: more than was sent")
    except TimeoutError:
        sys.exit(f"{name} keeps lines back")
    finally:
        for event in seen:
            event.set()
        proxy.stop()
        upstream.shutdown()
    say(f"{name}: {len(seen)} lines, each before the next one was sent")


def make_xorb(binary, directory, rng):
    """A xorb of 64 MiB that do not compress, and its hash."""
    source = directory / "full"
    source.write_bytes(rng.randbytes(70 * MIB))
    output = directory / "packed"
    output.mkdir()
    subprocess.run([binary, "xorb", "pack", str(source), "-o", str(output)], check=True, stdout=subprocess.DEVNULL)
    # The first one is full, the second is the rest.
    path = max(output.iterdir(), key=lambda path: path.stat().st_size)
    found = json.loads(subprocess.check_output([binary, "xorb", "inspect", "--json", str(path)], text=True).splitlines()[0])
    return path.read_bytes(), found["hash"]


def connect(server):
    context = ssl.create_default_context()
    return http.client.HTTPSConnection("127.0.0.1", port_of(server.url), timeout=60, context=context)


def get(server, path, headers):
    connection = connect(server)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def port_of(url):
    return int(url.rsplit(":", 1)[1])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def replaced(text, changes):
    """A text with all of these changed; each has to be in it."""
    for old, new in changes:
        if old not in text:
            sys.exit(f"{old!r} is not in the example any more")
        text = text.replace(old, new)
    return text


class Proxy:
    """A process that listens on a port of its own."""

    def begin(self, command, environment=None):
        self.log = (self.directory / "log").open("wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        deadline = time.monotonic() + 30
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command[0]} does not start: {(self.directory / 'log').read_text()}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def kept(self):
        """Files with something in them that the proxy has made."""
        return [str(path) for path in self.temporary.rglob("*") if path.is_file() and path.stat().st_size]


class Nginx(Proxy):
    def __init__(self, place, upstreams, certificate, key):
        """In front of the servers at these ports."""
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=place))
        self.temporary = self.directory / "temporary"
        self.temporary.mkdir()
        # Its workers are another user's.
        self.temporary.chmod(0o777)
        for above in [self.directory, place, place.parent]:
            above.chmod(0o755)
        self.port, plain = free_port(), free_port()
        site = replaced(
            (ROOT / "config" / "nginx.conf").read_text(),
            [
                # As docs/cluster.md says, if there are several.
                ("proxy_next_upstream off;", "proxy_connect_timeout 2s; proxy_next_upstream error timeout;" if upstreams[1:] else "proxy_next_upstream off;"),
                ("server 127.0.0.1:8080;", "".join(["least_conn;", *(f"server 127.0.0.1:{port};" for port in upstreams)])),
                ("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;"),
                ("listen 80;", f"listen 127.0.0.1:{plain};"),
                ("/etc/ssl/models.example/fullchain.pem", str(certificate)),
                ("/etc/ssl/models.example/privkey.pem", str(key)),
                ("/var/log/nginx/zorb.log", str(self.directory / "access.log")),
                ("models.example", "127.0.0.1"),
            ],
        )
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        paths = "".join(f"{kind}_temp_path {self.temporary}/{kind};\n" for kind in kinds)
        main_file = self.directory / "nginx.conf"
        main_file.write_text(
            f"daemon off;\npid {self.directory}/pid;\nerror_log {self.directory}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{paths}{site}\n}}\n"
        )
        self.begin([shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(main_file)])


class Caddy(Proxy):
    def __init__(self, place, upstreams, certificate, key):
        (upstream,) = upstreams
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=place))
        self.temporary = self.directory / "temporary"
        self.temporary.mkdir()
        self.port = free_port()
        site = replaced(
            (ROOT / "config" / "Caddyfile").read_text(),
            [
                ("models.example {", f"https://127.0.0.1:{self.port} {{"),
                ("reverse_proxy 127.0.0.1:8080 {", f"reverse_proxy 127.0.0.1:{upstream} {{"),
                ("/etc/ssl/models.example/fullchain.pem", str(certificate)),
                ("/etc/ssl/models.example/privkey.pem", str(key)),
            ],
        )
        file = self.directory / "Caddyfile"
        # Nothing of the machine's: no port for administration, no port 80, no authority of its own in its stores.
        file.write_text("{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n" + site)
        homes = {name: str(self.directory) for name in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"]}
        environment = dict(os.environ, TMPDIR=str(self.temporary), **homes)
        self.begin(["caddy", "run", "--config", str(file), "--adapter", "caddyfile"], environment)


def make_certificates(directory):
    """A certificate for loopback with its key, and the authority that has signed it."""
    authority, authority_key = directory / "authority.pem", directory / "authority.key"
    certificate, key, request = directory / "certificate.pem", directory / "key.pem", directory / "request.pem"
    extensions = directory / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:FALSE\n")

    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *curve, "-keyout", authority_key, "-out", authority, "-subj", "/CN=an authority for a test", "-days", 2)
    openssl("req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=localhost")
    openssl("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial", "-days", 2,
            "-extfile", extensions, "-out", certificate)  # fmt: skip
    return certificate, key, authority


if __name__ == "__main__":
    main(sys.argv[1])
