#!/usr/bin/env python3
"""Tokens per second and peak resident memory of the reference configurations S and M, whole steps with optimizer.

    scripts/bench.py [--runs 3] [--configs s,m] [--cases one,1f1b,...] [--json FILE]

Cases: one process with two threads (one device), and two devices with one thread each under several schedules and cuts.
A run takes three steps to warm up and ten that count; the median of the runs is printed. Needs a release build of pipec
(it makes one) and Python, nothing else. Each run also tells which share of its time its threads were ready to run but
had no core: figures of a run with more than 0.06 say more about the machine's other work than about pipec.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPEC = ROOT / "target/release/pipec"
WARM_UP, STEPS = 3, 10


def cases(config):
    """Name and pipeline of every case of a configuration."""
    even, split = {"s": ("[2, 2]", "[3, 1]"), "m": ("[4, 4]", "[5, 3]")}[config]
    two = "cluster: local { devices: 2 }"
    return {
        "one": "cluster: local { devices: 1, threads: 2 }, stages: 1, schedule: one_f_one_b",
        "single": "cluster: local { devices: 1 }, stages: 1, schedule: one_f_one_b",
        "1f1b_even": f"{two}, stages: 2, layers: {even}, schedule: one_f_one_b",
        "1f1b_split": f"{two}, stages: 2, layers: {split}, schedule: one_f_one_b",
        "1f1b_auto": f"{two}, stages: 2, schedule: one_f_one_b",
        "interleaved": f"{two}, stages: 4, schedule: interleaved {{ virtual: 2 }}",
    }


def waiting(pid, total, stop):
    """Samples how long the threads of a process have waited for a core."""
    while not stop.is_set():
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                    total[task] = int(file.read().split()[1])
        except (OSError, ValueError):
            pass
        stop.wait(0.2)


def run(source, folder):
    """One run: tokens per second, peak resident MiB, share of time spent waiting for a core."""
    file, metrics = folder / "bench.pipe", folder / "metrics.jsonl"
    file.write_text(source)
    metrics.unlink(missing_ok=True)
    begin = time.time()
    command = [PIPEC, "run", file, "--steps", str(WARM_UP + STEPS), "--quiet", "--metrics", metrics]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    waited, stop = {}, threading.Event()
    watcher = threading.Thread(target=waiting, args=(process.pid, waited, stop))
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    stop.set()
    watcher.join()
    if status != 0:
        raise SystemExit(f"pipec failed on\n{source}")
    seconds = time.time() - begin
    steps = [json.loads(line) for line in metrics.read_text().splitlines()][WARM_UP:]
    rate = sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps)
    return rate, usage.ru_maxrss / 1024, sum(waited.values()) / 1e9 / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--configs", default="s,m")
    parser.add_argument("--cases", default="")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=ROOT, check=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for config in arguments.configs.split(","):
            text = (ROOT / f"examples/reference/{config}.pipe").read_text()
            head = text[: text.index("\npipeline")].replace('"model.pipe"', f'"{ROOT}/examples/reference/model.pipe"')
            for name, pipeline in cases(config).items():
                if arguments.cases and name not in arguments.cases.split(","):
                    continue
                source = f"{head}\npipeline {{ model: {config}, {pipeline} }}\n"
                runs = [run(source, pathlib.Path(folder)) for _ in range(arguments.runs)]
                rate, memory, waited = (statistics.median(column) for column in zip(*runs))
                results[f"{config} {name}"] = {"tokens_per_second": rate, "mib": memory, "waited": waited, "runs": runs}
                print(f"{config} {name:12} {rate:8.0f} tokens/s {memory:6.0f} MiB, waited {waited:.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
