#!/usr/bin/env bash
# gpu_check.sh [BUNDLE [TREE]]: runs the CUDA suites of a bundle on a GPU machine; a short table is the end of its output,
# the full output of each check is kept in LOGS (default: a new folder under /tmp). Exits with 1 when a check fails.
#   BUNDLE  what `scripts/dev bundle` made with CUDA (default: the folder of this script)
#   TREE    a source tree, for its configs/demo-v4 and tests/fixtures (default: the current folder)
set -uo pipefail

bundle=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")}" && pwd)
tree=$(cd "${2:-.}" && pwd)
logs=${LOGS:-$(mktemp -d /tmp/firesteel_gpu_check.XXXXXX)}
mkdir -p "$logs"
for needed in "$bundle/firesteel" "$bundle/demo_prompts.jsonl" "$tree/configs/demo-v4/config.json" \
  "$tree/tests/fixtures/golden/demo_v4/greedy.json"; do
  if [[ ! -e $needed ]]; then
    echo "gpu_check.sh: $needed is missing; usage: gpu_check.sh [BUNDLE [TREE]]" >&2
    exit 2
  fi
done
cd "$tree" || exit 2 # the suites read fixtures below the current folder

table=()
failures=0

# note NAME STATUS SECONDS DETAIL
note() {
  local verdict=ok
  if [[ $2 -ne 0 ]]; then
    verdict=FAILED
    failures=$((failures + 1))
  fi
  table+=("$(printf '%-26s %-7s %5ss  %s' "$1" "$verdict" "$3" "$4")")
}

# suite NAME BINARY [filter]
suite() {
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name" >&2
  if [[ ! -x $bundle/$1 ]]; then
    note "$name" 1 0 "$bundle/$1 is missing"
    return
  fi
  timeout 900 "$bundle/$1" -w NoTests "${@:2}" >"$logs/$name.log" 2>&1 || status=$?
  note "$name" "$status" $((SECONDS - start)) \
    "$({ grep -m 1 'check failed' "$logs/$name.log" || tail -n 3 "$logs/$name.log"; } | tr -s '=\n' ' ' | cut -c1-160)"
}

# evaluate NAME FLAGS...: the demo prompts with their reference outputs, which are greedy with an fp32 cache. One line
# that differs fails the check; golden.demo_v4_cuda judges whether two logits nearly tie there.
evaluate() {
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name" >&2
  timeout 900 "$bundle/firesteel" eval --model configs/demo-v4 --device cuda --input "$bundle/demo_prompts.jsonl" \
    --max-tokens 160 "$@" >"$logs/$name.jsonl" 2>"$logs/$name.log" || status=$?
  note "$name" "$status" $((SECONDS - start)) "$(summary "$logs/$name.log")"
}

# generated NAME FLAGS...: the same prompts in the default cache dtype; only the ids are kept, to be compared.
generated() {
  local name=$1
  shift
  echo "== $name" >&2
  timeout 900 "$bundle/firesteel" generate --model configs/demo-v4 --device cuda --input "$bundle/demo_prompts.jsonl" \
    --max-tokens 160 "$@" >"$logs/$name.jsonl" 2>"$logs/$name.log" || return 1
  grep -o '"output_ids":[^]]*]' "$logs/$name.jsonl" >"$logs/$name.ids"
}

# summary LOG: what the last line, a JSON object, says of some keys; the end of that line where it is no such object.
summary() {
  local line key value text=
  line=$(tail -n 1 "$1")
  for key in matches mismatches tokens_per_second mean_acceptance_length kv_cache_dtype activations; do
    value=$(grep -o "\"$key\": *\"*[^,\"}]*" <<<"$line" | sed 's/.*: *"*//' | cut -c1-8)
    [[ -n $value ]] && text+="$key $value  "
  done
  echo "${text:-${line: -100}}"
}

# One process for each operation: a fault of one ends the process, and no other one's results are lost.
for op in confidence draft_prepare embed feature_tap gather hyper_mix indexer kernel_table kv_compress kv_write linear \
  markov moe_experts moe_group moe_route rms_norm rope sampling sparse_attention step_prepare swiglu verify; do
  suite "ops_cuda.$op" kernels_ops_cuda_test "[$op]"
done
suite kernels.cuda kernels_cuda_test
suite golden.demo_v4_cuda golden_cuda_test '[demo_v4]'
suite golden.demo_v4_bf16_cuda golden_cuda_test '[demo_v4_bf16]'
suite drafters.draft_context_cuda drafters_cuda_test '[draft_context]'
suite golden.yarn_cuda golden_cuda_test '[yarn]'
for factor in activations drafter batch chunk graph cache length prefix preemption; do
  suite "lossless.${factor}_cuda" lossless_cuda_test "[$factor]"
done
evaluate eval.none --kv-cache-dtype fp32 --activations fp32 --drafter none
evaluate eval.dspark --kv-cache-dtype fp32 --activations fp32 --drafter dspark
start=$SECONDS
status=0
generated default_cache.none --drafter none && generated default_cache.dspark --drafter dspark &&
  cmp "$logs/default_cache.none.ids" "$logs/default_cache.dspark.ids" >&2 || status=$?
note eval.default_cache "$status" $((SECONDS - start)) \
  "text with the drafter equals text without it; $(summary "$logs/default_cache.dspark.log")"

echo "full output: $logs"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1
printf '%s\n' "${table[@]}"
echo "$((${#table[@]} - failures)) of ${#table[@]} checks passed"
[[ $failures -eq 0 ]]
