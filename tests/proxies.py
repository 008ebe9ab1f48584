"""The examples of config/ for nginx and Caddy, and the server's own TLS, with the stock Python client in front.

    python tests/proxies.py target/release/zorb

Needs nginx, caddy, openssl and hf_xet. Runs the files as they are in the repository, but for names, ports and paths. Every
port is one of loopback, and every process is ended in the end.
"""

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
