"""Many processes commit to one branch of a Hub repository at the same time, through one server or several of one store.

    python3 tests/clients/hub_writers.py target/release/zorb [--commits 50]
    HF_TOKEN=... python3 tests/clients/hub_writers.py --url http://127.0.0.1:8080 --url http://127.0.0.1:8081

Without a parent each commit succeeds: the history is linear and has all of them, and each file of it is compared. With a parent
exactly one of the commits of a round succeeds, and the others get 412. With several URLs, the processes use them by turn.
"""

import argparse
import base64
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

WRITERS = 16
ROUNDS = 12
# Longer than any commit has to wait for the others, also on a busy machine.
PATIENCE = 120


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?")
    parser.add_argument("--commits", type=int, default=50, help="of each process")
    parser.add_argument("--url", action="append", help="a server that runs already; the token is in HF_TOKEN")
    arguments = parser.parse_args()
    if arguments.url:
        check(arguments.url, os.environ["HF_TOKEN"], "me/writers", arguments.commits)
        return
    from hub import Server

    with tempfile.TemporaryDirectory() as scratch, Server(arguments.binary, pathlib.Path(scratch) / "data", "token") as server:
        check([server.url], server.user_token("me"), "me/writers", arguments.commits)


def say(text):
    print(f"writers: {text}", flush=True)


def check(urls, token, repo, commits):
    """All of it, in a new repository."""
    api = Api(urls[0], token)
    namespace, name = repo.split("/")
    api.expect(200, "POST", "/api/repos/create", json.dumps({"type": "model", "organization": namespace, "name": name}))
    writers = [Writer(urls[number % len(urls)], token, repo, number) for number in range(WRITERS)]
    try:
        check_without_parent(urls, token, repo, writers, commits)
        check_with_parent(urls, token, repo, writers)
    finally:
        for writer in writers:
            writer.stop()


