"""compose.cluster.yml: types the commands of docs/cluster.md, then has faults under load.

    python tests/docker/cluster.py target/release/zorb target/debug/zorb-fake-s3|GARAGE [FAULTS]

Needs a container engine, Compose, hf_xet, nsenter and iptables, and to be root. The image of zorb is ZORB_IMAGE (default:
zorb:test, from run.sh). Those of PostgreSQL and Caddy are the stand-ins of base-images.sh. The one of Garage has the second
argument in it: a Garage, or the S3 store of the tests, which forgets all objects when it ends and so is never killed.

While hf_xet pushes and pulls, FAULTS faults (default: 20) happen one after another: servers are killed, frozen, and cut off from
the network, in both directions or one; PostgreSQL is killed and frozen; the S3 store is frozen, and Garage killed; the
balancer is killed. The first fault freezes the server that leads until another one leads. The others last up to 8 seconds,
one in ten up to 40. Then the clients must work again. Every file whose push succeeded is pulled and compared, and `zorb fsck
--deep` must find nothing. The containers, networks and volumes are removed in any case.
"""

import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "clients")]

import readme  # noqa: E402
import stock_client  # noqa: E402
from stock_client import MIB, write_files  # noqa: E402

SERVERS = ["zorb1", "zorb2", "zorb3"]
CLIENT_COUNT = 3

# Five attempts after 1, 3, 9, … seconds. A push that fails all the same is counted, and has promised nothing.
PATIENT = {"HF_XET_CLIENT_RETRY_BASE_DELAY": "1s"}


def say(text):
    print(f"cluster [{time.monotonic() - BEGAN:4.0f} s]: {text}", flush=True)


BEGAN = time.monotonic()


def main(binary, s3, fault_count=20):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    binary, s3 = pathlib.Path(binary).resolve(), pathlib.Path(s3).resolve()
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        print("cluster: not run, because no container engine responds here ('docker info' fails)")
        return
    # So that containers are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        page = ClusterPage(binary, images(s3, scratch), scratch / "clone")
        try:
            count, wrong = page.check(is_written=False)
            if wrong:
                sys.exit("\n".join(wrong))
            say(f"{count} commands of {page.name} typed")
            cluster = Cluster(page, scratch)
            faults = Faults(cluster, random.Random(seed), is_durable="fake" not in s3.name)
            check_under_load(cluster, faults, int(fault_count), random.Random(seed + 1))
        except BaseException:
            page.print_logs()
            raise
        finally:
            remove(page.project)
    say("passed")


def images(s3, scratch):
    """The variables with the names of the images."""
    chosen = {
        "ZORB_IMAGE": os.environ.get("ZORB_IMAGE", "zorb:test"),
        **{f"{name}_IMAGE": f"zorb-base/{name.lower()}:local" for name in ("POSTGRES", "CADDY", "GARAGE")},
    }
    subprocess.run([ROOT / "tests" / "docker" / "base-images.sh", "cluster"], check=True, env=os.environ | chosen)
    context = scratch / "garage"
    context.mkdir()
    shutil.copy(s3, context / "s3")
    # compose.cluster.yml runs /garage with arguments, which the S3 store of the tests does not take.
    script = "#!/bin/sh\nexec /s3 0.0.0.0:3900\n" if "fake" in s3.name else '#!/bin/sh\nexec /s3 "$@"\n'
    (context / "garage").write_text(script)
    (context / "garage").chmod(0o755)
    (context / "Dockerfile").write_text("FROM zorb-base/runtime:local\nCOPY garage s3 /\n")
    subprocess.run(["docker", "build", "--quiet", "--tag", chosen["GARAGE_IMAGE"], context], check=True, capture_output=True)
    return chosen


