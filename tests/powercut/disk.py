"""A disk that a process writes to, and what a power cut can leave of it.

The model promises as little as POSIX does:

* What was written to a file before an `fsync` or `fdatasync` of it began is there once that has returned. Of what was
  written since, any sectors may be there and any not; the length may be any that the file had since, and what was never
  written within it is zeros, or garbage.
* The names in a directory are there once an `fsync` of that directory has returned, also not before. Of the changes since, either
  the first few are there, as on file systems with a journal, or each name has any of its values since: a rename may be half
  there. The sync of a file says nothing about its name.
* A sector is written whole or not at all.

What a process maps and writes as memory is not modelled: only SQLite's `-shm` files are, which mean nothing after a crash
and are left out.
"""

import re
from dataclasses import dataclass, field

from syscalls import payload, string

# The first position of a trace: what was done at 0 was there before.
START = 1

CREATES = re.compile(rb"\bO_CREAT\b")


@dataclass(eq=False)
class Node:
    """A file or a directory, with all that was done to it."""

    is_directory: bool
    number: int
    # Of a file: (begin, end, offset, bytes), or (begin, end, length, None) where it was cut or lengthened.
    changes: list = field(default_factory=list)
    # Of a directory: name → [(begin, end, order, node or None)].
    names: dict = field(default_factory=dict)
    # (begin, end) of each sync.
    syncs: list = field(default_factory=list)
    # Where it is, or was: for people.
    path: str = ""

    def synced_until(self, point, ignores):
        """What ended before this is durable for one whose power is cut at `point`."""
        if ignores(self):
            return START
        return max((begin for begin, end in self.syncs if end < point), default=START)


