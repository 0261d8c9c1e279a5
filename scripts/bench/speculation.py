#!/usr/bin/env python3
"""Measures what the drafter is worth: generates for the same prompts without and with speculation, in turn.

Prints one row per run and the ratio of tokens per second of each pair, with the median. Only the ratio of one run on
one machine means anything; the tokens must be equal, and the script fails when they are not.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS = ROOT / "tests/fixtures/golden/demo_v4/greedy.json"


def generate(args, drafter, lines):
    command = [args.binary, "generate", "--model", args.model, "--input", "-", "--drafter", drafter,
               "--batch", str(args.batch), "--max-tokens", str(args.max_tokens)]
    if args.threads:
        command += ["--threads", str(args.threads)]
    if drafter != "none":
        command += ["--draft-length", args.draft_length]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}{done.stdout}")
    outputs = [json.loads(line)["output_ids"] for line in done.stdout.splitlines()]
    return json.loads(done.stderr.strip().splitlines()[-1]), outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/firesteel"))
    parser.add_argument("--model", default=str(ROOT / "configs/demo-v4"))
    parser.add_argument("--prompts", type=int, default=16, help="how many of the stored prompts")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--draft-length", default="checkpoint", help="a number, 'checkpoint' or 'auto'")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    cases = json.loads(PROMPTS.read_text())[:args.prompts]
    lines = "".join(json.dumps({"prompt_ids": case["prompt_ids"]}) + "\n" for case in cases)
    print(f"machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cpus, {platform.system()}")
    print(f"prompts: {len(cases)}, max_tokens {args.max_tokens}, batch {args.batch}, greedy, "
          f"draft length {args.draft_length}, {args.repeats} repeats after one warm-up")
    print(f"{'run':>4} {'none tok/s':>12} {'dspark tok/s':>13} {'ratio':>7} {'acceptance':>11}")
    ratios = []
    for run in range(args.repeats + 1):
        # Each goes first in every other run: a machine that slows down or speeds up favours neither.
        order = ("none", "dspark") if run % 2 == 0 else ("dspark", "none")
        done = {drafter: generate(args, drafter, lines) for drafter in order}
        (plain, plain_ids), (drafted, drafted_ids) = done["none"], done["dspark"]
        if plain_ids != drafted_ids:
            sys.exit("the outputs differ with and without speculation")
        if run == 0:
            continue  # warm-up: page cache and clocks
        ratio = drafted["tokens_per_second"] / plain["tokens_per_second"]
        ratios.append(ratio)
        print(f"{run:>4} {plain['tokens_per_second']:>12.1f} {drafted['tokens_per_second']:>13.1f} "
              f"{ratio:>7.3f} {drafted['mean_acceptance_length']:>11.3f}")
    if ratios:
        print(f"median ratio {statistics.median(ratios):.3f}, spread {min(ratios):.3f}..{max(ratios):.3f}")


if __name__ == "__main__":
    main()
