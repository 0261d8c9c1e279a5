#!/usr/bin/env python3
"""Checks the rules of the tree that a compiler cannot: who may include whom, and what may appear where.

Usage: lint_layout.py [ROOT]. Prints one line per violation and exits with 1 when there are any.
"""

import pathlib
import re
import subprocess
import sys

MAX_LINES = 500
CODE = {".cc", ".h", ".cu", ".cuh"}
TEXT = CODE | {".py", ".sh", ".txt", ".md", ".cmake"}

TOP_LEVEL = {
    ".ci", ".clang-format", ".clang-tidy", ".dockerignore", ".gitignore", "CMakeLists.txt", "CMakePresets.json",
    "CONTRIBUTING.md", "Dockerfile", "LICENSE", "README.md", "configs", "engine", "kernels", "proto", "scripts",
    "server", "tests",
}

# Folder -> prefixes of quoted includes it may use.
INCLUDES = {
    "kernels/": ("kernels/",),
    "engine/": ("engine/", "kernels/"),
    "server/": ("server/", "engine/api/", "kernels/core/"),
}
# Folder -> prefixes it must not include, although the rule above allows them.
NEVER_INCLUDES = {
    "engine/sched/": ("engine/exec/", "engine/models/", "engine/drafters/"),
    "engine/exec/": ("engine/sched/", "engine/runtime/"),
    "engine/models/": ("engine/sched/", "engine/runtime/"),
    "engine/drafters/": ("engine/sched/", "engine/runtime/"),
    "server/text/": ("engine/",),
    "server/http/": ("engine/", "server/openai/", "server/stream/", "server/text/", "server/cli/", "server/grpc/",
                     "server/metrics/"),
    "server/stream/": ("server/openai/", "server/http/", "server/cli/", "server/grpc/", "server/metrics/"),
    "server/openai/": ("server/cli/", "server/grpc/", "server/metrics/"),
    "server/grpc/": ("server/cli/", "server/openai/", "server/http/", "server/metrics/"),
    "server/metrics/": ("server/cli/", "server/openai/", "server/grpc/", "server/text/"),
}

# Suites about a whole module, which mirror no single folder.
WHOLE_MODULE_SUITES = {"engine/lossless", "engine/mutation", "engine/sampling"}

JSON_FILES = re.compile(r"^(server/.*|engine/.*_(options|config)\.(cc|h)|engine/weights/safetensors\w*\.cc)$")
BOOST_FILES = re.compile(r"^server/http/(listener\.cc|connection\.(cc|h))$")
GRPC_FILES = re.compile(r"^server/grpc/")
PROMETHEUS_FILES = re.compile(r"^server/metrics/")
CLI11_FILES = re.compile(r"^server/cli/flags\.cc$")
THREAD_FILES = re.compile(r"^(engine/runtime/|server/|kernels/core/parallel_for)")
GETENV_FILES = re.compile(r"^server/cli/flags\.(cc|h)$")
# No shared state: these run inside a step or on the scheduler's thread.
STATELESS = re.compile(r"^(engine/(sched|exec|models|drafters|verify)/|kernels/)")
STATELESS_EXCEPT = re.compile(r"^kernels/core/parallel_for")

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
# A variable definition at file level (this tree does not indent namespaces) or a static local, neither const.
MUTABLE_GLOBAL = re.compile(
    r"^(?:static\s+|inline\s+|thread_local\s+)*"
    r"(?!static|inline|using|namespace|return|typedef|extern|friend|class|struct|enum|union|template|const|constexpr"
    r"|else|public|private|protected|case|default|goto|break|continue|delete|throw)"
    r"[A-Za-z_][\w:<>,\s*&]*[\s*&>]([A-Za-z_]\w*)(\[[^\]]*\])*\s*(=[^=].*|\{.*)?;\s*(//.*)?$")
STATIC_LOCAL = re.compile(r"^\s+static\s+(?!const\b|constexpr\b|_)[^()]*(=|;|\{)")
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
WORDS_EXCEPT = re.compile(r"^(scripts/lint_layout\.py|tests/scripts/lint_layout_test\.py|CONTRIBUTING\.md)$")