class ClusterPage(readme.Page):
    """docs/cluster.md, whose commands are typed in a clone of this repository."""

    def __init__(self, binary, variables, clone):
        super().__init__("docs/cluster.md", binary)
        # The containers have files of it as long as they are there.
        self.clone = clone
        self.variables = variables | {
            "ZORB_PORT": self.free_port("8080"),
            "COMPOSE_ANSI": "never",
        }
        self.project = f"zorb-test-{os.getpid()}"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.variables['ZORB_PORT']}"

    def environment(self, scratch):
        return super().environment(scratch) | self.variables

    def run(self, commands, scratch):
        subprocess.run(["git", "clone", "--quiet", ROOT, self.clone], check=True)
        # The name of the project is one of this test, so that it disturbs nothing.
        commands = [command.replace("=zorb-cluster", f"={self.project}") for command in commands]
        script = ""
        if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
            script = 'docker() { if [ "$1" = compose ]; then shift; docker-compose "$@"; else command docker "$@"; fi; }\n'
        script += "".join(self.typed(command, scratch, index) for index, command in enumerate(commands))
        return self.printed(readme.shell(script, self.clone, self.environment(scratch), timeout=600), len(commands), scratch)

    def print_logs(self):
        update = self.clone / "update.log"
        print(update.read_text() if update.exists() else "no update", flush=True)
        for container in docker("ps", "--all", "--quiet", *labelled(self.project)).split():
            print(docker("inspect", "--format", "--- {{.Name}} {{.State.Status}} {{.RestartCount}}", container), flush=True)
            subprocess.run(["docker", "logs", "--tail", "60", container], stderr=subprocess.STDOUT, check=False)


def labelled(project):
    return "--filter", f"label=com.docker.compose.project={project}"


def remove(project):
    """By the engine: Compose 1.29 gives up if a container ends at this moment."""
    for kind, listed, verb in [
        ("container", ["ps", "--all", "--quiet"], ["rm", "--force", "--volumes"]),
        ("network", ["network", "ls", "--quiet"], ["network", "rm"]),
        ("volume", ["volume", "ls", "--quiet"], ["volume", "rm"]),
    ]:
        if names := docker(*listed, *labelled(project)).split():
            docker(*verb, *names)
        if docker(*listed, *labelled(project)):
            sys.exit(f"a {kind} of {project} is left")


class Cluster:
    """The running containers, for stock_client.py."""

    def __init__(self, page, scratch):
        self.url, self.project = page.url, page.project
        self.directory = scratch / "clients" / "cluster"
        self.directory.mkdir(parents=True)

    def token(self, scope, repo):
        """No token is required."""
        del scope, repo

    def container(self, service):
        of_service = ["--filter", f"label=com.docker.compose.service={service}"]
        (name,) = docker("ps", "--all", "--quiet", *labelled(self.project), *of_service).split()
        return name

    def inspect(self, service, field):
        return docker("inspect", "--format", "{{%s}}" % field, self.container(service)).strip()

    def starts(self):
        return [self.inspect(server, ".State.StartedAt") for server in SERVERS]

    def is_ready(self):
        """Each server says so, and the balancer leads to one."""
        for server in SERVERS:
            ran = subprocess.run(["docker", "exec", self.container(server), "zorb", "healthcheck"], capture_output=True, check=False)
            if ran.returncode != 0:
                return False
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=15) as response:
                return response.status == 200
        except OSError:
            return False

    def wait_until_ready(self):
        """All servers are ready, and stay so: one that has lost its session ends within seconds."""
        before = None

        def is_ready_again():
            nonlocal before
            starts = self.starts() if self.is_ready() else None
            is_same, before = starts is not None and starts == before, starts
            return is_same

        wait_until(is_ready_again, "the servers are ready", pause=3)

    def leader(self):
        """The server that has said last that it leads."""
        said = {}
        for server in SERVERS:
            logged = subprocess.run(["docker", "logs", self.container(server)], capture_output=True, text=True, check=False)
            for line in (logged.stdout + logged.stderr).splitlines():
                if "does the work in the background" in line:
                    said[server] = line.split()[0]
        return max(said, key=said.get)

    def wait_until_running(self, service):
        """A container that has ended is started again, after a pause that becomes longer each time."""
        state = "and .State.Running (not .State.Restarting) (not .State.Paused) .State.Pid"
        wait_until(lambda: self.inspect(service, state) not in ("0", "false"), f"{service} runs")


