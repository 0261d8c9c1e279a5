#!/bin/sh
# Runs Python from the repository's virtual environment, or the system's when there is none.
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ -x "$root/.venv/bin/python" ]; then
  exec "$root/.venv/bin/python" "$@"
fi
exec python3 "$@"
