"""`firesteel generate` and `firesteel eval` over the demo checkpoint."""

import json
import pathlib
import socket
import subprocess
import tempfile
import unittest

from support import BINARY, MODEL, QUESTION, golden, run_cli


class GenerateTest(unittest.TestCase):
    def test_greedy_output_and_acceptance_equal_the_golden_run(self):
        cases = golden()[:8]
        lines = [{"prompt_ids": case["prompt_ids"], "max_tokens": 160} for case in cases]
        code, outputs, summary, _ = run_cli("generate", lines, "--batch", "4")
        self.assertEqual(code, 0)
        self.assertEqual([line["index"] for line in outputs], list(range(len(cases))))
        for case, line in zip(cases, outputs):
            self.assertEqual(line["output_ids"], case["output_ids"])
            self.assertEqual(line["text"], case["text"])
            self.assertEqual(line["accepted_per_step"], case["accepted_per_step"])
        rounds = [accepted for case in cases for accepted in case["accepted_per_step"]]
        self.assertAlmostEqual(summary["mean_acceptance_length"], 1 + sum(rounds) / len(rounds))
        self.assertEqual(summary["rounds"], len(rounds))
        self.assertEqual(summary["activations"], "fp32")

    def test_the_summary_names_the_activation_type_in_effect(self):
        lines = [{"prompt_ids": golden()[0]["prompt_ids"], "max_tokens": 8}]
        code, outputs, summary, _ = run_cli("generate", lines, "--activations", "bf16")
        self.assertEqual((code, len(outputs[0]["output_ids"])), (0, 8))
        self.assertEqual((summary["activations"], summary["kv_cache_dtype"]), ("bf16", "fp32"))

    def test_text_is_the_same_without_speculation_and_for_every_draft_length(self):
        lines = [{"prompt_ids": case["prompt_ids"], "max_tokens": 48} for case in golden()[8:12]]
        lines.append({"prompt": QUESTION, "max_tokens": 40})
        _, plain, summary, _ = run_cli("generate", lines, "--drafter", "none")
        self.assertEqual(summary["mean_acceptance_length"], 1.0)
        for length in ("1", "3", "5"):
            _, drafted, _, _ = run_cli("generate", lines, "--draft-length", length, "--batch", "3")
            self.assertEqual([line["output_ids"] for line in drafted], [line["output_ids"] for line in plain])

    def test_bad_lines_are_reported_and_the_rest_completes(self):
        code, outputs, summary, _ = run_cli(
            "generate", [{"prompt": QUESTION}, "nonsense", {"prompt_ids": [99999]}, {"prompt": QUESTION}],
            "--max-tokens", "3")
        self.assertEqual(code, 1)
        self.assertEqual(len(outputs), 4)
        self.assertIn("error", outputs[1])
        self.assertIn("99999", outputs[2]["error"])
        self.assertEqual(outputs[0]["output_ids"], outputs[3]["output_ids"])
        self.assertEqual((summary["requests"], summary["failed"]), (2, 2))

    def test_messages_use_the_chat_format(self):
        case = golden()[0]
        _, outputs, _, _ = run_cli("generate", [{"messages": [{"role": "user", "content": case["prompt"]}]},
                                                {"prompt_ids": case["prompt_ids"]}], "--max-tokens", "12")
        self.assertEqual(outputs[0]["output_ids"], outputs[1]["output_ids"])

    def test_a_seed_repeats_its_text(self):
        lines = [{"prompt": QUESTION, "seed": seed, "temperature": 1.0} for seed in (1, 2, 1)]
        _, outputs, _, _ = run_cli("generate", lines, "--max-tokens", "24")
        self.assertEqual(outputs[0]["output_ids"], outputs[2]["output_ids"])
        self.assertNotEqual(outputs[0]["output_ids"], outputs[1]["output_ids"])


class EvalTest(unittest.TestCase):
    def test_matches_and_the_first_mismatch_are_counted(self):
        _, outputs, _, _ = run_cli("generate", [{"prompt": QUESTION}], "--max-tokens", "4")
        right = outputs[0]["output_ids"]
        lines = [{"prompt": QUESTION, "expected_ids": right}, {"prompt": QUESTION},
                 {"prompt": QUESTION, "output_ids": right[:-1]}]
        code, outputs, summary, _ = run_cli("eval", lines, "--max-tokens", "4")
        self.assertEqual(code, 1)
        self.assertEqual(summary["without_expectation"], 1)
        self.assertEqual([line.get("match") for line in outputs], [True, None, False])
        self.assertEqual((summary["matches"], summary["mismatches"], summary["first_mismatch"]), (1, 1, 2))


