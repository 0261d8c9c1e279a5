#!/usr/bin/env bash
# bundle.sh BINARY FOLDER: a folder with the binary and the shared libraries it needs, except glibc's, which must match
# the kernel and the machine it runs on. FOLDER/firesteel starts it; the folder can be moved.
set -euo pipefail

binary=$1
folder=$2
rm -rf "$folder"
mkdir -p "$folder/lib"
cp "$binary" "$folder/lib/firesteel"

# The dynamic linker and its family come from the target's own glibc.
glibc='^(ld-linux|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|libresolv\.so|linux-vdso)'
ldd "$binary" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r name path; do
  [[ $name =~ $glibc ]] && continue
  cp -L "$path" "$folder/lib/$name"
done

# A launcher instead of a rewritten RPATH: it needs no extra tool and leaves the binary as it was tested.
cat >"$folder/firesteel" <<'LAUNCHER'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/lib/firesteel" "$@"
LAUNCHER
chmod +x "$folder/firesteel"
cp LICENSE "$folder/"

"$folder/firesteel" --version
echo "bundle: $folder, $(find "$folder/lib" -name '*.so*' | wc -l) libraries, $(du -sh "$folder" | cut -f1)"