class Disk:
    """A directory `root`, at first with this durable content, and what traced processes did in it, one after the other."""

    def __init__(self, root, image=None):
        self.root_path = str(root).rstrip("/").encode()
        self.nodes = []
        self.root = self.node(True, "")
        self.order = 0
        self.image(image or {})
        # Beginnings and ends of what changes something: where a cut is interesting.
        self.moments = []
        # Request id → (begin of its response, status).
        self.responses = {}

    def node(self, is_directory, path):
        node = Node(is_directory, len(self.nodes), path=path)
        self.nodes.append(node)
        return node

    def image(self, image):
        for path, data in sorted(image.items()):
            directory, name = self.find(self.root_path + b"/" + path.encode())
            node = self.node(data is None, path)
            directory.names[name] = [(0, 0, 0, node)]
            if data is not None:
                node.changes.append((0, 0, 0, bytes(data)))

    def run(self, calls):
        """Applies the calls of one process."""
        opened, positions = {}, {}
        # A descriptor is free when its close begins, and taken when an open ends.
        ordered = sorted(calls, key=lambda call: call.begin if call.name == "close" else call.end)
        for call in ordered:
            if call.result is not None and call.result < 0:
                continue
            self.apply(call, opened, positions)

    def apply(self, call, opened, positions):
        name, args = call.name, call.args
        if name in ("open", "openat"):
            self.open(call, opened, positions)
        elif name == "close":
            opened.pop(int(args[0]), None)
        elif name == "fcntl":
            if b"F_DUPFD" in args[1] and int(args[0]) in opened:
                opened[call.result] = opened[int(args[0])]
        elif name in ("write", "writev", "sendto", "sendmsg", "pwrite64"):
            self.write(call, opened, positions)
        elif name == "lseek":
            if int(args[0]) in opened:
                positions[int(args[0])] = call.result
        elif name == "ftruncate":
            if node := opened.get(int(args[0])):
                self.change(call, node, int(args[1]), None)
        elif name in ("fsync", "fdatasync"):
            node = opened.get(int(args[0]))
            if node:
                node.syncs.append((call.begin, call.end))
                self.moments += [call.begin, call.end]
        elif name in ("rename", "renameat", "renameat2"):
            paths = args if name == "rename" else [args[1], args[3]]
            source, target = (self.find(string(path)) for path in paths)
            if source and target:
                node = self.lookup(source)
                self.link(call, source, None)
                self.link(call, target, node)
        elif name in ("unlink", "unlinkat", "rmdir"):
            if place := self.find(string(args[1] if name == "unlinkat" else args[0])):
                self.link(call, place, None)
        elif name in ("mkdir", "mkdirat"):
            if place := self.find(string(args[1] if name == "mkdirat" else args[0])):
                self.link(call, place, self.node(True, self.path(place)))
        elif name in ("link", "linkat"):
            paths = args if name == "link" else [args[1], args[3]]
            source, target = (self.find(string(path)) for path in paths)
            if target:
                self.link(call, target, self.lookup(source))
        elif name == "mmap":
            node = opened.get(int(args[4])) if args[4] != b"-1" else None
            if node and b"MAP_SHARED" in args[3] and b"PROT_WRITE" in args[2] and not node.path.endswith("-shm"):
                raise ValueError(f"{node.path} is written as memory")
        elif name not in ("execve", "fallocate", "dup", "dup2", "dup3", "copy_file_range", "sendfile", "splice"):
            raise ValueError(f"the call {name} is not modelled")
        elif name != "execve" and any(arg.isdigit() and int(arg) in opened for arg in args[:3]):
            raise ValueError(f"the call {name} on a file is not modelled")

    def open(self, call, opened, positions):
        at = 1 if call.name == "openat" else 0
        place = self.find(string(call.args[at]))
        if place is None:
            return
        flags = call.args[at + 1]
        node = self.lookup(place)
        if node is None:
            if not CREATES.search(flags):
                raise ValueError(f"{place} was opened and is not there")
            node = self.node(False, self.path(place))
            self.link(call, place, node)
        elif b"O_TRUNC" in flags:
            self.change(call, node, 0, None)
        if call.result is None:
            return
        opened[call.result], positions[call.result] = node, None if b"O_APPEND" in flags else 0

    def write(self, call, opened, positions):
        descriptor = int(call.args[0])
        node = opened.get(descriptor)
        if node is None:
            self.say(call)
            return
        if node.path.endswith("-shm"):
            return
        data = payload(call)
        if call.result is not None:
            data = data[: call.result]
        if call.name == "pwrite64":
            offset = int(call.args[3])
        elif call.name != "write" and call.name != "writev":
            raise ValueError(f"the call {call.name} on a file is not modelled")
        else:
            offset = positions[descriptor]
            if offset is None:
                offset = len(content(node.changes))
            else:
                positions[descriptor] += len(data)
        self.change(call, node, offset, data)

    def say(self, call):
        """Notes the first bytes of responses."""
        if call.name == "pwrite64" or b"\\x48\\x54\\x54\\x50" not in b",".join(call.args)[:400]:
            return
        data = payload(call)
        status = re.match(rb"HTTP/1\.1 (\d+)", data)
        request = re.search(rb"(?i)\r\nx-request-id: (\S+)\r\n", data)
        if status and request:
            self.responses.setdefault(request[1].decode(), (call.begin, int(status[1])))

    def change(self, call, node, offset, data):
        node.changes.append((call.begin, call.end, offset, data))
        self.moments += [call.begin, call.end]

    def link(self, call, place, node):
        directory, name = place
        self.order += 1
        directory.names.setdefault(name, []).append((call.begin, call.end, self.order, node))
        self.moments += [call.begin, call.end]
        if node is not None:
            node.path = self.path(place)

    def find(self, path):
        """(directory, name) of a path below the root; None elsewhere."""
        if path == self.root_path:
            return (None, b"")
        if not path.startswith(self.root_path + b"/"):
            return None
        directory = self.root
        *above, name = path[len(self.root_path) + 1 :].strip(b"/").split(b"/")
        for part in above:
            directory = self.lookup((directory, part))
            if directory is None:
                raise ValueError(f"{path} is below a directory that is not there")
        return (directory, name)

    def lookup(self, place):
        directory, name = place
        if directory is None:
            return self.root
        history = directory.names.get(name)
        return history[-1][3] if history else None

    def path(self, place):
        directory, name = place
        return f"{directory.path}/{name.decode()}".lstrip("/")

    def whole(self):
        """path → bytes, or None for a directory: what is there without any cut."""
        latest = lambda directory: {name: history[-1][3] for name, history in directory.names.items()}
        return self.collect(latest, lambda file: content(file.changes))

    def cut(self, point, rng, ignores=lambda node: False):
        """What there is after a power cut at this point: path → bytes, or None for a directory; and how it was drawn.

        Syncs of the nodes that `ignores` says are taken for nothing.
        """
        draw = Draw(rng)
        if draw.ordered:
            pending = []
            for directory in self.nodes:
                synced = directory.synced_until(point, ignores)
                for history in directory.names.values():
                    pending += [order for begin, end, order, _ in history if begin < point and end >= synced]
            pending.sort()
            last = pending[: draw.count(len(pending))][-1:] or [0]
            last_order = last[0]

        def names(directory):
            synced, there = directory.synced_until(point, ignores), {}
            for name, history in directory.names.items():
                known = [change for change in history if change[0] < point]
                durable = sum(1 for change in known if change[1] < synced)
                if draw.ordered:
                    kept = sum(1 for index, change in enumerate(known) if index < durable or change[2] <= last_order)
                else:
                    kept = durable + draw.count(len(known) - durable)
                there[name] = known[kept - 1][3] if kept else None
            return there

        def data(file):
            known = [change for change in file.changes if change[0] < point]
            synced = file.synced_until(point, ignores)
            durable = [change for change in known if change[1] < synced]
            return draw.data(content(durable), [change for change in known if change[1] >= synced])

        return self.collect(names, data), str(draw)

    def collect(self, names, data):
        there, directories = {}, [("", self.root)]
        while directories:
            path, directory = directories.pop()
            for name, node in sorted(names(directory).items()):
                below = f"{path}/{name.decode()}".lstrip("/")
                if node is None or below.endswith("-shm"):
                    continue
                if node.is_directory:
                    there[below] = None
                    directories.append((below, node))
                else:
                    there[below] = data(node)
        return there