def strip_comments(text):
    """The text with comments and string contents blanked, line structure kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)

    def blank(match):
        piece = match.group(0)
        if piece[0] in "\"'":
            return piece[0] + piece[0]
        return "\n" * piece.count("\n")

    return pattern.sub(blank, text)


def check_includes(path, lines):
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        quoted, name = found.group(1) == '"', found.group(2)
        for folder, allowed in INCLUDES.items():
            if quoted and path.startswith(folder) and not name.startswith(allowed):
                yield number, f"{folder} must not include {name}"
        for folder, never in NEVER_INCLUDES.items():
            if quoted and path.startswith(folder) and name.startswith(never):
                yield number, f"{folder} must not include {name}"
        if path.startswith(("engine/", "kernels/")) and re.match(r"(grpc|grpcpp|google/protobuf|boost|proto|prometheus)/", name):
            yield number, f"the engine must not include {name}"
        if path.startswith("tests/"):
            continue
        if name.startswith("nlohmann/") and not JSON_FILES.match(path):
            yield number, "JSON is for options, configs, checkpoint headers and the server"
        if name.startswith("nlohmann/json.hpp") and path.endswith(".h"):
            yield number, "headers include nlohmann/json_fwd.hpp only"
        if name.startswith("boost/") and not BOOST_FILES.match(path):
            yield number, "Boost is for server/http/listener.cc and connection.cc"
        if name.startswith(("grpcpp/", "google/protobuf/", "firesteel/v1/")) and not GRPC_FILES.match(path):
            yield number, "gRPC and Protobuf are for server/grpc"
        if name.startswith("prometheus/") and not PROMETHEUS_FILES.match(path):
            yield number, "prometheus-cpp is for server/metrics"
        if name.startswith("CLI/") and not CLI11_FILES.match(path):
            yield number, "CLI11 is for server/cli/flags.cc"


def check_code(path, text):
    stripped = strip_comments(text).splitlines()
    in_tests = path.startswith("tests/")
    for number, line in enumerate(stripped, 1):
        if not in_tests and re.search(r"\bstd::j?thread\b(?!::)", line) and not THREAD_FILES.match(path):
            yield number, "threads are started by engine/runtime, server and kernels/core/parallel_for only"
        if re.search(r"\bgetenv\s*\(", line) and not GETENV_FILES.match(path):
            yield number, "the environment is read in server/cli/flags only"
        if in_tests:
            continue
        if MUTABLE_GLOBAL.match(line) or STATIC_LOCAL.match(line):
            yield number, "a mutable global"
        if re.search(r"\bthread_local\b", line):
            yield number, "thread_local hides who owns a value"
        if STATELESS.match(path) and not STATELESS_EXCEPT.match(path):
            for word in ("std::mutex", "std::shared_ptr", "std::make_shared", "std::condition_variable"):
                if word in line:
                    yield number, f"{word} has no place in {path.rsplit('/', 1)[0]}"


def check_file(root, path):
    suffix = pathlib.PurePath(path).suffix
    if suffix not in TEXT and path != "scripts/dev":
        return
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if suffix in CODE | {".py", ".sh"} and len(lines) > MAX_LINES:
        yield 1, f"has {len(lines)} lines, the limit is {MAX_LINES}"
    if not WORDS_EXCEPT.match(path):
        for number, line in enumerate(lines, 1):
            if BANNED_WORDS.search(line):
                yield number, f"unfinished work: {BANNED_WORDS.search(line).group(0)}"
    if suffix in CODE:
        yield from check_includes(path, lines)
        yield from check_code(path, text)


def check_tree(root, paths):
    for path in paths:
        if path.split("/")[0] not in TOP_LEVEL:
            yield path, 1, "is not one of the top-level entries"
    folders = {str(pathlib.PurePath(path).parent) for path in paths}
    for path in paths:
        mirrored = re.match(r"^tests/((?:kernels|engine|server)/.*)/[^/]+_test\.(?:cc|cu)$", path)
        if mirrored and mirrored.group(1) not in folders | WHOLE_MODULE_SUITES:
            yield path, 1, f"tests mirror the sources, but there is no {mirrored.group(1)}/"
        for number, message in check_file(root, path):
            yield path, number, message


def tracked_files(root):
    """What git would commit; every file where there is no git."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        names = listed.stdout.splitlines()
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    return sorted(name for name in set(names) if (root / name).is_file())


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    violations = list(check_tree(root, tracked_files(root)))
    for path, number, message in violations:
        print(f"{path}:{number}: {message}")
    print(f"layout: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
