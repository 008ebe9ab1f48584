"""The table of benches/compare.sh: what its runs say, as ratios, beside what is aimed at.

    python3 benches/compare_report.py RUNS.jsonl RESULT.json

A ratio is taken in each round, between neighbours in time; the table has the median of the rounds and how far they
spread. Where nginx is compared with, it is with sendfile or without, whichever has the better median.
"""

import collections
import json
import statistics
import sys

MIB = 1 << 20


def main(runs_path, result_path):
    runs = collections.defaultdict(list)
    with open(runs_path) as file:
        for row in map(json.loads, file):
            runs[row["line"], row["server"]].append(row["result"])
    figures(runs)
    rows = list(judge(runs))
    print(f"\n{'what':52} {'ratio':>8} {'spread':>16}   aim")
    for row in rows:
        spread = f"{row['least']:.2f} to {row['most']:.2f}"
        response = {True: "yes", False: "NO", None: ""}[row["is_met"]]
        print(f"{row['what']:52} {row['median']:8.2f} {spread:>16}   {row['aim']:8} {response}")
    with open(result_path, "w") as file:
        json.dump({"rows": rows, "runs": {"/".join(key): results for key, results in runs.items()}}, file, indent=1)
    print(f"\nall of it: {result_path}")


def figures(runs):
    """Medians of what each server did."""
    print(f"{'line':10} {'server':12} {'MiB/s':>7} {'req/s':>7} {'p50 us':>8} {'p99 us':>8} {'p99.9':>8} "
          f"{'cpu s/GiB':>9} {'RSS MiB':>8} {'disk MiB':>8} {'client cpu':>10}")
    for (line, server), results in runs.items():
        for phase in ("idle", "busy") if line == "mixed" else (None,):
            middle = lambda name: statistics.median((each[phase] if phase else each)[name] for each in results)
            print(f"{phase or line:10} {server:12} {middle('bytes_per_sec') / MIB:7.0f} {middle('requests_per_sec'):7.0f} "
                  f"{middle('p50_us'):8.0f} {middle('p99_us'):8.0f} {middle('p999_us'):8.0f} "
                  f"{middle('server_cpu_secs_per_gib'):9.2f} {middle('server_peak_rss') / MIB:8.0f} "
                  f"{middle('server_disk_bytes') / MIB:8.0f} {middle('client_cpu_secs'):10.2f}")
        if line == "mixed":
            cold = statistics.median(each["cold_bytes_per_sec"] for each in results)
            print(f"{'':10} {server:12} {cold / MIB:7.0f}  of cold reads beside the warm ones")


def judge(runs):
    """What was compared, and whether it is as good as it should be."""
    def have(*keys):
        return all(key in runs for key in keys)

    def row(what, values, bound=None, is_least=False):
        median = statistics.median(values)
        if bound is None:
            return {"what": what, "median": median, "least": min(values), "most": max(values), "aim": "",
                    "is_met": None}
        aim = f">= {bound:.2f}" if is_least else f"<= {bound:.2f}"
        return {"what": what, "median": median, "least": min(values), "most": max(values), "aim": aim,
                "is_met": median >= bound if is_least else median <= bound}

    def ratios(line, server, name):
        pairs = zip(runs[line, "zorb"], runs[line, server])
        return [ours[name] / theirs[name] for ours, theirs in pairs]

    def best(line, name):
        return max(("sendfile", "no-sendfile"), key=lambda s: statistics.median(each[name] for each in runs[line, s]))

    for count, bound in ((1, 3.5), (4, 2.0)):
        line = f"upload-{count}"
        if have((line, "official")):
            clients = "1 client" if count == 1 else f"{count} clients"
            yield row(f"upload, {clients}: of official", ratios(line, "official", "bytes_per_sec"), bound, True)
            cpu = ratios(line, "official", "server_cpu_secs_per_gib")
            yield row(f"upload, {clients}: processor, of official", cpu, 1 / 3, False)
    if have(("upload-8", "zorb")):
        memory = [each["server_peak_rss"] / MIB for each in runs["upload-8", "zorb"]]
        yield row("upload, 8 clients: MiB of memory, no ratio", memory, 96, False)
    for line, what, name, bound in (
        ("ranges", "16 chunks: bytes/s", "bytes_per_sec", 0.9),
        ("single", "1 chunk: requests/s", "requests_per_sec", 0.7),
        ("whole", "whole xorbs: bytes/s", "bytes_per_sec", 0.9),
        ("cold", "16 chunks, cold: bytes/s", "bytes_per_sec", 0.9),
    ):
        if not have((line, "zorb")):
            continue
        server = best(line, name)
        yield row(f"{what}, of nginx ({server})", ratios(line, server, name), bound, True)
        if line == "single":
            yield row(f"1 chunk: p99, of nginx ({server})", ratios(line, server, "p99_us"), 2, False)
    if have(("mixed", "zorb")):
        def ratio_of(server):
            return [each["p99_ratio"] for each in runs["mixed", server]]

        yield row("p99 of warm reads beside cold ones, of alone", ratio_of("zorb"), 5, False)
        yield row("  the same of nginx (sendfile), for comparison", ratio_of("sendfile"))
        yield row("  of an nginx beside a zorb that has the cold ones", ratio_of("beside"))
        pairs = zip(runs["mixed", "zorb"], runs["mixed", "beside"])
        beside = [ours["busy"]["p99_us"] / theirs["busy"]["p99_us"] for ours, theirs in pairs]
        yield row("  p99 of zorb, of that of the nginx beside it", beside)


if __name__ == "__main__":
    main(*sys.argv[1:])