class ExitCodeTest(unittest.TestCase):
    def run_binary(self, *args):
        done = subprocess.run([BINARY, *args], input="", capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_an_input_that_is_a_directory_is_exit_code_1(self):
        code, out, err = self.run_binary("generate", "--model", MODEL, "--input", tempfile.gettempdir())
        self.assertEqual((code, out), (1, ""))
        self.assertIn("is a directory", err)

    def test_a_full_output_device_is_a_message_and_exit_code_1(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([BINARY, "generate", "--model", MODEL, "--input", "-", "--max-tokens", "2"],
                                  input=json.dumps({"prompt": QUESTION}) + "\n", stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("No space left on device", done.stderr)

    def test_a_line_is_answered_while_the_input_stays_open(self):
        process = subprocess.Popen([BINARY, "generate", "--model", MODEL, "--input", "-", "--max-tokens", "2"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        for index in range(2):
            process.stdin.write(json.dumps({"prompt": QUESTION}) + "\n")
            process.stdin.flush()
            self.assertEqual(json.loads(process.stdout.readline())["index"], index)
        process.stdin.close()
        self.assertEqual(process.wait(60), 0)

    def test_a_missing_model_is_one_clear_line_and_exit_code_1(self):
        for command in (["serve", "--http-port", "0"], ["generate", "--input", "-"]):
            code, out, err = self.run_binary(*command, "--model", "/nonexistent/model")
            self.assertEqual((code, out), (1, ""))
            self.assertEqual(len(err.strip().splitlines()), 1)
            self.assertIn("/nonexistent/model", err)

    def test_a_damaged_model_is_one_clear_line_that_names_the_file(self):
        for name, damage in (("config.json", "remove"), ("config.json", "truncate"), ("tokenizer.json", "remove"),
                             ("model-00001-of-00002.safetensors", "remove"),
                             ("model-00002-of-00002.safetensors", "truncate")):
            with self.subTest(name=name, damage=damage), tempfile.TemporaryDirectory() as folder:
                for file in pathlib.Path(MODEL).iterdir():
                    (pathlib.Path(folder) / file.name).symlink_to(file)
                victim = pathlib.Path(folder) / name
                content = victim.read_bytes()
                victim.unlink()
                if damage == "truncate":
                    victim.write_bytes(content[:len(content) // 2])
                code, out, err = self.run_binary("generate", "--input", "-", "--model", folder)
                self.assertEqual((code, out), (1, ""), err)
                self.assertEqual(len(err.strip().splitlines()), 1, err)
                self.assertIn(name, err)

    def test_a_wrong_config_value_is_named_as_the_file_names_it(self):
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        scaling = {"type": "yarn", "factor": -1, "original_max_position_embeddings": 64}
        for change, needed in (({"eos_token_id": 1 << 30}, "eos_token_id is 1073741824, needs ids below vocab_size"),
                               ({"num_experts_per_tok": 63, "dspark_num_experts_per_tok": None},
                                "config.json: num_experts_per_tok is 63"),
                               ({"rope_scaling": scaling}, "rope_scaling: factor is -1"),
                               ({"dspark_target_layer_ids": [0, 99]}, "dspark_target_layer_ids[1] is 99")):
            with self.subTest(change=change), tempfile.TemporaryDirectory() as folder:
                for file in pathlib.Path(MODEL).iterdir():
                    (pathlib.Path(folder) / file.name).symlink_to(file)
                victim = pathlib.Path(folder) / "config.json"
                victim.unlink()
                victim.write_text(json.dumps({**config, **change}))
                code, out, err = self.run_binary("generate", "--input", "-", "--model", folder)
                self.assertEqual((code, out), (1, ""), err)
                self.assertEqual(len(err.strip().splitlines()), 1, err)
                self.assertIn(needed, err)
                self.assertEqual(err.count("config.json"), 1, err)

    def test_a_model_that_is_a_file_is_told_so(self):
        code, _, err = self.run_binary("generate", "--input", "-", "--model", MODEL + "/config.json")
        self.assertEqual(code, 1)
        self.assertIn("which is a file", err)

    def test_a_port_in_use_is_told_before_the_model_is_loaded(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            code, out, err = self.run_binary("serve", "--model", "/nonexistent/model", "--http-port", port)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("127.0.0.1:" + port, err)

    def test_bad_flags_are_exit_code_2(self):
        code, out, err = self.run_binary("serve", "--model", MODEL, "--colour", "red")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--colour", err)

    def test_standard_output_has_json_lines_only(self):
        done = subprocess.run([BINARY, "generate", "--model", MODEL, "--input", "-", "--max-tokens", "2"],
                              input=json.dumps({"prompt": QUESTION}) + "\n", capture_output=True, text=True,
                              timeout=120, check=True)
        self.assertEqual(len(done.stdout.splitlines()), 1)
        json.loads(done.stdout)
        json.loads(done.stderr.strip().splitlines()[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
