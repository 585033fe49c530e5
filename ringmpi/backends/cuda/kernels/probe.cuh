// Each primitive alone, in one warp: what assembly and emulation, and a real GPU, are compared by. A lane takes 16 words
// and gives 16 words.
#pragma once

#include "primitives.cuh"

namespace ringmpi {

struct Probe {
  const u32* in;
  u32* out;
};

enum Primitive { MULTIPLY_F16, MULTIPLY_BF16, MULTIPLY_F64, LOAD, LOAD_TRANSPOSED, COPY, PACK_F16, PACK_BF16, EXCHANGE, ARITHMETIC };

template <class To, class From> DEVICE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  union {
    From from;
    To to;
  } both{from};
  return both.to;
}

template <class T> DEVICE void probe_multiply(const u32 (&x)[16], u32 (&y)[16]) {
  float top[2] = {bits_of<float>(x[6]), bits_of<float>(x[7])}, bottom[2] = {bits_of<float>(x[8]), bits_of<float>(x[9])};
  const u32 a[4] = {x[0], x[1], x[2], x[3]};
  multiply_16<T>(top, bottom, a, x[4], x[5]);
  for (int e = 0; e < 2; ++e) y[e] = bits_of<u32>(top[e]), y[2 + e] = bits_of<u32>(bottom[e]);
}

DEVICE void probe_multiply_64(const u32 (&x)[16], u32 (&y)[16]) {
  double sum[2] = {bits_of<double>(x[0] | u64(x[1]) << 32), bits_of<double>(x[2] | u64(x[3]) << 32)};
  multiply_64(sum, bits_of<double>(x[4] | u64(x[5]) << 32), bits_of<double>(x[6] | u64(x[7]) << 32));
  for (int e = 0; e < 2; ++e) {
    const u64 bits = bits_of<u64>(sum[e]);
    y[2 * e] = u32(bits), y[2 * e + 1] = u32(bits >> 32);
  }
}

// Lane l leaves its words in row l of shared memory, and loads with the address of row x[4] % 32.
template <bool TRANSPOSED> DEVICE void probe_load(const u32 (&x)[16], u32 (&y)[16], unsigned char* memory) {
  u32* const rows = reinterpret_cast<u32*>(memory);
  for (int n = 0; n < 4; ++n) rows[4 * thread_index() + n] = x[n];
  barrier();
  u32 matrices[4];
  if (TRANSPOSED) load_matrices_transposed(matrices, rows + 4 * (x[4] % 32));
  else load_matrices(matrices, rows + 4 * (x[4] % 32));
  for (int n = 0; n < 4; ++n) y[n] = matrices[n];
}

DEVICE void probe_copy(const Probe& p, const u32 (&x)[16], u32 (&y)[16], unsigned char* memory) {
  u32* const rows = reinterpret_cast<u32*>(memory);
  copy16_async(rows + 4 * thread_index(), p.in + 16 * thread_index() + 8, x[0] % 2);
  copies_commit();
  copies_wait<0>();
  barrier();
  for (int n = 0; n < 4; ++n) y[n] = rows[4 * (31 - thread_index()) + n];
}

template <class T> DEVICE void probe_pack(const u32 (&x)[16], u32 (&y)[16]) {
  y[0] = pack<T>(bits_of<float>(x[0]), bits_of<float>(x[1]));
  y[1] = bits_of<u32>(widen(T{u16(x[2] & 0xffff)}));
}

DEVICE void probe_exchange(const u32 (&x)[16], u32 (&y)[16]) {
  y[0] = exchange(x[0], 1), y[1] = exchange(x[0], 2), y[2] = exchange(x[0], 16);
  y[3] = from_lane(x[0], int(x[1] % 32));
}

DEVICE void probe_arithmetic(const u32 (&x)[16], u32 (&y)[16]) {
  const float a = bits_of<float>(x[0]), b = bits_of<float>(x[1]), c = bits_of<float>(x[2]);
  y[0] = bits_of<u32>(exponential2(a)), y[1] = bits_of<u32>(multiply_add(a, b, c)), y[2] = bits_of<u32>(larger(a, b));
  y[3] = high_product(x[3], x[4]), y[4] = bits_of<u32>(larger(a, bits_of<float>(0x7fc00000u)));
  y[5] = bits_of<u32>(exponential2(-infinity<float>()));
}

template <int PRIMITIVE> KERNEL void __launch_bounds__(32) probe(const Probe p) {
  unsigned char* const memory = shared_memory();
  u32 x[16], y[16] = {};
#pragma unroll
  for (int n = 0; n < 16; ++n) x[n] = p.in[16 * thread_index() + n];
  if constexpr (PRIMITIVE == MULTIPLY_F16) probe_multiply<Float16>(x, y);
  if constexpr (PRIMITIVE == MULTIPLY_BF16) probe_multiply<BFloat16>(x, y);
  if constexpr (PRIMITIVE == MULTIPLY_F64) probe_multiply_64(x, y);
  if constexpr (PRIMITIVE == LOAD) probe_load<false>(x, y, memory);
  if constexpr (PRIMITIVE == LOAD_TRANSPOSED) probe_load<true>(x, y, memory);
  if constexpr (PRIMITIVE == COPY) probe_copy(p, x, y, memory);
  if constexpr (PRIMITIVE == PACK_F16) probe_pack<Float16>(x, y);
  if constexpr (PRIMITIVE == PACK_BF16) probe_pack<BFloat16>(x, y);
  if constexpr (PRIMITIVE == EXCHANGE) probe_exchange(x, y);
  if constexpr (PRIMITIVE == ARITHMETIC) probe_arithmetic(x, y);
#pragma unroll
  for (int n = 0; n < 16; ++n) p.out[16 * thread_index() + n] = y[n];
}

}  // namespace ringmpi