def content(changes):
    """A file to which all of this was done."""
    data = bytearray()
    for _, _, offset, written in changes:
        apply(data, offset, written)
    return data


def apply(data, offset, written):
    if written is None:
        del data[offset:]
        data.extend(bytes(offset - len(data)))
        return
    data.extend(bytes(max(0, offset - len(data))))
    data[offset : offset + len(written)] = written


class Draw:
    """What chance does with what was not synced, in one state."""

    def __init__(self, rng):
        self.rng = rng
        self.ordered = rng.random() < 0.5
        # Nothing of it, all of it, or some: the first is what shows a sync that is missing most often.
        self.share = rng.choice([0.0, 0.0, 1.0, 0.1, 0.5, 0.9])
        self.in_order = rng.random() < 0.3
        self.sector = rng.choice([512, 4096])
        self.garbage = rng.random() < 0.25

    def __str__(self):
        order = "names in order" if self.ordered else "names in any order"
        writes = "writes in order" if self.in_order else f"{self.share:.0%} of the sectors"
        return f"{order}, {writes}, sectors of {self.sector}, {'garbage' if self.garbage else 'zeros'} between them"

    def count(self, limit):
        """How many of so many changes in a row are there."""
        if self.share in (0.0, 1.0):
            return limit if self.share else 0
        return self.rng.randint(0, limit)

    def data(self, data, pending):
        """A durable content to which some of this was done."""
        if not pending or self.share == 0.0:
            return data
        if self.share == 1.0:
            for _, _, offset, written in pending:
                apply(data, offset, written)
            return data
        # The lengths that the file had: one of them is what is left of its length.
        kept_count = self.count(len(pending))
        length = len(data)
        for _, _, offset, written in pending[:kept_count]:
            length = offset if written is None else max(length, offset + len(written))
        for index, (_, _, offset, written) in enumerate(pending):
            if written is None:
                if index < kept_count:
                    apply(data, offset, None)
                continue
            if self.in_order and index > kept_count:
                break
            whole = self.in_order and index < kept_count
            for start, piece in self.sectors(offset, written):
                if whole or self.rng.random() < self.share:
                    self.extend(data, start)
                    apply(data, start, piece)
        if len(data) < length:
            self.extend(data, length)
        elif self.rng.random() < 0.5:
            # In the middle of a write that made it longer, too.
            length += self.rng.randrange(0, len(data) - length + 1) // self.sector * self.sector
        del data[length:]
        return data

    def sectors(self, offset, written):
        start = offset
        while start < offset + len(written):
            end = min((start // self.sector + 1) * self.sector, offset + len(written))
            yield start, written[start - offset : end - offset]
            start = end

    def extend(self, data, length):
        missing = length - len(data)
        if missing > 0:
            data.extend(self.rng.randbytes(missing) if self.garbage else bytes(missing))
