"""`firesteel bench`: JSON lines on standard output, a table on standard error, exit codes."""

import json
import math
import subprocess
import unittest

from support import BINARY

FAMILIES = ["draft-attention", "sparse-decode", "moe", "gemm", "indexer", "markov", "mhc", "sampling"]
SIZES = {
    "draft-attention": {"rows", "requests", "heads", "head_dim", "rows_per_list", "keys_per_list", "list_width"},
    "sparse-decode": {"rows", "requests", "heads", "head_dim", "window_keys", "extra_keys"},
    "moe": {"rows", "experts", "experts_per_row", "distinct_experts", "hidden", "inner"},
    "gemm": {"rows", "out", "in", "groups"},
    "indexer": {"rows", "requests", "heads", "head_dim", "visible", "top_k"},
    "markov": {"sequences", "vocab", "rank"},
    "mhc": {"rows", "hidden", "streams"},
    "sampling": {"sequences", "rows_per_sequence", "vocab"},
}


def run(*flags, what="kernels"):
    done = subprocess.run([BINARY, "bench", what, *flags], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


class BenchKernelsTest(unittest.TestCase):
    def test_every_line_is_json_with_figures_and_all_sizes(self):
        code, out, err = run("--rows", "1", "--repeat", "1", "--kv-cache-dtype", "fp8")
        self.assertEqual(code, 0, err)
        machine, *cases = [json.loads(line) for line in out.splitlines()]
        self.assertIn("cpu", machine["device"])
        self.assertGreater(machine["copy_gbps"], 0)
        self.assertGreater(machine["gflops"], 0)
        self.assertEqual(list(dict.fromkeys(case["family"] for case in cases)), FAMILIES)
        for case in cases:
            with self.subTest(family=case["family"], case=case["case"]):
                self.assertNotIn("skipped", case)
                self.assertLessEqual(SIZES[case["family"]], case.keys())
                for figure in ("bytes", "flop", "median_us", "min_us", "max_us", "floor_us", "ratio"):
                    self.assertTrue(math.isfinite(case[figure]) and case[figure] > 0, figure)
                self.assertAlmostEqual(case["ratio"], case["median_us"] / case["floor_us"])
                self.assertIn(case["floor"], ("bytes", "flop"))
                self.assertEqual(case["repeats"], 1)
        table = err.splitlines()
        self.assertEqual(len(table), len(cases) + 2)
        self.assertIn("GB/s", table[0])

    def test_only_the_family_and_rows_that_were_asked_for_are_run(self):
        code, out, err = run("--family", "markov,draft-attention", "--rows", "2", "--repeat", "1", "--activations", "bf16")
        self.assertEqual(code, 0, err)
        cases = [json.loads(line) for line in out.splitlines()[1:]]
        self.assertEqual({case["family"] for case in cases}, {"draft-attention", "markov"})
        self.assertEqual({case.get("requests", case.get("sequences")) for case in cases}, {2})
        self.assertEqual({case["activations"] for case in cases if case["family"] == "draft-attention"}, {"bf16"})

    def test_bad_flags_are_exit_code_2_and_name_what_is_wrong(self):
        for flags, named in ((["--family", "conv"], "draft-attention"), (["--rows", "0"], "--rows"),
                             (["--rows", "2000"], "--rows"), (["--device", "tpu"], "tpu"),
                             (["--repeat", "none"], "--repeat"), (["--activations", "fp4"], "fp4")):
            with self.subTest(flags=flags):
                code, out, err = run(*flags)
                self.assertEqual((code, out), (2, ""))
                self.assertEqual(len(err.strip().splitlines()), 1, err)
                self.assertIn(named, err)


class BenchStepTest(unittest.TestCase):
    SHAPE = ("--model-shape", "tiny", "--tp", "2", "--rank-only", "--repeats", "1")

    def test_every_batch_and_context_is_a_json_line_with_both_halves(self):
        code, out, err = run(*self.SHAPE, "--batch", "1,2", "--context", "64,200", "--layers", "4", what="step")
        self.assertEqual(code, 0, err)
        machine, *rows = [json.loads(line) for line in out.splitlines()]
        self.assertGreater(machine["copy_gbps"], 0)
        self.assertEqual((machine["activations"], machine["kv_cache_dtype"]), ("fp32", "fp32"))
        self.assertEqual([(row["context"], row["sequences"]) for row in rows], [(64, 1), (64, 2), (200, 1), (200, 2)])
        for row in rows:
            for half in (row["target"], row["draft"]):
                for figure in ("us", "weight_bytes", "cache_bytes", "distinct_experts", "floor_us", "ratio"):
                    self.assertTrue(math.isfinite(half[figure]) and half[figure] > 0, figure)
            self.assertGreater(row["prepare_us"], 0)
        self.assertEqual(len(err.splitlines()), len(rows) + 2)

    def test_flags_of_a_shape_do_not_mix_with_a_checkpoint(self):
        for flags, named in ((["--model-shape", "tiny", "--tp", "2"], "rank-only"), (["--model", "m", "--tp", "2"], "model-shape"),
                             (["--model", "m", "--model-shape", "tiny"], "'m'"), ([], "model is empty")):
            with self.subTest(flags=flags):
                code, out, err = run(*flags, what="step")
                self.assertEqual((code, out), (2, ""))
                self.assertIn(named, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