def wait_until(condition, name, pause=0.5):
    deadline = time.monotonic() + 180
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"after 180 s it is not so that {name}")
        time.sleep(pause)


def docker(*arguments):
    ran = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=120)
    if ran.returncode != 0:
        sys.exit(f"docker {' '.join(arguments)}: {ran.stderr}")
    return ran.stdout


class Faults:
    """What fails. Each fault begins, lasts, and ends."""

    def __init__(self, cluster, rng, is_durable):
        self.cluster, self.rng = cluster, rng
        self.kinds = {
            "killed": ([*SERVERS, "database", "balancer", *(["garage"] if is_durable else [])], self.kill),
            "frozen": ([*SERVERS, "database", "garage"], self.freeze),
            "disconnected": (SERVERS, self.disconnect),
            "deaf": (SERVERS, lambda service: self.cut(service, "INPUT")),
            "mute": (SERVERS, lambda service: self.cut(service, "OUTPUT")),
        }
        # Those that are still to happen, before any of them happens again.
        self.waiting = []
        self.counts = collections.Counter()
        self.lost_packet_count = 0

    def happen(self):
        if not self.waiting:
            self.waiting = [(kind, service) for kind, (services, _) in self.kinds.items() for service in services]
            self.rng.shuffle(self.waiting)
        kind, service = self.waiting.pop()
        self.cluster.wait_until_running(service)
        lasts = self.rng.uniform(0, 40 if self.rng.random() < 0.1 else 8)
        end = self.kinds[kind][1](service)
        time.sleep(lasts)
        end()
        self.counts[kind] += 1
        say(f"{service} was {kind} for {lasts:.1f} s")

    def freeze_leader(self):
        """It loses its session, another server leads, and it ends when it runs again."""
        leader, before = self.cluster.leader(), self.cluster.starts()
        end = self.freeze(leader)
        began = time.monotonic()
        wait_until(lambda: self.cluster.leader() != leader, f"another server leads than {leader}")
        say(f"{leader} was frozen, and after {time.monotonic() - began:.0f} s {self.cluster.leader()} leads")
        end()
        wait_until(lambda: self.cluster.starts() != before, f"{leader} ends")
        self.counts["frozen"] += 1

    def kill(self, service):
        container = self.cluster.container(service)
        docker("kill", container)
        return lambda: docker("start", container)

    def freeze(self, service):
        container = self.cluster.container(service)
        docker("pause", container)
        return lambda: docker("unpause", container)

    def disconnect(self, service):
        container, network = self.cluster.container(service), f"{self.cluster.project}_default"
        docker("network", "disconnect", network, container)
        return lambda: docker("network", "connect", "--alias", service, network, container)

    def cut(self, service, chain):
        """Packets in one direction are lost, as long as the container lives."""
        inside = ["nsenter", "--net", "--target", self.cluster.inspect(service, ".State.Pid"), "iptables"]
        interface = "-i" if chain == "INPUT" else "-o"
        rule = [chain, "!", interface, "lo", "-j", "DROP"]
        subprocess.run([*inside, "-A", *rule], check=True)

        def end():
            # A container that has ended meanwhile, and was started again, has a new network without the rule.
            listed = subprocess.run([*inside, "-nvxL", chain], capture_output=True, text=True, check=False).stdout
            self.lost_packet_count += sum(int(line.split()[0]) for line in listed.splitlines() if " DROP " in line)
            subprocess.run([*inside, "-D", *rule], check=False, capture_output=True)

        return end


