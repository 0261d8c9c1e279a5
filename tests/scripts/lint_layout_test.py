"""Each rule of scripts/lint_layout.py finds its bad sample and accepts the good one next to it."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import lint_layout  # noqa: E402


def violations(files):
    """Messages for a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return [message for _, _, message in lint_layout.check_tree(root, sorted(files))]


class RuleTest(unittest.TestCase):
    def assert_bad(self, path, text, part):
        found = violations({path: text})
        self.assertTrue(any(part in message for message in found), f"{path}: {found}")

    def assert_good(self, path, text):
        self.assertEqual(violations({path: text}), [])

    def test_includes_point_downwards(self):
        self.assert_bad("kernels/core/a.h", '#include "engine/plan/ids.h"\n', "must not include engine/plan")
        self.assert_bad("engine/exec/a.cc", '#include "server/app.h"\n', "must not include server/app.h")
        self.assert_bad("server/stream/a.cc", '#include "engine/sched/b.h"\n', "must not include engine/sched")
        self.assert_good("server/stream/a.cc", '#include "engine/api/engine.h"\n#include <vector>\n')

    def test_scheduler_and_executor_do_not_know_each_other(self):
        self.assert_bad("engine/sched/a.cc", '#include "engine/exec/b.h"\n', "must not include engine/exec")
        self.assert_bad("engine/exec/a.cc", '#include "engine/sched/b.h"\n', "must not include engine/sched")
        self.assert_good("engine/sched/a.cc", '#include "engine/plan/b.h"\n')

    def test_the_engine_has_no_network_libraries(self):
        for name in ("grpc/grpc.h", "google/protobuf/message.h", "boost/asio.hpp"):
            self.assert_bad("engine/runtime/a.cc", f"#include <{name}>\n", "the engine must not include")

    def test_json_stays_in_its_files(self):
        include = "#include <nlohmann/json.hpp>\n"
        self.assert_bad("engine/exec/a.cc", include, "JSON is for")
        self.assert_bad("server/openai/a.h", include, "json_fwd")
        self.assert_good("engine/models/model_config.cc", include)
        self.assert_good("server/openai/a.cc", include)

    def test_boost_and_cli11_stay_in_their_files(self):
        self.assert_bad("server/openai/a.cc", "#include <boost/asio.hpp>\n", "Boost is for")
        self.assert_bad("server/main.cc", "#include <CLI/CLI.hpp>\n", "CLI11 is for")
        self.assert_good("server/http/connection.cc", "#include <boost/asio.hpp>\n")

    def test_threads_start_in_few_places(self):
        self.assert_bad("engine/exec/a.cc", "void F() { std::thread t; }\n", "threads are started")
        self.assert_good("engine/runtime/a.cc", "void F() { std::thread t; }\n")
        self.assert_good("engine/exec/a.cc", "// std::thread is not used here\n")

    def test_the_environment_is_read_in_one_file(self):
        self.assert_bad("engine/runtime/a.cc", 'const char* F() { return getenv("X"); }\n', "environment")
        self.assert_good("server/cli/flags.cc", 'const char* F() { return getenv("X"); }\n')

    def test_mutable_globals_are_found(self):
        for text in ("int counter = 0;\n", "static std::vector<int> cache;\n", "std::atomic<int> live{0};\n",
                     "int F() {\n  static int calls = 0;\n  return ++calls;\n}\n"):
            self.assert_bad("engine/runtime/a.cc", text, "a mutable global")
        self.assert_bad("server/a.cc", "thread_local int x = 0;\n", "thread_local")
        for text in ("constexpr int kCount = 3;\n", "const char* Name(int kind);\n", "using Json = std::vector<int>;\n",
                     "class A;\nstruct B {\n  int x = 0;\n};\n", "static Result<int> Make(int x);\n",
                     "inline constexpr int kMax = 15;\n", "namespace http = boost::http;\n",
                     "bool operator==(int a, int b) = default;\n"):
            self.assert_good("engine/runtime/a.cc", text)

    def test_steps_share_no_state(self):
        self.assert_bad("engine/sched/a.h", "struct A { std::mutex mutex; };\n", "std::mutex has no place")
        self.assert_bad("kernels/cpu/a.cc", "void F(std::shared_ptr<int> x) {}\n", "std::shared_ptr has no place")
        self.assert_good("engine/runtime/a.h", "struct A { std::mutex mutex; };\n")
        self.assert_good("kernels/core/parallel_for.cc", "struct A { std::mutex mutex; };\n")

    def test_files_have_a_size_limit(self):
        self.assert_bad("server/a.cc", "\n" * 501, "has 501 lines")
        self.assert_good("server/a.cc", "\n" * 500)

    def test_unfinished_work_is_found(self):
        self.assert_bad("server/a.cc", "// TO" + "DO: later\n", "unfinished work")
        self.assert_good("server/a.cc", "// a to-do list\n")

    def test_the_top_level_is_a_list(self):
        self.assert_bad("misc/a.cc", "\n", "top-level")
        self.assert_good("LICENSE", "\n")

    def test_tests_mirror_sources(self):
        self.assertTrue(any("tests mirror" in message for message in
                            violations({"tests/engine/gone/a_test.cc": "\n", "engine/here/a.cc": "\n"})))
        self.assertEqual(violations({"tests/engine/here/a_test.cc": "\n", "engine/here/a.cc": "\n"}), [])


if __name__ == "__main__":
    unittest.main()
