#!/usr/bin/env bash
# bundle.sh BINARY FOLDER: a folder with the binary and the shared libraries it needs, except glibc's, which must match
# the kernel and the machine it runs on. FOLDER/firesteel starts it; the folder can be moved. Where the binary's build
# has the CUDA module, that comes along, with the suites that FOLDER/gpu_check.sh runs on a GPU.
set -euo pipefail

binary=$1
folder=$2
build=$(dirname "$binary")
rm -rf "$folder"
mkdir -p "$folder/lib"

# add FILE: strips what only a debugger reads, and adds the libraries it needs.
# The dynamic linker and its family come from the target's own glibc, the CUDA driver from its own driver.
target='^(ld-linux|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|libresolv\.so|linux-vdso|libcuda\.so)'
add() {
  local name path
  strip --strip-unneeded -o "$folder/lib/$(basename "$1")" "$1"
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r name path; do
    [[ $name =~ $target || -e $folder/lib/$name ]] || cp -L "$path" "$folder/lib/$name"
  done
}

# launch NAME: FOLDER/NAME starts FOLDER/lib/NAME. A launcher instead of a rewritten RPATH: it needs no extra tool.
launch() {
  cat >"$folder/$1" <<LAUNCHER
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
LD_LIBRARY_PATH="\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "\$here/lib/$1" "\$@"
LAUNCHER
  chmod +x "$folder/$1"
}

add "$binary"
launch firesteel
if [[ -e $build/libfiresteel_cuda.so ]]; then
  add "$build/libfiresteel_cuda.so"
  for suite in kernels_cuda_test kernels_ops_cuda_test golden_cuda_test lossless_cuda_test drafters_cuda_test; do
    [[ -e $build/$suite ]] || continue
    add "$build/$suite"
    launch "$suite"
  done
  cp scripts/gpu_check.sh "$folder/"
  python3 - tests/fixtures/golden/demo_v4/greedy.json >"$folder/demo_prompts.jsonl" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as cases:
    for case in json.load(cases):
        print(json.dumps({"prompt_ids": case["prompt_ids"], "expected_ids": case["output_ids"]}))
PYTHON
fi
cp LICENSE "$folder/"

"$folder/firesteel" --version
echo "bundle: $folder, $(find "$folder/lib" -name '*.so*' | wc -l) libraries, $(du -sh "$folder" | cut -f1)"
