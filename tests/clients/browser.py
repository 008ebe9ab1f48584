"""A page of another origin in headless Chromium uploads a file and reads it back.

    python tests/clients/browser.py target/release/zorb

Takes `chromium` and nothing else. The page makes the HTTP calls of a Xet client in a browser: it posts a xorb and a shard
with a token, asks for the reconstruction, fetches ranges by its URLs, and reads the file itself. The xorb and the shard are
those that `zorb push` makes. Then the same page fails against a server without `cors_origins`.
"""

import http.server
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading

REPO = "models/acme/browser"

# How long Chromium may take to start and to run the page.
PATIENCE_SECS = 120

PAGE = r"""<!doctype html><meta charset="utf-8"><title>client</title><script>
const checks = [];
function check(what, holds) { checks.push([what, Boolean(holds)]); }

// Chunk records: version, 24 bits of length, scheme, 24 bits of raw length. The file is random, so nothing is compressed.
function decode(bytes) {
  const parts = [];
  for (let at = 0; at < bytes.length;) {
    const len = bytes[at + 1] | bytes[at + 2] << 8 | bytes[at + 3] << 16;
    if (bytes[at + 4] !== 0) throw new Error("a compressed chunk");
    parts.push(bytes.subarray(at + 8, at + 8 + len));
    at += 8 + len;
  }
  return parts;
}

function same(parts, expected) {
  let at = 0;
  for (const part of parts) {
    for (let index = 0; index < part.length; index++) if (part[index] !== expected[at + index]) return false;
    at += part.length;
  }
  return at === expected.length;
}

const bytes = async (response) => new Uint8Array(await response.arrayBuffer());

async function run() {
  const plan = await (await fetch("plan.json")).json();
  const contents = await bytes(await fetch("contents"));
  const authorization = { Authorization: `Bearer ${plan.token}` };
  const call = (path, options = {}) =>
    fetch(plan.server + path, { ...options, headers: { ...authorization, ...options.headers } });

  const refused = await fetch(`${plan.server}/v1/files`);
  check("a 401 can be read, and what it asks for", refused.status === 401 && refused.headers.get("WWW-Authenticate"));
  for (const [path, name] of plan.uploads) {
    const body = await bytes(await fetch(name));
    const response = await call(path, { method: "POST", body });
    check(`POST ${path} is ${response.status}`, response.ok && response.headers.get("X-Request-Id"));
  }
  const file = `/v1/files/${plan.file}`;
  const reconstruction = await (await call(`/v2/reconstructions/${plan.file}`, {
    headers: { Range: `bytes=0-${contents.length - 1}` },
  })).json();
  const parts = [];
  for (const term of reconstruction.terms) {
    const fetches = reconstruction.xorbs[term.hash];
    const covers = (range) => range.chunks.start <= term.range.start && term.range.end <= range.chunks.end;
    const entry = fetches.find((entry) => entry.ranges.some(covers));
    const range = entry.ranges.find(covers);
    const response = await fetch(entry.url, { headers: { Range: `bytes=${range.bytes.start}-${range.bytes.end}` } });
    check(`data is 206 with Content-Range`, response.status === 206 && response.headers.get("Content-Range"));
    const chunks = decode(await bytes(response));
    parts.push(...chunks.slice(term.range.start - range.chunks.start, term.range.end - range.chunks.start));
  }
  check("the file is put together from its chunks", same(parts, contents));

  const whole = await call(file);
  check("the file has its ETag", whole.headers.get("ETag") === `"${plan.file}"`);
  check("the file is read whole", same([await bytes(whole)], contents));
  const part = await call(file, { headers: { Range: "bytes=1000-1999", "If-Range": whole.headers.get("ETag") } });
  check("a range says which it is", part.headers.get("Content-Range") === `bytes 1000-1999/${contents.length}`);
  check("a range is read", same([await bytes(part)], contents.subarray(1000, 2000)));
  const head = await call(file, { method: "HEAD" });
  check("HEAD tells the length", Number(head.headers.get("Content-Length")) === contents.length);
  const gone = await call(file, { method: "DELETE" });
  check("the file is removed", gone.ok && (await gone.json()).file_removed);
}

run().catch((error) => checks.push([String(error), false])).finally(() =>
  fetch("report", { method: "POST", body: JSON.stringify(checks) }));
</script>
"""


