"""A PostgreSQL server and an S3 store on this machine, for scripts that start servers over both."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

POSTGRES = pathlib.Path("/usr/lib/postgresql/15/bin")


class Postgres:
    """A server with durable commits, on a socket of its own."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        user = []
        if os.geteuid() == 0:
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(directory, "postgres")
            os.chmod(directory.parent, 0o755)
        init = [*user, POSTGRES / "initdb", "-D", directory / "data", "-U", "zorb", "-A", "trust", "-E", "UTF8",
                "--locale=C"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, cwd=directory)
        server = [*user, POSTGRES / "postgres", "-D", directory / "data", "-k", directory, "-c", "listen_addresses=",
                  "-c", "shared_buffers=128MB"]
        with open(directory / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(server, stdout=log, stderr=log, cwd=directory)
        ready = [POSTGRES / "pg_isready", "-q", "-t", "1", "-h", directory, "-U", "zorb", "-d", "postgres"]
        while subprocess.run(ready, check=False).returncode != 0:
            if self.process.poll() is not None:
                sys.exit((directory / "log").read_text(encoding="utf-8"))

    def database(self, name):
        create = [POSTGRES / "createdb", "-h", self.directory, "-U", "zorb", name]
        subprocess.run(create, check=True)
        return f"postgres:///{name}?host={self.directory}&user=zorb"

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def settings(postgres, name):
    """The settings of a new store in the bucket."""
    endpoint, region, bucket, key, secret = os.environ["ZORB_TEST_S3"].split(" ")
    return {
        "ZORB_DATABASE_URL": postgres.database(name),
        "ZORB_S3_ENDPOINT": endpoint, "ZORB_S3_REGION": region, "ZORB_S3_BUCKET": bucket, "ZORB_S3_PREFIX": name,
        "ZORB_S3_ACCESS_KEY": key, "ZORB_S3_SECRET_KEY": secret, "ZORB_MASTER_KEY": "5a" * 32,
    }


class FakeS3:
    """The S3 store of the tests, for `settings`."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.environ["ZORB_TEST_S3"] = self.process.stdout.readline().strip()

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
