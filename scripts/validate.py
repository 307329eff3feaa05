#!/usr/bin/env python3
"""Published iteration times of SPipe, Mobius and 1F1B with offloading beside those that pipec predicts.

    scripts/validate.py [--update] [--only TEXT]

Reads tests/validation/spipe.csv and clusters.pipe, simulates every row with a release build of pipec (it makes one), and prints
the table of docs/validation.md; with --update it writes it there. Python alone, one to two minutes.
"""
import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPEC = ROOT / "target/release/pipec"
DATA = ROOT / "tests/validation"
PAGE = ROOT / "docs/validation.md"
SYSTEMS = {"spipe": "SPipe", "mobius": "Mobius", "interleaved_1f1b_offload": "1F1B, offload"}

def source(row, schedule=None):
    """The pipeline of a row, perhaps under another schedule."""
    schedule = schedule or {
        "spipe": f"spipe {{ forward: {row['fwd_stages_per_gpu']}, backward: {row['bwd_stages_per_gpu']} }}",
        "mobius": f"mobius {{ virtual: {row['fwd_stages_per_gpu']}, optimizer: sync }}",
        "interleaved_1f1b_offload": "interleaved { virtual: 2 }, state: host, recompute: full",
    }[row["system"]]
    gpus = int(row["nodes"]) * int(row["gpus_per_node"])
    batch = int(row["micro_batch"]) * int(row["microbatches_M"])
    return f"""
use "{DATA}/clusters.pipe"
train {{
    seq: {row['seq']}, global_batch: {batch}, micro_batch: {row['micro_batch']}, precision: f16, gradients: f16
    optimizer: adamw {{ lr: 1e-4, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 }}
}}
pipeline {{
    model: std::models::llama {{
        layers: {row['layers']}, hidden: {row['hidden']}, heads: {row['heads']}
        ffn: {row['ffn_hidden']}, vocab: {row['vocab_padded']}
    }}
    cluster: {row['cluster']}_{row['seq']} {{ nodes: {row['nodes']} }}
    devices: {gpus}, schedule: {schedule}
}}
"""


def predicted(row, folder, schedule=None):
    """The step in milliseconds; none where it does not fit, with the reason."""
    file = folder / "row.pipe"
    file.write_text(source(row, schedule))
    run = subprocess.run([PIPEC, "simulate", file, "--json"], capture_output=True, text=True)
    if run.returncode == 0:
        return json.loads(run.stdout)["makespan_ns"] / 1e6, None
    first = next((line for line in run.stderr.splitlines() if "×" in line), run.stderr.strip())
    return None, first.strip(" ×│")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write docs/validation.md")
    parser.add_argument("--only", default="", help="rows that have this text")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "pipec"], cwd=ROOT, check=True)
    rows = [row for row in csv.DictReader((DATA / "spipe.csv").open()) if arguments.only in ",".join(row.values())]
    lines = ["| cluster | model | GPUs | seq | system | | published, s | predicted, s | error |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    errors, verdicts, pairs, gains = {}, [], {}, []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            time, why = predicted(row, pathlib.Path(folder))
            fits = row["status"] == "ok"
            published = f"{float(row['elapsed_ms']) / 1e3:.2f}" if fits else "does not fit"
            if row["system"] != "interleaved_1f1b_offload":
                verdicts.append(fits == (time is not None))
            if row["system"] == "spipe":
                best, _ = predicted(row, pathlib.Path(folder), "spipe")
                if time is not None and best is not None:
                    gains.append(1 - best / time)
                    row["auto"] = best
            place = (row["cluster"], row["model_label"], row["seq"])
            if fits and time is not None:
                pairs.setdefault(place, {})[row["system"]] = (float(row["elapsed_ms"]), time)
            error = ""
            if fits and time is not None:
                share = time / float(row["elapsed_ms"]) - 1
                errors.setdefault((row["cluster"], row["system"], row["use"]), []).append(share)
                error = f"{100 * share:+.1f} %"
            gpus = int(row["nodes"]) * int(row["gpus_per_node"])
            use = "fitted" if row["use"] == "calibration" else ""
            lines.append(f"| {row['cluster']} | {row['model_label']} | {gpus} | {row['seq']} | {SYSTEMS[row['system']]} "
                         f"| {use} | {published} | {'does not fit' if time is None else f'{time / 1e3:.2f}'} | {error} |")
            print(lines[-1], f"<!-- {why} -->" if why else "", flush=True)
    summary = ["| cluster | system | rows | mean of errors | largest |", "| --- | --- | --- | --- | --- |"]
    for (cluster, system, use), shares in sorted(errors.items()):
        name = SYSTEMS[system] + (", fitted" if use == "calibration" else "")
        mean = statistics.mean(abs(share) for share in shares)
        most = max(shares, key=abs)
        summary.append(f"| {cluster} | {name} | {len(shares)} | {100 * mean:.1f} % | {100 * most:+.1f} % |")
    right = f"Whether a row of SPipe or Mobius fits its cards is right in {sum(verdicts)} of {len(verdicts)} rows."
    both = [pair for pair in pairs.values() if "spipe" in pair and "mobius" in pair]
    faster = [all(spipe < mobius for spipe, mobius in zip(pair["spipe"], pair["mobius"])) for pair in both
              if pair["spipe"][0] < pair["mobius"][0]]
    right += f"\nSPipe is predicted to be faster than Mobius in {sum(faster)} of {len(faster)} cases in which it was."
    if gains:
        right += (f"\n`schedule: spipe`, which chooses its stages, is predicted to be faster than two forward and six backward stages in "
                  f"{sum(gain > 0 for gain in gains)} of {len(gains)} rows, by {100 * statistics.mean(gains):.1f} % on average "
                  f"({100 * min(gains):.1f} to {100 * max(gains):.1f} %).")
    print("\n".join(summary + ["", right]))
    if arguments.update:
        head, rest = PAGE.read_text().split("<!-- summary -->", 1)
        rest = rest.split("<!-- /summary -->", 1)[1]
        middle, rest = rest.split("<!-- rows -->", 1)
        rest = rest.split("<!-- /rows -->", 1)[1]
        parts = [head, "<!-- summary -->\n", "\n".join(summary + ["", right]), "\n<!-- /summary -->", middle,
                 "<!-- rows -->\n", "\n".join(lines), "\n<!-- /rows -->", rest]
        PAGE.write_text("".join(parts))


if __name__ == "__main__":
    main()
