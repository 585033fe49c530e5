// What the shared library offers to Python (shared_library.py).
#include <cstring>
#include <new>

#include "backward.h"
#include "forward.h"
#include "microkernel.h"
#include "threads.h"

#define RINGMPI_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// 0: done; 1: the poll asked to stop; 2: no memory, or no thread could be started.
template <class Run> int guarded(Run run) noexcept {
  try {
    return run() ? 0 : 1;
  } catch (...) {
    return 2;
  }
}

}  // namespace

// Null: no memory.
RINGMPI_EXPORT void* ringmpi_open(int threads) noexcept {
  try {
    return new ringmpi::Engine(threads);
  } catch (...) {
    return nullptr;
  }
}

RINGMPI_EXPORT void ringmpi_close(void* engine) noexcept { delete static_cast<ringmpi::Engine*>(engine); }

RINGMPI_EXPORT int ringmpi_attend(void* handle, ringmpi::Forward* call) noexcept {
  auto& engine = *static_cast<ringmpi::Engine*>(handle);
  std::lock_guard<std::mutex> lock(engine.one_call);
  return guarded([&] { return ringmpi::attend(engine, *call); });
}

RINGMPI_EXPORT int ringmpi_attend_backward(void* handle, ringmpi::Backward* call) noexcept {
  auto& engine = *static_cast<ringmpi::Engine*>(handle);
  std::lock_guard<std::mutex> lock(engine.one_call);
  return guarded([&] { return ringmpi::attend_backward(engine, *call); });
}

// Whether this machine can run the library built for an instruction set.
RINGMPI_EXPORT int ringmpi_runs(const char* isa) noexcept {
  if (!std::strcmp(isa, "portable")) return 1;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!std::strcmp(isa, "avx2")) return avx2;
  if (!std::strcmp(isa, "avx512"))
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
  return 0;
}