def main(binary):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        contents = random.Random(seed).randbytes(3_000_000)
        uploads, file = record_push(binary, directory, contents)
        site = Site(contents, uploads)
        try:
            allowed = visit(binary, directory / "allowed", site, file, site.origin)
            for what, holds in allowed:
                print(f"browser: {'ok' if holds else 'FAILED'}: {what}", flush=True)
            if not allowed or not all(holds for _, holds in allowed):
                sys.exit("a page of an allowed origin cannot use the server")
            refused = visit(binary, directory / "refused", site, file, None)
            print(f"browser: without the setting: {refused}", flush=True)
            if len(refused) != 1 or refused[0][1] or "Failed to fetch" not in refused[0][0]:
                sys.exit("a page of another origin was not refused")
        finally:
            site.close()


def record_push(binary, directory, contents):
    """What `zorb push` sends for a file, and the file's hash."""
    uploads = []

    class Recorder(Quiet):
        def do_GET(self):
            self.respond(404, b"{}")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if re.search("/xorbs/|/shards", self.path):
                uploads.append((self.path, body))
                self.respond(200, b'{"type":"result","was_inserted":true,"result":1}\n')
            else:
                self.respond(404, b"{}")

    path = directory / "contents"
    path.write_bytes(contents)
    with serving(Recorder) as server:
        command = [binary, "push", str(path), "--server", f"http://127.0.0.1:{server.server_port}"]
        printed = subprocess.check_output(command, text=True, env=dict(os.environ, HOME=str(directory)))
    hashes = re.findall(r"\b[0-9a-f]{64}\b", printed)
    if len(hashes) != 1 or len(uploads) < 2:
        sys.exit(f"zorb push sent {[path for path, _ in uploads]} and printed {printed!r}")
    return uploads, hashes[0]


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self, status, body, content_type="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class serving:
    """A server on a thread, until the block ends."""

    def __init__(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return self.server

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Site:
    """The page and what it needs, on an origin of its own."""

    def __init__(self, contents, uploads):
        self.files = {"/": (PAGE.encode(), "text/html"), "/contents": (contents, "application/octet-stream")}
        self.uploads = []
        for number, (path, body) in enumerate(uploads):
            self.files[f"/upload-{number}"] = (body, "application/octet-stream")
            self.uploads.append((path, f"upload-{number}"))
        self.report, self.is_reported = [], threading.Event()
        site = self

        class Handler(Quiet):
            def do_GET(self):
                body, content_type = site.files.get(self.path, (b"", "text/plain"))
                self.respond(200 if self.path in site.files else 404, body, content_type)

            def do_POST(self):
                site.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.respond(200, b"{}")
                site.is_reported.set()

        self.serving = serving(Handler)
        self.origin = f"http://127.0.0.1:{self.serving.__enter__().server_port}"

    def close(self):
        self.serving.__exit__()


def visit(binary, data_dir, site, file, allowed_origin):
    """What the page reports about a server that allows this origin, or none."""
    environment = dict(os.environ, ZORB_LOG="error")
    if allowed_origin:
        environment["ZORB_CORS_ORIGINS"] = allowed_origin
    command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--auth", "token"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        match = re.match(r"zorb listening on (http://\S+)", server.stdout.readline())
        if not match:
            sys.exit("the server does not start")
        issue = [binary, "token", "issue", "--data-dir", str(data_dir), "--scope", "write", "--repo", REPO]
        token = subprocess.check_output(issue, text=True).strip()
        plan = {"server": match.group(1), "token": token, "file": file, "uploads": site.uploads}
        site.files["/plan.json"] = (json.dumps(plan).encode(), "application/json")
        return browse(site, data_dir.parent)
    finally:
        server.terminate()
        if server.wait() != 0:
            sys.exit(f"the server ended with {server.returncode}")


def browse(site, directory):
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not browser:
        sys.exit("there is no chromium; install the package, or name the program in CHROMIUM")
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as profile:
        # As root there is no sandbox; the page is ours. In containers /dev/shm may be small.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
        site.is_reported.clear()
        command = [browser, *flags, f"{site.origin}/"]
        # A group of its own, so that all of its processes end.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            if not site.is_reported.wait(PATIENCE_SECS):
                sys.exit("the page does not report")
            return site.report
        finally:
            os.killpg(process.pid, 9)
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
