"""What a process did to its files and said to its clients, out of a trace by strace.

A call has two moments: `begin`, before which it has done nothing, and `end`, after which it has done everything. Between
two calls of different threads only "ended before the other began" says which was first. That is true of the trace, because
strace stops a thread at both moments, and a thread that waits for another one is woken by a call of that one.
"""

import re
from dataclasses import dataclass

# What changes files, names and descriptors, and what goes out on sockets. Reads are left out: the server never reads and
# writes by one descriptor's position, and if it did, the comparison with the real directory at the end would fail.
TRACED = (
    "open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,"
    "sendfile,copy_file_range,splice,ftruncate,truncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,link,linkat,symlink,symlinkat,fsync,fdatasync,sync,syncfs,sync_file_range,msync,mmap,io_uring_setup,execve"
)

UNFINISHED = re.compile(rb"(.*) <(?:unfinished|detached) \.\.\.>(?:\) += \?)?", re.S)
# Of these it makes no difference whether they were carried out, when nothing comes after them.
HARMLESS = ("close", "dup", "dup2", "dup3", "fcntl", "lseek", "fsync", "fdatasync", "mmap")

# Ends, signals, and calls that strace had not looked at when the process was killed: those are not carried out any more.
NO_CALLS = (b"+++", b"---", b"???", b"<... ??? resumed>")

RESUMED = re.compile(rb"<\.\.\. (\w+) resumed>(.*)", re.S)
CALL = re.compile(rb"(\w+)\((.*)\)\s+= (-?\d+|\?|0x[0-9a-f]+)", re.S)


def command(output):
    """What to put before a command so that it is traced to this file."""
    # Strings in hex and whole: the contents of every write are in the trace.
    return ["strace", "-f", "-qq", "-xx", "-s", str(1 << 24), "-e", f"trace={TRACED}", "-e", "signal=none", "-o", str(output)]


@dataclass(frozen=True)
class Call:
    """A call that returned, or one that the process died in: `result` is None then, and `end` behind everything."""

    begin: int
    end: int
    name: str
    args: list
    result: int | None


def read(path, start):
    """The calls of a trace in the order in which they ended; those of which it does not say whether they did anything,
    because the process was killed in them; and the position behind it. Positions begin with `start`."""
    with open(path, "rb") as lines:
        return read_lines(lines, start)


def read_lines(lines, start):
    """The same of the lines of a trace. How one ends whose process is killed:

    >>> calls, cut_off, end = read_lines([
    ...     b'8  write(4, "\\x61", 1) = 1\\n',
    ...     b'9  fdatasync(4 <unfinished ...>\\n',
    ...     b'8  write(4, "\\x62", 1 <unfinished ...>\\n',
    ...     b'9  <... fdatasync resumed>) = ?\\n',
    ...     b'7  unlink("\\x63" <unfinished ...>\\n',
    ...     b'7  <... unlink resumed> <unfinished ...>) = ?\\n',
    ...     b'6  ???( <unfinished ...>\\n',
    ...     b'6  <... ??? resumed>) = ?\\n',
    ...     b'9  +++ killed by SIGKILL +++\\n',
    ... ], 1)
    >>> [(call.name, call.begin, call.end, call.result) for call in calls]
    [('write', 1, 1, 1), ('fdatasync', 2, 4, None)]
    >>> [(call.name, call.begin, call.end, call.result) for call in cut_off], end
    ([('write', 3, 10, None), ('unlink', 5, 10, None)], 11)
    """
    under_way, calls, position = {}, [], start
    for position, line in enumerate(lines, start):
        thread, _, text = line.rstrip(b"\n").partition(b" ")
        text = text.lstrip()
        if text.startswith(NO_CALLS):
            continue
        if unfinished := UNFINISHED.fullmatch(text):
            if not RESUMED.match(text):
                under_way[thread] = (position, unfinished[1])
            continue
        begin = position
        if resumed := RESUMED.match(text):
            begin, first = under_way.pop(thread)
            text = first + resumed[2]
        calls.append(parse(begin, position, text))
    end = position + 1
    cut_off = [parse(begin, end, text + b") = ?") for begin, text in under_way.values()]
    return calls, [call for call in cut_off if call.name not in HARMLESS], end + 1


def parse(begin, end, text):
    found = CALL.match(text)
    if not found:
        raise ValueError(f"line {begin} of the trace is not understood: {text[:200]!r}")
    result = None if found[3] == b"?" else int(found[3], 0)
    return Call(begin, end, found[1].decode(), split(found[2]), result)


def split(text):
    """Arguments at the top level. In strings there is nothing but hex, so that commas and brackets are what they are."""
    args, depth, start = [], 0, 0
    if len(text) < 300 or b"[" not in text[:300]:
        return [arg.strip() for arg in text.split(b",")]
    for found in re.finditer(rb"[\[\]{}(),]", text):
        sign = found[0]
        if sign in b"[{(":
            depth += 1
        elif sign in b"]})":
            depth -= 1
        elif depth == 0:
            args.append(text[start : found.start()].strip())
            start = found.end()
    args.append(text[start:].strip())
    return args


def string(arg):
    """The bytes of a string argument."""
    if not (arg.startswith(b'"') and arg.endswith(b'"')):
        raise ValueError(f"not a whole string: {arg[:100]!r}")
    return bytes.fromhex(arg[1:-1].replace(b"\\x", b"").decode())


def payload(call):
    """The bytes that a call of the write family was given."""
    if call.name in ("write", "pwrite64", "sendto"):
        return string(call.args[1])
    return b"".join(string(part) for part in re.findall(rb'iov_base=("[^"]*")', b",".join(call.args)))