class Load:
    """One client after another pushes new files and pulls a push of before. The ledger has what was acknowledged."""

    def __init__(self, cluster, name, seed):
        self.cluster, self.name, self.rng = cluster, name, random.Random(seed)
        self.ledger, self.push_count, self.pull_count, self.failed_count = [], 0, 0, 0
        self.error = None
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        try:
            while not self.is_over.is_set():
                if self.push():
                    self.pull(self.rng.choice(self.ledger))
                # Some CPU for the rest.
                self.is_over.wait(1)
        except BaseException as error:  # Raised again in `stop`.
            self.error = error

    def push(self):
        self.push_count += 1
        push = f"{self.name}-{self.push_count}"
        directory = self.cluster.directory / push
        small = {f"{push}-small-{index}": self.rng.randbytes(self.rng.randrange(20_000)) for index in range(20)}
        # A part of the last push, so that it is found as known.
        old = pathlib.Path(next(iter(self.ledger[-1]))).read_bytes() if self.ledger else b""
        contents = {f"{push}-large": old[: 2 * MIB] + self.rng.randbytes(6 * MIB), **small}
        paths = list(write_files(directory, contents))
        pushed = stock_client.client(self.cluster, "push", "any", None, {"paths": paths}, may_fail=True, **PATIENT)
        if pushed is None:
            self.failed_count += 1
            shutil.rmtree(directory)
            return False
        self.ledger.append(pushed)
        return True

    def pull(self, pushed):
        """A pull may fail, but not bring other bytes."""
        with tempfile.TemporaryDirectory(dir=self.cluster.directory) as target:
            arguments = {"pushed": pushed, "target": target}
            process = stock_client.start(self.cluster, "pull", "any", None, arguments, **PATIENT)
            stock_client.finish(process, may_fail=True)
            if process.returncode != 0:
                self.failed_count += 1
                return False
            self.pull_count += 1
            for path in pushed:
                if (pathlib.Path(target) / pathlib.Path(path).name).read_bytes() != pathlib.Path(path).read_bytes():
                    raise AssertionError(f"{path} came back changed")
        return True

    def stop(self):
        self.is_over.set()
        self.thread.join()
        if self.error:
            raise self.error


def check_under_load(cluster, faults, fault_count, rng):
    cluster.wait_until_ready()
    loads = [Load(cluster, f"client-{index}", rng.randrange(1 << 32)) for index in range(CLIENT_COUNT)]
    useful_count = 0
    try:
        for number in range(fault_count):
            before = sum(len(load.ledger) for load in loads)
            if number == 0:
                faults.freeze_leader()
            else:
                faults.happen()
            # Now and then the next one comes at once.
            if rng.random() < 0.8:
                cluster.wait_until_ready()
            useful_count += sum(len(load.ledger) for load in loads) > before
        cluster.wait_until_ready()
    finally:
        for load in loads:
            load.stop()
    ledger = [pushed for load in loads for pushed in load.ledger]
    pulled, failed = (sum(getattr(load, name) for load in loads) for name in ("pull_count", "failed_count"))
    say(f"faults: {dict(faults.counts)}; packets lost: {faults.lost_packet_count}")
    say(f"{len(ledger)} pushes acknowledged, {pulled} pulls meanwhile, {failed} clients gave up")
    if faults.counts["deaf"] + faults.counts["mute"] > 3 and not faults.lost_packet_count:
        sys.exit("servers were not cut off")
    if 2 * useful_count < fault_count:
        sys.exit(f"pushes were acknowledged during {useful_count} of {fault_count} faults only")
    for load in loads:
        if not load.push() or not load.pull(load.ledger[0]):
            sys.exit("a client fails after all faults")
        ledger.append(load.ledger[-1])
    stock_client.check_pull(cluster, {path: info for pushed in ledger for path, info in pushed.items()})
    found = json.loads(docker("exec", cluster.container("zorb1"), "zorb", "fsck", "--deep", "--json").splitlines()[-1])
    say(f"every acknowledged file came back; fsck: {found}")
    if found["findings"] != 0:
        sys.exit("that should be none")


if __name__ == "__main__":
    main(*sys.argv[1:])