def check_without_parent(urls, token, repo, writers, commits):
    begin = time.monotonic()
    for writer in writers:
        writer.begin({"do": "commits", "count": commits})
    done = [writer.result() for writer in writers]
    took = time.monotonic() - begin
    repeated = sum(result["repeated"] for result in done)
    made = [result["commits"] for result in done]
    api = Api(urls[0], token)
    history = read_history(api, repo)
    count = WRITERS * commits
    if (len(history), len(set(history))) != (count + 1, count + 1):
        sys.exit(f"{count} commits were made in a new repository; the history has {len(history)}, {len(set(history))} unique")
    place_of = {commit: len(history) - 1 - place for place, commit in enumerate(history)}
    for number, of_one in enumerate(made):
        places = [place_of[commit] for commit in of_one]
        if places != sorted(places) or len(set(places)) != commits:
            sys.exit(f"the commits of process {number} are not in the order in which they were acknowledged: {places}")
    check_linear(api, repo, history)
    check_files(urls, token, repo, {name_of(number, index): contents_of(number, index) for number in range(WRITERS)
                                    for index in range(commits)})  # fmt: skip
    for place in range(0, count + 1, max(1, count // 10)):
        files = api.get_json(f"/api/models/{repo}/revision/{history[count - place]}")["siblings"]
        if len(files) != place + 1:
            sys.exit(f"after {place} commits of one file each there are {len(files)} files")
    say(f"{WRITERS} processes, {len(urls)} servers: {count} commits in {took:.1f} s; {repeated} requests repeated after a 409")


def read_history(api, repo):
    """The ids of all commits of the branch, the last one first."""
    found, path = [], f"/api/models/{repo}/commits/main?limit=100"
    while path:
        _, headers, body = api.expect(200, "GET", path)
        found += [commit["id"] for commit in json.loads(body)]
        link = headers.get("Link")
        if link and not (link.startswith(f"<{api.url}/") and link.endswith('>; rel="next"')):
            sys.exit(f"the next page is at {link}, and this server at {api.url}")
        path = link and link[1:].split(">")[0].removeprefix(api.url)
    return found


def check_linear(api, repo, history, count=None):
    """The history of each of the last commits is the commit, then the next one in the history of the branch."""
    for place, commit in enumerate(history[:count]):
        page = api.get_json(f"/api/models/{repo}/commits/{commit}?limit=2")
        if [found["id"] for found in page] != history[place : place + 2]:
            sys.exit(f"commit {place} of the history: {page}, not {history[place : place + 2]}")


def check_files(urls, token, repo, expected):
    """The head has these files and no others; the servers read them by turn."""
    apis = [Api(url, token) for url in urls]
    listed = {file["rfilename"] for file in apis[-1].get_json(f"/api/models/{repo}/revision/main")["siblings"]}
    if listed != {*expected, ".gitattributes"}:
        sys.exit(f"these files are missing, or too many: {sorted(listed ^ {*expected, '.gitattributes'})}")
    for number, (path, contents) in enumerate(expected.items()):
        _, _, body = apis[number % len(apis)].expect(200, "GET", f"/{repo}/resolve/main/{path}")
        if body != contents:
            sys.exit(f"{path} is {body!r}, not {contents!r}")


def check_with_parent(urls, token, repo, writers):
    api = Api(urls[-1], token)
    head = api.get_json(f"/api/models/{repo}")["sha"]
    before = read_history(api, repo)
    won = []
    for number in range(ROUNDS):
        # An abbreviated id is a parent, too.
        parent = head if number % 2 == 0 else head[:12]
        for writer in writers:
            writer.begin({"do": "commit", "path": f"round-{number}/{writer.number}.txt", "parent": parent})
        results = [writer.result() for writer in writers]
        statuses = sorted(result["status"] for result in results)
        if statuses != [200] + [412] * (len(writers) - 1):
            sys.exit(f"round {number}: all have the parent {parent}, and get {statuses}: {results}")
        (winner,) = (index for index, result in enumerate(results) if result["status"] == 200)
        head = results[winner]["commit"]
        won.append(winner)
        files = {file["rfilename"] for file in api.get_json(f"/api/models/{repo}/revision/{head}")["siblings"]}
        if {path for path in files if path.startswith("round-")} != {f"round-{of}/{by}.txt" for of, by in enumerate(won)}:
            sys.exit(f"round {number}: not the files of the winners {won}, but {files}")
    after = read_history(api, repo)
    if after[0] != head or len(after) != len(before) + ROUNDS or after[ROUNDS:] != before:
        sys.exit(f"after {ROUNDS} rounds the history is {after[: ROUNDS + 1]}, not {ROUNDS} commits more than {before[0]}")
    check_linear(api, repo, after, ROUNDS)
    say(f"{ROUNDS} rounds with the same parent: one commit in each; the winners were {won}")


class Api:
    """A server, over one connection."""

    def __init__(self, url, token):
        self.url, self.token = url, token
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)

    def request(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self.connection.request(method, path, body, headers)
        response = self.connection.getresponse()
        return response.status, response.headers, response.read()

    def expect(self, status, method, path, body=None):
        found = self.request(method, path, body)
        if found[0] != status:
            sys.exit(f"{method} {self.url}{path} has the status {found[0]}, not {status}: {found[1]}{found[2]!r}")
        return found

    def get_json(self, path):
        return json.loads(self.expect(200, "GET", path)[2])


class Writer:
    """A process that commits. It gets a line for each work and writes one when the work is done, so that all begin together."""

    def __init__(self, url, token, repo, number):
        self.number = number
        command = [sys.executable, __file__, "--writer", url, repo, str(number)]
        environment = dict(os.environ, HF_TOKEN=token)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )

    def begin(self, work):
        self.process.stdin.write(json.dumps(work) + "\n")

    def result(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"process {self.number} ended with {self.process.wait()}")
        return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


# From here on, in a process of a writer.


def write(url, repo, number):
    api = Api(url, os.environ["HF_TOKEN"])
    for line in sys.stdin:
        work = json.loads(line)
        if work["do"] == "commits":
            done = commit_many(api, repo, int(number), work["count"])
        else:
            status, _, body = commit(api, repo, work["path"], b"with a parent\n", work["parent"])
            done = {"status": status, "commit": json.loads(body).get("commitOid")}
        print(json.dumps(done), flush=True)


def commit_many(api, repo, number, count):
    commits, repeated = [], 0
    for index in range(count):
        path, contents = name_of(number, index), contents_of(number, index)
        deadline = time.monotonic() + PATIENCE
        while True:
            status, headers, body = commit(api, repo, path, contents, None)
            if status == 200:
                break
            # Others were faster each time that the server tried: the response says when to repeat.
            if status != 409 or "Retry-After" not in headers or time.monotonic() > deadline:
                sys.exit(f"process {number}, commit {index}: {status} {headers}{body!r}")
            repeated += 1
            time.sleep(int(headers["Retry-After"]))
        commits.append(json.loads(body)["commitOid"])
    return {"commits": commits, "repeated": repeated}


def commit(api, repo, path, contents, parent):
    header = {"summary": f"add {path}", "description": ""} | ({"parentCommit": parent} if parent else {})
    file = {"path": path, "encoding": "base64", "content": base64.b64encode(contents).decode()}
    lines = [{"key": "header", "value": header}, {"key": "file", "value": file}]
    return api.request("POST", f"/api/models/{repo}/commit/main", "\n".join(map(json.dumps, lines)))


def name_of(number, index):
    return f"by/{number}/{index:03}.txt"


def contents_of(number, index):
    return b"file %d of process %d\n" % (index, number)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--writer"]:
        write(*sys.argv[2:])
    else:
        main()
