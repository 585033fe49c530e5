// What bounds the kernels on this processor, for `ringmpi bench kernel`: multiply-adds from registers, and exp2.
#include <algorithm>
#include <cstdint>

#include "simd.h"

#define RINGMPI_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int CHAINS = 12;  // more than latency times ports of any x86 core so far, fewer than registers

}  // namespace

// x <- a x + b in CHAINS independent vectors, `rounds` times each -> flops done; `last` keeps the result alive.
RINGMPI_EXPORT double ringmpi_fma(int64_t rounds, float a, float b, float* last) noexcept {
  using namespace ringmpi;
  const Vec<float> factor = broadcast(a), term = broadcast(b);
  Vec<float> x[CHAINS];
  for (int i = 0; i < CHAINS; ++i) x[i] = broadcast(float(i));
  for (int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; ++i) x[i] = x[i] * factor + term;
  }
  Vec<float> sum = x[0];
  for (int i = 1; i < CHAINS; ++i) sum += x[i];
  for (int lane = 0; lane < LANES<float>; ++lane) last[lane] = sum[lane];
  return 2.0 * CHAINS * LANES<float> * double(rounds);
}

// y = 2^x by the polynomial of the kernels, `calls` times; count a multiple of LANES, arrays aligned to 64 bytes.
RINGMPI_EXPORT void ringmpi_exp2(const float* x, float* y, int64_t count, int64_t calls) noexcept {
  using namespace ringmpi;
  for (int64_t call = 0; call < calls; ++call) {
    for (int64_t i = 0; i < count; i += LANES<float>) store(y + i, exp2<float>(load(x + i)));
    asm volatile("" : : "r"(y) : "memory");  // each call is done
  }
}
