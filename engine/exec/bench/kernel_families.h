// The families of cases that `RunKernelBench` knows, one file each. A family builds the buffers of its cases, states their
// bytes and FLOP, and hands them to the runner.
#pragma once

#include "engine/exec/bench/case_runner.h"

namespace firesteel {

Status BenchDraftAttention(CaseRunner& runner);
Status BenchSparseDecode(CaseRunner& runner);
Status BenchMoe(CaseRunner& runner);
Status BenchGemm(CaseRunner& runner);
Status BenchIndexer(CaseRunner& runner);
Status BenchMarkov(CaseRunner& runner);
Status BenchMhc(CaseRunner& runner);
Status BenchSampling(CaseRunner& runner);

}  // namespace firesteel
