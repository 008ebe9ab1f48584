"""The stock Python client, unmodified, against three servers of one store behind nginx.

    python tests/clients/cluster.py target/release/zorb target/release/zorb-fake-s3 [COMMITS]

The servers share a PostgreSQL 15 that this script starts, and the S3 store of the tests, or the one in ZORB_TEST_S3
(tests/garage.sh). nginx has config/nginx.conf, with three servers as docs/cluster.md says. First all bytes go through the
servers, then downloads go to the S3 store. 16 processes commit to one branch of the Hub, each COMMITS times: 10 if not given.
Needs nginx, openssl and hf_xet.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import hub_writers  # noqa: E402
import proxies  # noqa: E402
import stock_client  # noqa: E402
from shared_store import FakeS3, Postgres, settings  # noqa: E402
from stock_client import MIB, check_pull, finish, push, start, write_files  # noqa: E402

COUNT = 3
KILL_COUNT = 4


def say(text):
    print(f"three servers: {text}", flush=True)


def main(binary, fake_s3, commits=10):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        certificates = proxies.make_certificates(directory)
        os.environ["SSL_CERT_FILE"] = str(certificates[2])
        store = None if "ZORB_TEST_S3" in os.environ else FakeS3(fake_s3)
        endpoint = os.environ["ZORB_TEST_S3"].split(" ")[0]
        postgres = Postgres(directory / "pg")
        try:
            for name, public in [("through-servers", ""), ("direct", endpoint)]:
                place = directory / name
                place.mkdir()
                begin = time.monotonic()
                variables = settings(postgres, name) | {"ZORB_S3_PUBLIC_ENDPOINT": public}
                check(Cluster(binary, place, variables, certificates), rng, int(commits))
                say(f"{name}: all of it in {time.monotonic() - begin:.0f} s")
        finally:
            postgres.stop()
            if store:
                store.stop()


def check(cluster, rng, commits):
    directory = cluster.directory.parent
    try:
        files = stock_client.make_files(directory / "files", rng)
        pushed = push(cluster, list(files))
        before = cluster.sum("zorb_sent_bytes_total")
        check_pull(cluster, pushed)
        sent = cluster.sum("zorb_sent_bytes_total") - before
        total = sum(map(len, files.values()))
        say(f"{total} bytes pulled, {sent} of them through the servers")
        # Of the text, one part in a hundred is stored.
        if (sent > 80 * MIB) == bool(cluster.settings["ZORB_S3_PUBLIC_ENDPOINT"]):
            sys.exit("that is not the way that they should have come")
        stock_client.check_grants(cluster)
        cluster.restart()
        check_pull(cluster, pushed)
        stock_client.check_parts(cluster, pushed, rng)
        stock_client.check_near_duplicate(directory, cluster, files, rng)
        stock_client.check_walls(cluster, pushed)
        stock_client.check_refresh(directory, cluster, rng)
        stock_client.check_many(directory, cluster, rng)
        stock_client.check_full_xorb(directory, cluster, rng)
        stock_client.check_parallel(directory, cluster, rng)
        cluster.check_shared()
        # Not through nginx: each process uses one of the servers.
        writer = cluster.token("write", "models/acme/writers")
        hub_writers.check([server.url for server in cluster.servers], writer, "acme/writers", commits)
        check_kills(directory, cluster, rng)
    finally:
        cluster.stop()


def check_kills(directory, cluster, rng):
    """Servers die while clients push; the pushes end well, and what was pushed is there. Clients repeat a request five
    times, here after two seconds, six, and so on, which is still less than by default. With one second, a push failed once
    on a machine that was busy with other tests."""
    patient = {"HF_XET_CLIENT_RETRY_BASE_DELAY": "2s"}
    running, pushed, begun_count = [], [], 0
    for kill in range(KILL_COUNT):
        # As fast as clients end, others begin.
        while len(running) < 4:
            contents = {f"killed-{begun_count}-{number}": rng.randbytes(6 * MIB) for number in range(12)}
            paths = list(write_files(directory / f"killed-{begun_count}", contents))
            running.append(start(cluster, "push", "models/acme/one", "write", {"paths": paths}, **patient))
            begun_count += 1
        # Some service between two kills.
        time.sleep(1)
        cluster.kill(kill % COUNT)
        ended = [process for process in running if process.poll() is not None]
        running = [process for process in running if process not in ended]
        pushed += map(finish, ended)
    pushed += map(finish, running)
    for files in pushed:
        check_pull(cluster, files)
    say(f"{KILL_COUNT} servers killed while {len(pushed)} clients pushed")


class Cluster:
    """Three servers behind nginx, for the checks of one server."""

    def __init__(self, binary, place, variables, certificates):
        self.binary, self.directory, self.settings = binary, place / "data", variables
        self.directory.mkdir()
        # Commands, such as `zorb token`, take them from the environment.
        os.environ.update(variables)
        migrated = subprocess.run([binary, "db", "migrate"], capture_output=True, text=True, check=False)
        if migrated.returncode != 0:
            sys.exit(migrated.stderr)
        settings_of_server = {"ZORB_TRUSTED_PROXIES": "127.0.0.1"}
        ports = [proxies.free_port() for _ in range(COUNT)]
        self.servers = [
            stock_client.Server(binary, self.directory / str(number), f"127.0.0.1:{port}", **settings_of_server)
            for number, port in enumerate(ports)
        ]
        self.proxy = proxies.Nginx(place, ports, *certificates[:2])
        self.url = f"https://127.0.0.1:{self.proxy.port}"

    def token(self, scope, repo):
        return self.servers[0].token(scope, repo)

    def received(self):
        return sum(server.received() for server in self.servers)

    def sum(self, name):
        return int(sum(server.metric(name) for server in self.servers))

    def metric(self, name):
        return self.sum(name)

    def responded(self, route):
        return sum(server.responded(route) for server in self.servers)

    def longest_xorb(self):
        return self.servers[1].longest_xorb()

    def restart(self):
        """One after another, as an operator does."""
        for server in self.servers:
            server.restart()

    def kill(self, number):
        server = self.servers[number]
        server.process.kill()
        server.process.wait()
        server.begin()

    def check_shared(self):
        """The balancer has given work to each of the servers."""
        counts = [server.responded("/v") for server in self.servers]
        say(f"requests of each server since its last start: {counts}")
        if not all(counts):
            sys.exit("a server got none")

    def stop(self):
        self.proxy.stop()
        for server in self.servers:
            server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
